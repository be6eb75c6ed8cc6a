"""Predict how many bikes are rented in an hour: embeddings of time, residual layers, a cosine learning rate."""

import argparse
from dataclasses import dataclass, fields

import torch
from bike_rides import rides
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR
from torch.utils.data import DataLoader


@dataclass
class Settings:
    days: int = 70
    epochs: int = 6
    batch_size: int = 168
    lr: float = 0.01
    seed: int = 0


class Residual(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.body = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.ELU(), nn.Linear(2 * width, width)
        )

    def forward(self, x):
        return x + self.body(x)


class RideModel(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.hour = nn.Embedding(24, width)
        self.weekday = nn.Embedding(7, width)
        self.weather = nn.Linear(3, width)
        self.layers = nn.Sequential(Residual(width), Residual(width))
        self.out = nn.Linear(width, 1)

    def forward(self, hour, weekday, weather):
        x = self.hour(hour) + self.weekday(weekday) + self.weather(weather)
        return self.out(self.layers(x)).squeeze(-1)


class Experiment:
    def __init__(self, settings):
        self.settings = settings
        self.train_loader = DataLoader(rides(settings.days, settings.seed), settings.batch_size, shuffle=True)
        self.val_loader = DataLoader(rides(14, settings.seed + 1), 168)
        self.model = RideModel()
        self.criterion = nn.HuberLoss(delta=0.5)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=settings.lr)
        self.scheduler = CosineAnnealingLR(self.optimizer, T_max=settings.epochs)

    def train_epoch(self):
        self.model.train()
        for *inputs, target in self.train_loader:
            self.optimizer.zero_grad()
            loss = self.criterion(self.model(*inputs), target)
            loss.backward()
            self.optimizer.step()
        return loss.item()

    @torch.no_grad()
    def validate(self):
        self.model.eval()
        errors = [(self.model(*inputs) - target).square() for *inputs, target in self.val_loader]
        return torch.cat(errors).mean().sqrt().item()

    def run(self):
        for epoch in range(self.settings.epochs):
            loss = self.train_epoch()
            self.scheduler.step()
            print(f"epoch {epoch + 1}: last loss {loss:.4f}, validation error {self.validate():.4f}")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    for field in fields(Settings):
        parser.add_argument("--" + field.name.replace("_", "-"), type=type(field.default), default=field.default)
    settings = Settings(**vars(parser.parse_args()))
    torch.manual_seed(settings.seed)
    Experiment(settings).run()


if __name__ == "__main__":
    main()
