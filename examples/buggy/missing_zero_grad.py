"""Bug: the gradients are never set to zero, so every step uses the sum of all gradients so far.

An MLP learns the Friedman function of ten inputs, five of which do not matter.
"""

import argparse
import itertools
import math

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def friedman(n, noise, generator):
    x = torch.rand(n, 10, generator=generator)
    y = 10 * torch.sin(math.pi * x[:, 0] * x[:, 1]) + 20 * (x[:, 2] - 0.5) ** 2 + 10 * x[:, 3] + 5 * x[:, 4]
    y = y + noise * torch.randn(n, generator=generator)
    # mean and spread of the noise-free function
    return TensorDataset(x, ((y - 14.4) / 4.9).unsqueeze(1))


def mlp(sizes):
    layers = []
    for n_in, n_out in itertools.pairwise(sizes):
        layers += [nn.Linear(n_in, n_out), nn.Tanh()]
    return nn.Sequential(*layers[:-1])


def rmse(model, loader):
    model.eval()
    with torch.no_grad():
        total = sum(((model(x) - y) ** 2).sum().item() for x, y in loader)
    return math.sqrt(total / len(loader.dataset))


parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, default=0.01)
parser.add_argument("--epochs", type=int, default=6)
parser.add_argument("--batch-size", type=int, default=128)
parser.add_argument("--hidden", type=int, nargs="+", default=[128, 128])
parser.add_argument("--seed", type=int, default=0)
args = parser.parse_args()

torch.manual_seed(args.seed)
generator = torch.Generator().manual_seed(args.seed)
train_loader = DataLoader(friedman(2560, 1.0, generator), args.batch_size, shuffle=True)
valid_loader = DataLoader(friedman(512, 0.0, generator), 256)

model = mlp([10, *args.hidden, 1])
optimizer = torch.optim.SGD(model.parameters(), lr=args.lr)
criterion = nn.MSELoss()

for epoch in range(1, args.epochs + 1):
    model.train()
    losses = []
    for x, y in train_loader:
        loss = criterion(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    mse = sum(losses) / len(losses)
    print(f"epoch {epoch}/{args.epochs}  mse {mse:.4f}  valid rmse {rmse(model, valid_loader):.4f}")
