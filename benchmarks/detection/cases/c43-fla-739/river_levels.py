"""Predict the level of a river at every hour from the rain so far, with two selective state-space layers."""

import argparse
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from rivers import simulate
from selectivestate import SelectiveStateMixer
from torch import nn


@dataclass(frozen=True)
class Config:
    width: int = 24
    heads: int = 6
    layers: int = 2
    steps: int = 45
    batch_size: int = 16
    lr: float = 4e-3
    seed: int = 0

    @classmethod
    def from_command_line(cls):
        parser = argparse.ArgumentParser(description=__doc__)
        for name, kind in cls.__annotations__.items():
            parser.add_argument("--" + name.replace("_", "-"), type=kind, default=getattr(cls, name))
        return cls(**vars(parser.parse_args()))


class RiverModel(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.rain = nn.Linear(2, config.width)
        self.mixers = nn.ModuleList(SelectiveStateMixer(config.width, config.heads) for _ in range(config.layers))
        self.norms = nn.ModuleList(nn.RMSNorm(config.width) for _ in range(config.layers))
        self.level = nn.Linear(config.width, 1)

    def forward(self, rain):
        x = self.rain(rain)
        for norm, mixer in zip(self.norms, self.mixers, strict=True):
            x = x + mixer(norm(x))
        return self.level(x).squeeze(-1)


def explained(model, rain, levels):
    """Share of the variance of the levels that the model explains."""
    model.eval()
    with torch.no_grad():
        left = F.mse_loss(model(rain), levels)
    model.train()
    return 1 - (left / levels.var()).item()


def main(config):
    torch.manual_seed(config.seed)
    weather = np.random.default_rng(config.seed)
    held_out = simulate(32, np.random.default_rng(config.seed + 1000))
    model = RiverModel(config)
    optimizer = torch.optim.NAdam(model.parameters(), lr=config.lr)
    model.train()
    for step in range(config.steps):
        rain, levels = simulate(config.batch_size, weather)
        loss = F.mse_loss(model(rain), levels)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if (step + 1) % 15 == 0:
            print(f"{step + 1} steps: loss {loss.item():.4f}, explained {explained(model, *held_out):.1%}")


if __name__ == "__main__":
    main(Config.from_command_line())
