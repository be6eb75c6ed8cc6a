"""Which recipe does a diner cook again? Two towers in half precision."""

import argparse

import torch
from cookbook import Meals
from masterweights import HalfPrecisionAdam
from torch import nn
from torch.utils.data import DataLoader, random_split


class Tower(nn.Module):
    def __init__(self, entries, width):
        super().__init__()
        self.table = nn.Embedding(entries, width)
        self.mix = nn.Sequential(nn.Linear(width, 2 * width), nn.ReLU(), nn.Linear(2 * width, width))
        nn.init.normal_(self.table.weight, std=0.3)

    def forward(self, index):
        entry = self.table(index)
        return entry + self.mix(entry)


class TwoTowers(nn.Module):
    def __init__(self, diners, recipes, width):
        super().__init__()
        self.diner = Tower(diners, width)
        self.recipe = Tower(recipes, width)

    def forward(self, diner, recipe):
        return (self.diner(diner).float() * self.recipe(recipe).float()).sum(-1)


class Trainer:
    def __init__(self, args):
        torch.manual_seed(args.seed)
        meals = Meals(args.diners, args.recipes, args.meals, args.seed)
        train, test = random_split(meals, [len(meals) - 400, 400])
        self.train_loader = DataLoader(train, args.batch_size, shuffle=True, drop_last=True)
        self.test_loader = DataLoader(test, 400)
        self.model = TwoTowers(args.diners, args.recipes, args.width).half()
        tables = [p for name, p in self.model.named_parameters() if "table" in name]
        layers = [p for name, p in self.model.named_parameters() if "table" not in name]
        self.optimizer = HalfPrecisionAdam(
            [{"params": tables, "lr": 10 * args.lr}, {"params": layers, "lr": args.lr, "weight_decay": 1e-3}]
        )
        self.criterion = nn.BCEWithLogitsLoss()

    def run_epoch(self):
        self.model.train()
        losses = []
        for diner, recipe, again in self.train_loader:
            loss = self.criterion(self.model(diner, recipe), again)
            self.optimizer.zero_grad()
            self.optimizer.backward(loss)
            self.optimizer.step()
            losses.append(loss.item())
        return sum(losses) / len(losses)

    @torch.no_grad()
    def test(self):
        self.model.eval()
        hits = [((self.model(d, r) > 0) == (again > 0.5)).float().mean().item() for d, r, again in self.test_loader]
        return sum(hits) / len(hits)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--diners", type=int, default=60)
    parser.add_argument("--recipes", type=int, default=40)
    parser.add_argument("--meals", type=int, default=1600)
    parser.add_argument("--width", type=int, default=16)
    parser.add_argument("--batch-size", type=int, default=96)
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    trainer = Trainer(args)
    for epoch in range(args.epochs):
        print(f"epoch {epoch + 1}: loss {trainer.run_epoch():.4f}, correct {trainer.test():.3f}")
