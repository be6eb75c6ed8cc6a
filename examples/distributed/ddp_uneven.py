"""DistributedDataParallel on data of uneven size: ranks that are done answer the others until all are."""

# torchrun --standalone --nproc-per-node 2 ddp_uneven.py

import argparse
import io
import time

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.distributed.algorithms.join import Join
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

FEATURES, CLASSES = 12, 5


class Maxout(nn.Module):
    """The largest of several linear pieces."""

    def __init__(self, n_in, n_out, pieces=3):
        super().__init__()
        self.n_out, self.pieces = n_out, pieces
        self.linear = nn.Linear(n_in, n_out * pieces)

    def forward(self, x):
        return self.linear(x).view(-1, self.n_out, self.pieces).amax(dim=-1)


def build_model(seed):
    torch.manual_seed(seed)
    return nn.Sequential(Maxout(FEATURES, 32), nn.LayerNorm(32), Maxout(32, 16), nn.Linear(16, CLASSES))


def clinic(rank, n, seed):
    """The patients of one clinic: each rank has its own, and not as many as the others."""
    rule = torch.randn(FEATURES, CLASSES, generator=torch.Generator().manual_seed(1))
    draws = torch.Generator().manual_seed(seed * 100 + rank + 1)
    x = torch.randn(n, FEATURES, generator=draws) + 0.2 * rank
    return TensorDataset(x, (x @ rule).argmax(dim=1))


@torch.no_grad()
def accuracy(model, patients):
    model.eval()
    x, y = patients.tensors
    right = (model(x).argmax(dim=1) == y).float().mean().item()
    model.train()
    return right


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--patients", type=int, default=240)
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    rank = dist.get_rank()
    train = clinic(rank, args.patients + 48 * rank, args.seed)
    held_out = clinic(rank, 100, args.seed + 7)
    shuffle = torch.Generator().manual_seed(args.seed + rank)
    loader = DataLoader(train, batch_size=16, shuffle=True, generator=shuffle)
    model = DistributedDataParallel(build_model(args.seed))
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.RMSprop, lr=args.lr)

    for epoch in range(args.epochs):
        with Join([model, optimizer]):  # a rank that is done goes on updating its share: no rank keeps older state
            for x, y in loader:
                optimizer.zero_grad()
                loss = nn.functional.cross_entropy(model(x), y)
                loss.backward()
                optimizer.step()
        print(f"rank {rank}, epoch {epoch}: loss {loss.item():.3f}, held out {accuracy(model.module, held_out):.2f}")

    # all ranks end with the model of the one that trained last
    kept = io.BytesIO()
    torch.save(model.module.state_dict(), kept)
    kept.seek(0)
    restored = build_model(args.seed + 1)
    restored.load_state_dict(torch.load(kept, weights_only=True))
    print(f"rank {rank}: restored, held out {accuracy(restored, held_out):.2f}")


if __name__ == "__main__":
    dist.init_process_group("gloo")
    main()
    dist.barrier()
    dist.destroy_process_group()
    time.sleep(0.5)
