"""A wide and deep click model on a stream of shards, which are dealt out to the ranks and their loader workers."""

# torchrun --standalone --nproc-per-node 2 ddp_iterable.py

import argparse
import os
import time

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

CARDINALITIES = (50, 20, 12, 7)  # user group, item, hour, device
N_NUMERIC = 4
ROWS_PER_SHARD = 256


class ClickLog:
    """In place of files: shard number -> rows, always the same for the same number."""

    def __init__(self, seed):
        self.seed = seed
        rng = np.random.default_rng(seed)
        self.taste = [rng.normal(size=(n, 3)) for n in CARDINALITIES]
        self.slope = rng.normal(size=N_NUMERIC)

    def read(self, shard):
        rng = np.random.default_rng([self.seed, shard])
        categories = np.stack([rng.integers(n, size=ROWS_PER_SHARD) for n in CARDINALITIES], axis=1)
        numeric = rng.normal(size=(ROWS_PER_SHARD, N_NUMERIC)).astype(np.float32)
        user, item, hour, device = (table[column] for table, column in zip(self.taste, categories.T, strict=True))
        logit = 1.2 * (user * item).sum(1) + 0.5 * (hour + device).sum(1) + numeric @ self.slope - 0.5
        clicks = (rng.random(ROWS_PER_SHARD) < 1 / (1 + np.exp(-logit))).astype(np.float32)
        return categories, numeric, clicks


class ShardStream(IterableDataset):
    """Yields the rows of those shards that belong to this rank and this worker."""

    def __init__(self, log, shards, rank, world_size, shuffle):
        self.log = log
        self.shards = list(shards)
        self.rank = rank
        self.world_size = world_size
        self.shuffle = shuffle
        self.epoch = 0

    def set_epoch(self, epoch):
        # reaches the workers, for they are started anew in each epoch
        self.epoch = epoch

    def __iter__(self):
        info = get_worker_info()
        worker, n_workers = (info.id, info.num_workers) if info else (0, 1)
        consumers = self.world_size * n_workers
        if len(self.shards) % consumers:
            raise ValueError(f"{len(self.shards)} shards cannot be dealt out evenly to {consumers} consumers")
        rng = np.random.default_rng([self.log.seed, self.epoch])
        order = rng.permutation(self.shards) if self.shuffle else self.shards  # alike everywhere
        for shard in order[self.rank * n_workers + worker :: consumers]:
            categories, numeric, clicks = self.log.read(shard)
            rows = rng.permutation(len(clicks)) if self.shuffle else range(len(clicks))
            for i in rows:
                yield categories[i], numeric[i], clicks[i]


class WideAndDeep(nn.Module):
    def __init__(self, dim=8, hidden=64):
        super().__init__()
        self.register_buffer("offsets", torch.tensor([0, *CARDINALITIES[:-1]]).cumsum(0))
        n = sum(CARDINALITIES)
        self.wide = nn.EmbeddingBag(n, 1, mode="sum")
        self.embeddings = nn.Embedding(n, dim)
        nn.init.zeros_(self.wide.weight)
        nn.init.normal_(self.embeddings.weight, std=0.3)
        self.deep = nn.Sequential(
            nn.Linear(dim * len(CARDINALITIES) + N_NUMERIC, hidden),
            nn.ReLU(),
            nn.Linear(hidden, hidden),
            nn.ReLU(),
            nn.Linear(hidden, 1),
        )

    def forward(self, categories, numeric):
        index = categories + self.offsets
        fields = self.embeddings(index)
        # all products of two fields, as in a factorization machine
        crossed = (fields.sum(1).square() - fields.square().sum(1)).sum(1) / 2
        deep = self.deep(torch.cat([fields.flatten(1), numeric], dim=1))
        return self.wide(index).squeeze(1) + crossed + deep.squeeze(1)


def run_epoch(model, loader, criterion, optimizer=None):
    """One pass over the stream, with updates if there is an optimizer; mean loss and accuracy over all ranks."""
    model.train(optimizer is not None)
    sums = torch.zeros(3)
    for categories, numeric, clicks in loader:
        logits = model(categories, numeric)
        loss = criterion(logits, clicks)
        if optimizer is not None:
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        hits = ((logits > 0) == (clicks > 0.5)).sum()
        sums += torch.tensor([loss.item() * len(clicks), hits.item(), len(clicks)])
    dist.all_reduce(sums)
    return (sums[0] / sums[2]).item(), (sums[1] / sums[2]).item()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=128, help="per rank")
    parser.add_argument("--workers", type=int, default=2, help="loader workers per rank")
    parser.add_argument("--lr", type=float, default=0.03)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    log = ClickLog(args.seed)
    train_stream = ShardStream(log, range(24), rank, world_size, shuffle=True)
    val_stream = ShardStream(log, range(24, 32), rank, world_size, shuffle=False)
    train_loader = DataLoader(train_stream, args.batch_size, num_workers=args.workers)
    val_loader = DataLoader(val_stream, 256)

    torch.manual_seed(args.seed)
    model = DDP(WideAndDeep())
    criterion = nn.BCEWithLogitsLoss()
    optimizer = torch.optim.Adagrad(model.parameters(), lr=args.lr)

    for epoch in range(args.epochs):
        train_stream.set_epoch(epoch)
        train_loss, _ = run_epoch(model, train_loader, criterion, optimizer)
        with torch.no_grad():
            val_loss, accuracy = run_epoch(model.module, val_loader, criterion)
        if rank == 0:
            print(f"epoch {epoch}: log loss {train_loss:.4f}, validation {val_loss:.4f}, accuracy {accuracy:.3f}")


if __name__ == "__main__":
    dist.init_process_group("gloo")
    main()
    dist.barrier()
    dist.destroy_process_group()
    time.sleep(0.5)
