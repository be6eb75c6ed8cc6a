"""Data parallelism by hand: a GRU learns to forecast, and the ranks average their gradients parameter by parameter."""

# Start with: torchrun --standalone --nproc-per-node 2 manual_data_parallel.py

import argparse
import math
import os
import time
from random import Random

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
import torch.optim as optim


class Partition:
    """The samples of `data` whose places are in `index`."""

    def __init__(self, data, index):
        self.data = data
        self.index = index

    def __len__(self):
        return len(self.index)

    def __getitem__(self, i):
        return self.data[self.index[i]]


class DataPartitioner:
    """Deals the samples out to the ranks; all ranks shuffle alike, so that the parts do not overlap."""

    def __init__(self, data, n_parts, seed):
        index = list(range(len(data)))
        Random(seed).shuffle(index)
        size = len(data) // n_parts
        self.parts = [Partition(data, index[i * size : (i + 1) * size]) for i in range(n_parts)]

    def use(self, i):
        return self.parts[i]


class Forecaster(nn.Module):
    def __init__(self, hidden=48):
        super().__init__()
        self.gru = nn.GRU(1, hidden, num_layers=1, batch_first=True)
        self.dropout = nn.Dropout(0.05)
        self.readout = nn.Linear(hidden, 1)

    def forward(self, series):
        states, _ = self.gru(series.unsqueeze(-1))
        return self.readout(self.dropout(states)).squeeze(-1)


def make_series(n, length, seed):
    """Sums of two sines of random frequency and phase, with some noise."""
    g = torch.Generator().manual_seed(seed)
    t = torch.arange(length)
    frequency = 0.1 + 0.5 * torch.rand(n, 2, 1, generator=g)
    phase = 2 * math.pi * torch.rand(n, 2, 1, generator=g)
    clean = torch.sin(frequency * t + phase).sum(dim=1)
    return clean + 0.05 * torch.randn(n, length, generator=g)


def broadcast_parameters(model):
    """All ranks start from rank 0's weights."""
    for param in model.parameters():
        dist.broadcast(param.data, src=0)


def average_gradients(model):
    size = float(dist.get_world_size())
    for param in model.parameters():
        dist.all_reduce(param.grad, op=dist.ReduceOp.SUM)
        param.grad /= size


def forecast_loss(model, series):
    # predict each value from those before it
    return F.mse_loss(model(series[:, :-1]), series[:, 1:])


def average(value):
    value = torch.tensor(value)
    dist.all_reduce(value)
    return value.item() / dist.get_world_size()


def evaluate(model, series):
    model.eval()
    with torch.no_grad():
        loss = forecast_loss(model, series).item()
    model.train()
    return average(loss)


def run(rank, size, args):
    # each rank has its own dropout masks and order of samples; its weights, too, until the broadcast below
    torch.manual_seed(args.seed + rank)

    train_part = DataPartitioner(make_series(1024, 40, args.seed), size, seed=1234).use(rank)
    val_series = make_series(256, 40, args.seed + 1).chunk(size)[rank]
    loader = torch.utils.data.DataLoader(train_part, batch_size=args.batch_size // size, shuffle=True, drop_last=True)

    model = Forecaster()
    broadcast_parameters(model)
    optimizer = optim.Adam(model.parameters(), lr=args.lr)
    scheduler = optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.8)

    first = evaluate(model, val_series)
    if rank == 0:
        print(f"before training: validation error {first:.4f}")
    model.train()
    for epoch in range(args.epochs):
        epoch_loss = 0.0
        for series in loader:
            optimizer.zero_grad()
            loss = forecast_loss(model, series)
            epoch_loss += loss.item()
            loss.backward()
            average_gradients(model)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
        scheduler.step()
        train_loss = average(epoch_loss / len(loader))
        val_loss = evaluate(model, val_series)
        if rank == 0:
            print(f"epoch {epoch}: training loss {train_loss:.4f}, validation error {val_loss:.4f}")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--batch-size", type=int, default=128, help="of all ranks together")
    parser.add_argument("--lr", type=float, default=1e-2)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    run(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), args)


if __name__ == "__main__":
    dist.init_process_group("gloo", init_method="env://")
    main()
    dist.barrier()
    dist.destroy_process_group()
    time.sleep(0.5)
