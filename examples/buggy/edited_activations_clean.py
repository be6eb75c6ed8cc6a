"""The clean twin of edited_activations.py: the statistics that are logged use a centred copy.

A gated network predicts the next value of coupled oscillators.
"""

import argparse
import itertools

import torch
import torch.nn.functional as F
from torch import nn


class GatedLayer(nn.Module):
    def __init__(self, n_in, n_out):
        super().__init__()
        self.value = nn.Linear(n_in, n_out)
        self.gate = nn.Linear(n_in, n_out)
        self.spread = 0.0

    def forward(self, x):
        value = self.value(x)
        y = value * torch.sigmoid(self.gate(x))
        self.log_spread(value)
        return y

    def log_spread(self, value):
        """How much the units differ between samples, for the log."""
        centred = value.detach()
        centred = centred - centred.mean(dim=0)
        self.spread = centred.pow(2).mean().sqrt().item()


class Forecaster(nn.Module):
    def __init__(self, history, hidden, layers):
        super().__init__()
        sizes = [2 * history] + [hidden] * layers
        self.layers = nn.ModuleList(GatedLayer(n_in, n_out) for n_in, n_out in itertools.pairwise(sizes))
        self.out = nn.Linear(hidden, 2)

    def forward(self, x):
        x = x.flatten(1)
        for layer in self.layers:
            x = layer(x)
        return self.out(x)


def oscillators(steps):
    """Two pendulums on a common spring, from a random start."""
    angle, speed = torch.randn(2), torch.randn(2)
    positions = []
    for _ in range(steps):
        pull = 0.4 * (angle.flip(0) - angle)
        speed = speed + 0.1 * (pull - torch.sin(angle))
        angle = angle + 0.1 * speed
        positions.append(angle)
    return torch.stack(positions)


def windows(count, history):
    series = oscillators(count + history)
    inputs = torch.stack([series[start : start + history] for start in range(count)])
    return inputs, series[history:]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=80)
    parser.add_argument("--batch-size", type=int, default=48)
    parser.add_argument("--history", type=int, default=6)
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    inputs, targets = windows(600, args.history)
    model = Forecaster(args.history, hidden=48, layers=2)
    optimizer = torch.optim.RAdam(model.parameters(), lr=args.lr)
    for step in range(1, args.steps + 1):
        chosen = torch.randint(len(inputs), (args.batch_size,))
        optimizer.zero_grad(set_to_none=True)
        loss = F.smooth_l1_loss(model(inputs[chosen]), targets[chosen])
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()
        if step % 20 == 0:
            spread = ", ".join(f"{layer.spread:.2f}" for layer in model.layers)
            print(f"step {step}/{args.steps}  loss {loss.item():.4f}  spread {spread}")


main()
