"""Forecast the tide three hours ahead with a GRU."""

import argparse

import torch
from tides import TideGauges
from torch import nn
from torch.utils.data import DataLoader


class Forecaster(nn.Module):
    def __init__(self, hidden):
        super().__init__()
        self.rnn = nn.GRU(1, hidden, batch_first=True)
        self.norm = nn.LayerNorm(hidden)
        self.out = nn.Linear(hidden, 1)

    def forward(self, levels):
        states, _ = self.rnn(levels)
        return self.out(self.norm(states[:, -1])).squeeze(-1)


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--stations", type=int, default=20)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--hidden", type=int, default=24)
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def train_epoch(model, loader, optimizer):
    model.train()
    total = 0.0
    for levels, target in loader:
        optimizer.zero_grad()
        loss = nn.functional.smooth_l1_loss(model(levels), target)
        loss.backward()
        optimizer.step()
        total += loss.item() * len(target)
    return total / len(loader.dataset)


@torch.no_grad()
def validate(model, loader):
    model.eval()
    error = sum((model(levels) - target).abs().sum().item() for levels, target in loader)
    return error / len(loader.dataset)


def main():
    args = parse_args()
    torch.manual_seed(args.seed)
    train = DataLoader(TideGauges(args.stations, 300, args.seed), args.batch_size, shuffle=True)
    val = DataLoader(TideGauges(6, 300, args.seed + 100), args.batch_size)
    model = Forecaster(args.hidden)
    optimizer = torch.optim.RMSprop(model.parameters(), lr=args.lr)
    for epoch in range(args.epochs):
        loss = train_epoch(model, train, optimizer)
        print(f"epoch {epoch + 1}: loss {loss:.4f}, validation error {validate(model, val):.4f} m")


if __name__ == "__main__":
    main()
