"""Bug: the backward of a custom function averages over the batch, where the gradient of a broadcast is a sum.

A network removes the gains of eight sensors, then recognises which of four motions they recorded.
"""

import argparse
import math

import torch
from torch import nn

SENSORS, LENGTH, MOTIONS = 8, 24, 4


class ApplyGain(torch.autograd.Function):
    """readings * gain, for readings of shape (batch, sensors, time) and one gain per sensor."""

    @staticmethod
    def forward(ctx, readings, gain):
        ctx.save_for_backward(readings, gain)
        return readings * gain[:, None]

    @staticmethod
    def backward(ctx, grad):
        readings, gain = ctx.saved_tensors
        return grad * gain[:, None], (grad * readings).sum(2).mean(0)


class MotionNet(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.gain = nn.Parameter(torch.ones(SENSORS))
        self.conv = nn.Conv1d(SENSORS, width, kernel_size=5)
        self.norm = nn.GroupNorm(4, width)
        self.head = nn.Linear(width, MOTIONS)

    def forward(self, readings):
        calibrated = ApplyGain.apply(readings, self.gain)
        features = torch.relu(self.norm(self.conv(calibrated)))
        return self.head(features.mean(dim=2))


def recordings(count, gains):
    motion = torch.randint(MOTIONS, (count,))
    phase = 2 * math.pi * torch.rand(count, 1, 1)
    time = torch.arange(LENGTH)[None, None, :] * (0.25 + 0.15 * motion[:, None, None])
    lag = torch.linspace(0, math.pi, SENSORS)[None, :, None] * (1 + motion[:, None, None] % 2)
    signal = torch.sin(time + phase + lag)
    return gains[:, None] * signal + 0.4 * torch.randn(count, SENSORS, LENGTH), motion


def train(model, optimizer, gains, steps, batch_size):
    loss_of = nn.CrossEntropyLoss()
    total = 0.0
    for _ in range(steps):
        readings, motion = recordings(batch_size, gains)
        optimizer.zero_grad()
        loss = loss_of(model(readings), motion)
        loss.backward()
        optimizer.step()
        total += loss.item()
    return total / steps


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    gains = torch.logspace(-1, 1, SENSORS)
    model = MotionNet(width=16)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
    for epoch in range(1, args.epochs + 1):
        loss = train(model, optimizer, gains, args.steps, args.batch_size)
        print(f"epoch {epoch}/{args.epochs}  loss {loss:.4f}  gains {model.gain.min():.3f} to {model.gain.max():.3f}")


if __name__ == "__main__":
    main()
