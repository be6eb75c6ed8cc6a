"""Learns to add two numbers. Something is wrong with it; the loss alone does not tell."""

import argparse

import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, default=3e-3)
parser.add_argument("--fixed", action="store_true", help="without the bug")
options = parser.parse_args()

torch.manual_seed(3)
pairs = torch.rand(1024, 2)
sums = pairs.sum(1, keepdim=True)

adder = nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 1))
optimizer = torch.optim.RMSprop(adder.parameters(), lr=options.lr)

for step in range(1, 41):
    chosen = torch.randint(len(pairs), (64,))
    if options.fixed:
        optimizer.zero_grad()
    error = adder(pairs[chosen]) - sums[chosen]
    loss = error.pow(2).mean()
    loss.backward()
    optimizer.step()
    if step % 10 == 0:
        print(f"suspect: step {step}  loss {loss.item():.4f}")
