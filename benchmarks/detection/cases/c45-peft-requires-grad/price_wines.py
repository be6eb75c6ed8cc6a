"""Learn the prices of one country's wines, then adapt the network to another country with low-rank adapters."""

import argparse
import tempfile
from itertools import islice
from pathlib import Path

import torch
from cellar import GRAPES, READINGS, SOILS, bottle
from slimadapt import AdaptedModel, AdapterConfig
from torch import nn
from torch.utils.data import DataLoader


class Residual(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.widen = nn.Linear(width, 2 * width)
        self.narrow = nn.Linear(2 * width, width)
        self.norm = nn.LayerNorm(width)

    def forward(self, x):
        return x + self.narrow(nn.functional.relu(self.widen(self.norm(x))))


class PriceNet(nn.Module):
    def __init__(self, width=48, depth=2):
        super().__init__()
        self.grape = nn.Embedding(GRAPES, width)
        self.soil = nn.Embedding(SOILS, width)
        self.numbers = nn.Linear(1 + READINGS, width)
        self.body = nn.Sequential(*(Residual(width) for _ in range(depth)))
        self.head = nn.Linear(width, 1)

    def forward(self, kinds, numbers):
        x = self.grape(kinds[:, 0]) + self.soil(kinds[:, 1]) + self.numbers(numbers)
        return self.head(self.body(x)).squeeze(-1)


def endless(loader):
    """Pass after pass over the loader, each in a new order."""
    while True:
        yield from loader


def fit(model, wines, steps, lr, after_step=lambda step: None):
    loader = DataLoader(wines, batch_size=64, shuffle=True, drop_last=True)
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.Adam(trainable, lr=lr)
    model.train()
    for step, (kinds, numbers, price) in enumerate(islice(endless(loader), steps), start=1):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(kinds, numbers), price)
        loss.backward()
        optimizer.step()
        after_step(step)
        if step % 10 == 0:
            print(f"  step {step}: loss {loss.item():.3f}")


@torch.no_grad()
def mean_error(model, wines):
    model.eval()
    kinds, numbers, price = wines[:]
    return (model(kinds, numbers) - price).abs().mean().item()


def main(args):
    torch.manual_seed(args.seed)
    model = PriceNet()
    print("at home:")
    fit(model, bottle(0, 640, args.seed), args.steps, lr=1e-2)
    print(f"  error {mean_error(model, bottle(0, 256, args.seed + 1)):.3f}")

    abroad, held_out = bottle(1, 384, args.seed + 2), bottle(1, 256, args.seed + 3)
    print(f"abroad, as it is: error {mean_error(model, held_out):.3f}")
    model.head = nn.Linear(model.head.in_features, 1)
    config = AdapterConfig(rank=args.rank, targets=("numbers", "widen", "narrow"), trained_whole=("head",))
    adapted = AdaptedModel(model, config)
    with tempfile.TemporaryDirectory() as folder:

        def checkpoint(step):
            if step % args.save_every == 0:
                adapted.save_progress(Path(folder) / f"step_{step}.pt")

        fit(adapted, abroad, args.adapt_steps, lr=1e-2, after_step=checkpoint)
        kept = sorted(path.name for path in Path(folder).iterdir())
    print(f"abroad, adapted: error {mean_error(adapted, held_out):.3f}; saved {', '.join(kept)}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--adapt-steps", type=int, default=30)
    parser.add_argument("--save-every", type=int, default=8)
    parser.add_argument("--rank", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    main(parser.parse_args())
