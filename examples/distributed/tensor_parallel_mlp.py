"""Tensor parallelism by hand: a residual MLP on digits, each pair of linear layers split by columns, then by rows."""

import argparse
import math
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch.utils.data import DataLoader, TensorDataset, random_split


class CopyToRegion(torch.autograd.Function):
    """Identity in the forward pass; in the backward pass the gradients of all ranks are added up."""

    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad_output):
        grad_input = grad_output.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(grad_input)
        return grad_input


class ReduceFromRegion(torch.autograd.Function):
    """Adds up the partial results of all ranks; the gradient of the sum goes to every rank as it is."""

    @staticmethod
    def forward(ctx, x):
        total = x.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output


def my_shard(full, dim):
    """This rank's part of a tensor that is the same on all ranks."""
    return full.chunk(dist.get_world_size(), dim=dim)[dist.get_rank()].clone()


class ColumnLinear(nn.Module):
    """Holds some of the output features; the input is the whole activation, the output stays split."""

    def __init__(self, in_features, out_features):
        super().__init__()
        full = nn.Linear(in_features, out_features)  # drawn alike on all ranks
        self.weight = nn.Parameter(my_shard(full.weight.detach(), dim=0))
        self.bias = nn.Parameter(my_shard(full.bias.detach(), dim=0))

    def forward(self, x):
        return F.linear(CopyToRegion.apply(x), self.weight, self.bias)


class RowLinear(nn.Module):
    """Holds some of the input features; the input is split, the output is the whole activation."""

    def __init__(self, in_features, out_features):
        super().__init__()
        full = nn.Linear(in_features, out_features)
        self.weight = nn.Parameter(my_shard(full.weight.detach(), dim=1))
        self.bias = nn.Parameter(full.bias.detach().clone())  # whole, and added once, after the reduction

    def forward(self, x):
        return ReduceFromRegion.apply(F.linear(x, self.weight)) + self.bias


class ParallelBlock(nn.Module):
    def __init__(self, dim, hidden):
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.up = ColumnLinear(dim, hidden)
        self.down = RowLinear(hidden, dim)

    def forward(self, x):
        return x + self.down(F.gelu(self.up(self.norm(x))))


class ParallelMLP(nn.Module):
    def __init__(self, in_features, dim, depth, n_classes):
        super().__init__()
        self.embed = nn.Linear(in_features, dim)
        self.blocks = nn.ModuleList(ParallelBlock(dim, 4 * dim) for _ in range(depth))
        self.norm = nn.LayerNorm(dim)
        self.classify = nn.Linear(dim, n_classes)

    def forward(self, x):
        x = self.embed(x)
        for block in self.blocks:
            x = block(x)
        return self.classify(self.norm(x))


def make_loaders(batch_size, seed):
    """All ranks read the same batches: they are parts of one model, not copies of it."""
    digits = load_digits()
    inputs = torch.tensor(digits.data, dtype=torch.float32) / 8.0 - 1.0
    dataset = TensorDataset(inputs, torch.tensor(digits.target))
    generator = torch.Generator().manual_seed(seed)
    train_set, val_set = random_split(dataset, [0.8, 0.2], generator=generator)
    train_loader = DataLoader(train_set, batch_size, shuffle=True, drop_last=True, generator=generator)
    return train_loader, DataLoader(val_set, batch_size=512)


@torch.no_grad()
def accuracy(model, loader):
    model.eval()
    right = sum((model(x).argmax(dim=1) == y).sum().item() for x, y in loader)
    return right / len(loader.dataset)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    train_loader, val_loader = make_loaders(args.batch_size, args.seed)
    model = ParallelMLP(in_features=64, dim=64, depth=2, n_classes=10)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    if dist.get_rank() == 0:
        held = sum(p.numel() for p in model.parameters())
        print(f"{dist.get_world_size()} ranks, {held} parameters on each; untrained loss would be {math.log(10):.3f}")

    for epoch in range(args.epochs):
        model.train()
        running = 0.0
        for x, y in train_loader:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            running += loss.item()
        val_accuracy = accuracy(model, val_loader)
        if dist.get_rank() == 0:
            print(f"epoch {epoch}: train loss {running / len(train_loader):.4f}, val accuracy {val_accuracy:.3f}")


if __name__ == "__main__":
    dist.init_process_group("gloo")
    main()
    dist.barrier()
    dist.destroy_process_group()
    time.sleep(0.5)  # gloo's threads end after the group does
