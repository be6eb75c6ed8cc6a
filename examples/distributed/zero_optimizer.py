"""An MLP-Mixer under DDP, with AdamW's state sharded between the ranks by ZeroRedundancyOptimizer."""

# The run stops half-way, gathers the shards of the optimizer into one checkpoint, and resumes from it.
#     torchrun --standalone --nproc-per-node 2 zero_optimizer.py

import argparse
import math
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

N_DIRECTIONS = 8
SIDE = 16
PATCH = 4


class Gratings(Dataset):
    """Sine gratings of random frequency and phase, under noise; the label is the direction."""

    def __init__(self, n, seed):
        g = torch.Generator().manual_seed(seed)
        self.labels = torch.arange(n) % N_DIRECTIONS
        angle = (math.pi * self.labels / N_DIRECTIONS).view(-1, 1, 1)
        frequency = 0.6 + 0.6 * torch.rand(n, 1, 1, generator=g)
        phase = 2 * math.pi * torch.rand(n, 1, 1, generator=g)
        y, x = torch.meshgrid(torch.arange(SIDE), torch.arange(SIDE), indexing="ij")
        waves = torch.sin(frequency * (x * angle.cos() + y * angle.sin()) + phase)
        self.images = waves + 1.2 * torch.randn(n, SIDE, SIDE, generator=g)

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, i):
        return self.images[i], self.labels[i]


class MixerBlock(nn.Module):
    def __init__(self, tokens, channels):
        super().__init__()
        self.norm1 = nn.LayerNorm(channels)
        self.token_mixing = nn.Sequential(nn.Linear(tokens, 2 * tokens), nn.GELU(), nn.Linear(2 * tokens, tokens))
        self.norm2 = nn.LayerNorm(channels)
        self.channel_mixing = nn.Sequential(
            nn.Linear(channels, 2 * channels), nn.GELU(), nn.Linear(2 * channels, channels)
        )

    def forward(self, x):
        x = x + self.token_mixing(self.norm1(x).transpose(1, 2)).transpose(1, 2)
        return x + self.channel_mixing(self.norm2(x))


class Mixer(nn.Module):
    def __init__(self, channels=64, depth=3):
        super().__init__()
        self.embed = nn.Linear(PATCH * PATCH, channels)
        self.blocks = nn.Sequential(*[MixerBlock((SIDE // PATCH) ** 2, channels) for _ in range(depth)])
        self.norm = nn.LayerNorm(channels)
        self.classify = nn.Linear(channels, N_DIRECTIONS)

    def forward(self, images):
        patches = images.unfold(1, PATCH, PATCH).unfold(2, PATCH, PATCH).flatten(3).flatten(1, 2)
        return self.classify(self.norm(self.blocks(self.embed(patches))).mean(dim=1))


def build(args, total_steps):
    torch.manual_seed(args.seed)
    model = DistributedDataParallel(Mixer())
    optimizer = ZeroRedundancyOptimizer(
        model.parameters(), optimizer_class=torch.optim.AdamW, lr=args.lr, weight_decay=0.01
    )
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=total_steps)
    return model, optimizer, scheduler


def save(path, epoch, model, optimizer, scheduler):
    # all ranks send their shard; only rank 0 then has the whole state
    optimizer.consolidate_state_dict(to=0)
    if dist.get_rank() == 0:
        torch.save(
            {
                "epoch": epoch,
                "model": model.module.state_dict(),
                "optimizer": optimizer.state_dict(),
                "scheduler": scheduler.state_dict(),
            },
            path,
        )
    dist.barrier()


def load(path, model, optimizer, scheduler):
    checkpoint = torch.load(path, map_location="cpu", weights_only=True)
    model.module.load_state_dict(checkpoint["model"])
    optimizer.load_state_dict(checkpoint["optimizer"])  # each rank keeps its shard
    scheduler.load_state_dict(checkpoint["scheduler"])
    dist.barrier()
    return checkpoint["epoch"]


def train(epochs, loader, val_loader, model, optimizer, scheduler):
    criterion = nn.CrossEntropyLoss(label_smoothing=0.1)
    for epoch in epochs:
        loader.sampler.set_epoch(epoch)
        model.train()
        epoch_loss = torch.zeros(())
        for images, labels in loader:
            loss = criterion(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            scheduler.step()
            epoch_loss += loss.detach() / len(loader)
        dist.all_reduce(epoch_loss)
        score = evaluate(model.module, val_loader)
        if dist.get_rank() == 0:
            mean_loss = epoch_loss.item() / dist.get_world_size()
            print(f"epoch {epoch}: loss {mean_loss:.3f}, accuracy {score:.3f}", flush=True)


@torch.no_grad()
def evaluate(model, loader):
    model.eval()
    hits, seen = torch.zeros(1), torch.zeros(1)
    for images, labels in loader:
        hits += (model(images).argmax(dim=-1) == labels).sum()
        seen += len(labels)
    dist.all_reduce(hits)
    dist.all_reduce(seen)
    return (hits / seen).item()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=32, help="per rank")
    parser.add_argument("--lr", type=float, default=4e-3)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    train_set, val_set = Gratings(960, seed=args.seed), Gratings(400, seed=args.seed + 1)
    loader = DataLoader(train_set, args.batch_size, sampler=DistributedSampler(train_set, seed=args.seed))
    val_loader = DataLoader(val_set, 200, sampler=DistributedSampler(val_set, shuffle=False))
    total_steps = args.epochs * len(loader)
    half = args.epochs // 2

    with tempfile.TemporaryDirectory() as own:
        folder = [own]
        dist.broadcast_object_list(folder, src=0)
        path = Path(folder[0]) / "checkpoint.pt"

        parts = build(args, total_steps)
        train(range(half), loader, val_loader, *parts)
        save(path, half, *parts)

        parts = build(args, total_steps)
        start = load(path, *parts)
        if dist.get_rank() == 0:
            print(f"resumed at epoch {start}")
        train(range(start, args.epochs), loader, val_loader, *parts)


if __name__ == "__main__":
    dist.init_process_group("gloo")
    main()
    dist.barrier()
    dist.destroy_process_group()
    time.sleep(0.5)
