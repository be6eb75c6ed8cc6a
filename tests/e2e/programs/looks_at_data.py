"""Trains a small classifier after it has looked at its data in one of several ways (the first argument)."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

way = sys.argv[1]
torch.manual_seed(0)
inputs = torch.randn(96, 8)
labels = inputs[:, :3].argmax(1)
training = DataLoader(TensorDataset(inputs, labels), batch_size=16, shuffle=True)
validation = DataLoader(TensorDataset(inputs[:48], labels[:48]), batch_size=16)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)


def train(x: torch.Tensor, y: torch.Tensor) -> None:
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()


def endless() -> Iterator[list[torch.Tensor]]:
    while True:
        yield from training


def validate() -> float:
    model.eval()
    with torch.no_grad():
        hits = sum(int((model(x).argmax(1) == y).sum()) for x, y in validation)
    model.train()
    return hits / 48


kept = []
if way == "next":
    print(next(iter(training))[0].shape, next(iter(validation))[0].shape)
elif way == "kept":
    for loader in (training, validation):
        kept.append(iter(loader))
        print(next(kept[-1])[0].shape)
elif way == "preview":
    for index, batch in enumerate(training):
        print(batch[0].shape)
        if index == 2:
            break
elif way == "seeded":
    torch.manual_seed(1)
    print(next(iter(training))[0].shape)
    torch.manual_seed(1)

if way == "each step":
    for _ in range(30):
        train(*next(iter(training)))
elif way == "endless":
    batches = endless()
    for _ in range(33):
        train(*next(batches))
else:
    for _ in range(4):
        for x, y in training:
            train(x, y)
        print(f"{validate():.2f}")
        if way == "shows":
            kept = [iter(validation)]
            print(model(next(kept[0])[0]).argmax(1))
        for x, y in training if way == "left out" and _ == 3 else ():
            train(x, y)
            break
