"""Momentum contrast on digits: keys of a slow encoder wait in a queue as negatives; a linear probe judges it."""

import argparse
import copy
import math

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def encoder(dim):
    return nn.Sequential(
        nn.Conv2d(1, 24, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(24, 32, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Dropout(0.1),
        nn.Linear(32 * 16, dim),
    )


def augment(images, generator):
    """Shifted by up to a pixel, of another contrast, with noise."""
    dy, dx = torch.randint(-1, 2, (2,), generator=generator).tolist()
    contrast = 0.7 + 0.6 * torch.rand(len(images), 1, 1, 1, generator=generator)
    shifted = torch.roll(images, (dy, dx), dims=(2, 3)) * contrast
    return shifted + 0.1 * torch.randn(images.shape, generator=generator)


class MoCo(nn.Module):
    def __init__(self, dim=32, length=512, momentum=0.98, temperature=0.2):
        super().__init__()
        self.length = length
        self.momentum = momentum
        self.temperature = temperature
        self.query = encoder(dim)
        self.key = copy.deepcopy(self.query).requires_grad_(False)
        self.register_buffer("queue", F.normalize(torch.randn(length, dim), dim=1))
        self.register_buffer("place", torch.zeros(1, dtype=torch.long))

    def train(self, mode=True):
        super().train(mode)
        self.key.eval()  # no dropout in the keys
        return self

    @torch.no_grad()
    def keys_of(self, images):
        for slow, fast in zip(self.key.parameters(), self.query.parameters(), strict=True):
            slow.lerp_(fast, 1 - self.momentum)
        return F.normalize(self.key(images), dim=1)

    @torch.no_grad()
    def enqueue(self, keys):
        where = (self.place + torch.arange(len(keys))) % self.length
        self.queue[where] = keys
        self.place.copy_((self.place + len(keys)) % self.length)

    def forward(self, one, other):
        """The contrastive loss of two views of the same images."""
        queries = F.normalize(self.query(one), dim=1)
        keys = self.keys_of(other)
        positive = (queries * keys).sum(1, keepdim=True)
        negative = queries @ self.queue.t().clone()
        logits = torch.cat([positive, negative], dim=1) / self.temperature
        self.enqueue(keys)
        return F.cross_entropy(logits, torch.zeros(len(logits), dtype=torch.long))


def probe_accuracy(model, images, labels, half):
    """A linear classifier on frozen features: solved on the first half, tested on the second."""
    model.eval()
    with torch.no_grad():
        features = F.normalize(model.query(images), dim=1)
    features = torch.cat([features, torch.ones(len(features), 1)], dim=1)
    targets = F.one_hot(labels, 10).float()
    weights = torch.linalg.lstsq(features[:half], targets[:half]).solution
    return ((features[half:] @ weights).argmax(1) == labels[half:]).float().mean().item()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--lr", type=float, default=0.06)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    generator = torch.Generator().manual_seed(args.seed)

    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16.0
    labels = torch.as_tensor(digits.target)
    loader = DataLoader(TensorDataset(images), batch_size=args.batch_size, shuffle=True, drop_last=True)

    model = MoCo()
    optimizer = torch.optim.SGD(model.query.parameters(), lr=args.lr, momentum=0.9, weight_decay=1e-4)
    total = args.epochs * len(loader)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: (1 + math.cos(math.pi * step / total)) / 2)
    for epoch in range(args.epochs):
        model.train()
        for (batch,) in loader:
            loss = model(augment(batch, generator), augment(batch, generator))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
        accuracy = probe_accuracy(model, images, labels, half=900)
        print(f"epoch {epoch}: loss {loss.item():.3f}, probe accuracy {accuracy:.3f}")


if __name__ == "__main__":
    main()
