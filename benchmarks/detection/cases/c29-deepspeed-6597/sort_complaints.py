"""Sort complaints by department with a bag of embeddings."""

import argparse
from dataclasses import dataclass, fields

import torch
import torch.nn.functional as F
from complaints import DEPARTMENTS, VOCABULARY, bag, write_complaints
from torch import nn
from torch.utils.data import DataLoader
from warmcurve import WarmupCosine


@dataclass
class Config:
    seed: int = 0
    texts: int = 640
    batch_size: int = 32
    epochs: int = 2
    width: int = 48
    lr: float = 1e-2
    warmup: int = 12
    weight_decay: float = 0.01

    @classmethod
    def from_command_line(cls):
        parser = argparse.ArgumentParser(description=__doc__)
        for field in fields(cls):
            parser.add_argument("--" + field.name.replace("_", "-"), type=type(field.default), default=field.default)
        return cls(**vars(parser.parse_args()))


class ComplaintSorter(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.words = nn.EmbeddingBag(VOCABULARY, width, mode="mean")
        self.norm = nn.LayerNorm(width)
        self.hidden = nn.Linear(width, 2 * width)
        self.dropout = nn.Dropout(0.1)
        self.out = nn.Linear(2 * width, len(DEPARTMENTS))

    def forward(self, words, starts):
        features = self.norm(self.words(words, starts))
        return self.out(self.dropout(F.silu(self.hidden(features))))


@torch.inference_mode()
def accuracy(model, loader):
    model.eval()
    hits = total = 0
    for words, starts, labels in loader:
        hits += (model(words, starts).argmax(-1) == labels).sum().item()
        total += len(labels)
    model.train()
    return hits / total


def main(config):
    torch.manual_seed(config.seed)
    train_set = list(zip(*write_complaints(config.texts, config.seed + 1), strict=True))
    test_set = list(zip(*write_complaints(200, config.seed + 2), strict=True))
    train_loader = DataLoader(train_set, config.batch_size, shuffle=True, drop_last=True, collate_fn=bag)
    test_loader = DataLoader(test_set, 100, collate_fn=bag)

    model = ComplaintSorter(config.width)
    optimizer = torch.optim.AdamW(model.parameters(), lr=config.lr, weight_decay=config.weight_decay)
    steps = config.epochs * len(train_loader)
    scheduler = WarmupCosine(optimizer, peak=config.lr, warmup_steps=config.warmup, total_steps=steps)

    print(f"before: accuracy {accuracy(model, test_loader):.3f}")
    for epoch in range(config.epochs):
        running = 0.0
        for words, starts, labels in train_loader:
            optimizer.zero_grad(set_to_none=True)
            loss = F.cross_entropy(model(words, starts), labels, label_smoothing=0.05)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            running += loss.item()
        mean = running / len(train_loader)
        print(f"epoch {epoch}: loss {mean:.4f}, accuracy {accuracy(model, test_loader):.3f}")


if __name__ == "__main__":
    main(Config.from_command_line())
