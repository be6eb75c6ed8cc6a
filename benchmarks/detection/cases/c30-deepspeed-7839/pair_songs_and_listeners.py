"""Recommend songs: two towers embed listeners and songs, trained in bfloat16 with in-batch negatives."""

import argparse

import torch
from bf16_masters import BF16Optimizer
from listening import LISTENERS, SONGS, listening_log
from torch import nn
from torch.utils.data import DataLoader


class Tower(nn.Module):
    def __init__(self, count, dim):
        super().__init__()
        self.table = nn.Embedding(count, dim)
        self.deepen = nn.Sequential(nn.Linear(dim, 2 * dim), nn.ReLU(), nn.Linear(2 * dim, dim))

    def forward(self, index):
        x = self.table(index)
        return x + self.deepen(x)


class TwoTowers(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.listeners = Tower(LISTENERS, dim)
        self.songs = Tower(SONGS, dim)

    def scores(self, listeners, songs):
        """How well each of the listeners and each of the songs fit: (listeners, songs)."""
        return (self.listeners(listeners) @ self.songs(songs).T).float() / self.listeners.table.embedding_dim**0.5

    def forward(self, listeners, songs):
        """The loss of picking the right song for a listener, out of the songs of the batch."""
        scores = self.scores(listeners, songs)
        same = songs[:, None] == songs[None]
        same.fill_diagonal_(False)
        return nn.functional.cross_entropy(scores.masked_fill(same, -1e4), torch.arange(len(songs)))


@torch.no_grad()
def hit_rate(model, log, top=10):
    """How often the song is among the ten that the model likes best for the listener."""
    model.eval()
    listeners, songs = log.tensors
    best = model.scores(listeners, torch.arange(SONGS)).topk(top).indices
    return (best == songs[:, None]).any(1).float().mean().item()


def train(model, optimizer, loader, schedule):
    model.train()
    for listeners, songs in loader:
        loss = model(listeners, songs)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
    return loss.item()


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--plays", type=int, default=960)
    parser.add_argument("--dim", type=int, default=16)
    parser.add_argument("--lr", type=float, default=2e-2)
    parser.add_argument("--seed", type=int, default=100)
    args = parser.parse_args(argv)

    torch.manual_seed(args.seed)
    train_log, test_log = listening_log(args.plays, args.seed)
    loader = DataLoader(train_log, args.batch_size, shuffle=True, drop_last=True)
    model = TwoTowers(args.dim)
    optimizer = BF16Optimizer(model.parameters(), lambda masters: torch.optim.Adamax(masters, lr=args.lr), clip=1.0)
    schedule = torch.optim.lr_scheduler.PolynomialLR(optimizer.inner, args.epochs * len(loader))
    print(f"untrained: hit rate {hit_rate(model, test_log):.1%}")
    for epoch in range(1, args.epochs + 1):
        loss = train(model, optimizer, loader, schedule)
        print(f"epoch {epoch}: last loss {loss:.3f}, hit rate {hit_rate(model, test_log):.1%}")


if __name__ == "__main__":
    main()
