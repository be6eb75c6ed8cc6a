"""Guess the style of a melody (dance, hymn, study or fanfare) with a small attention encoder."""

from __future__ import annotations

import argparse
import random

import torch
from attention import MultiHeadAttention
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset

STYLES = ["dance", "hymn", "study", "fanfare"]
SCALE = [0, 2, 4, 5, 7, 9, 11]
PAD, RANGE = 0, 40


class Melodies(Dataset):
    """Pitches as tokens from 1 on: dances hop, hymns move in steps, studies run, fanfares keep to a chord."""

    def __init__(self, count, seed):
        rng = random.Random(seed)
        styles = [rng.randrange(len(STYLES)) for _ in range(count)]
        self.items = [(self.compose(rng, STYLES[style]), style) for style in styles]

    @staticmethod
    def compose(rng, style):
        root, degree, direction = rng.randrange(6), rng.randrange(4, 10), rng.choice([-1, 1])
        notes = []
        for place in range(rng.randrange(12, 25)):
            if rng.random() < 0.2:
                degree = rng.randrange(14)
            elif style == "dance":
                degree += rng.choice([-3, 3]) if place % 3 == 0 else rng.choice([-1, 0, 1])
            elif style == "hymn":
                degree += rng.choice([-1, 0, 0, 1])
            elif style == "study":
                direction = -direction if rng.random() < 0.15 else direction
                degree += direction
            else:
                degree += rng.choice([-2, 2, 4, -4])
            degree = min(max(degree, 0), 13)
            notes.append(1 + root + 12 * (degree // 7) + SCALE[degree % 7])
        return torch.tensor(notes)

    def __len__(self):
        return len(self.items)

    def __getitem__(self, index):
        return self.items[index]


def collate(batch):
    notes = pad_sequence([notes for notes, _ in batch], batch_first=True, padding_value=PAD)
    return notes, torch.tensor([style for _, style in batch])


class Layer(nn.Module):
    def __init__(self, dim, dropout):
        super().__init__()
        self.attention = MultiHeadAttention(dim, heads=4, dropout=dropout)
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 2 * dim), nn.GELU(), nn.Dropout(dropout), nn.Linear(2 * dim, dim))

    def forward(self, x, mask):
        x = x + self.attention(self.norm1(x), mask)
        return x + self.mlp(self.norm2(x))


class StyleEncoder(nn.Module):
    def __init__(self, dim=40, layers=2, dropout=0.2):
        super().__init__()
        self.notes = nn.Embedding(RANGE, dim, padding_idx=PAD)
        self.intervals = nn.Embedding(2 * RANGE, dim)
        self.layers = nn.ModuleList(Layer(dim, dropout) for _ in range(layers))
        self.head = nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, len(STYLES)))

    def forward(self, notes):
        mask = notes != PAD
        x = self.notes(notes) + self.intervals(notes.diff(prepend=notes[:, :1]) + RANGE)
        for layer in self.layers:
            x = layer(x, mask)
        summed = (x * mask[..., None]).sum(1)
        return self.head(summed / mask.sum(1, keepdim=True))


@torch.no_grad()
def validate(model: nn.Module, loader: DataLoader) -> tuple[float, float]:
    model.eval()
    loss = hits = 0.0
    for notes, styles in loader:
        logits = model(notes)
        loss += nn.functional.cross_entropy(logits, styles, reduction="sum").item()
        hits += (logits.argmax(1) == styles).sum().item()
    return loss / len(loader.dataset), hits / len(loader.dataset)


def run(args: argparse.Namespace) -> None:
    torch.manual_seed(args.seed)
    train = DataLoader(Melodies(args.melodies, args.seed), 32, shuffle=True, collate_fn=collate)
    val = DataLoader(Melodies(96, args.seed + 1), 48, collate_fn=collate)
    model = StyleEncoder(dropout=args.dropout)
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    for epoch in range(args.epochs):
        model.train()
        for notes, styles in train:
            loss = nn.functional.cross_entropy(model(notes), styles)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        val_loss, val_accuracy = validate(model, val)
        print(f"[{epoch}] train {loss.item():.3f}  validation {val_loss:.3f}  accuracy {val_accuracy:.3f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--melodies", type=int, default=320)
    parser.add_argument("--dropout", type=float, default=0.2)
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--seed", type=int, default=0)
    run(parser.parse_args())
