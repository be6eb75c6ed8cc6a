"""A residual MLP with gated blocks on digits: bfloat16 autocast and gradient accumulation."""

import argparse
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch.optim.lr_scheduler import OneCycleLR
from torch.utils.data import DataLoader, Dataset, Subset


@dataclass
class Config:
    epochs: int = 6
    micro_batch_size: int = 32
    accum_steps: int = 4
    max_lr: float = 3e-3
    weight_decay: float = 0.05
    max_grad_norm: float = 1.0
    seed: int = 0


class DigitsDataset(Dataset):
    def __init__(self):
        digits = load_digits()
        self.images = torch.tensor(digits.images, dtype=torch.float32) / 16.0
        self.labels = torch.tensor(digits.target)

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        return {"image": self.images[index], "label": self.labels[index]}


class Block(nn.Module):
    def __init__(self, dim, dropout):
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.up = nn.Linear(dim, 2 * dim)
        self.down = nn.Linear(dim, dim)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        value, gate = self.up(self.norm(x)).chunk(2, dim=-1)
        return x + self.dropout(self.down(value * F.silu(gate)))


class ResidualMLP(nn.Module):
    def __init__(self, dim=96, depth=3, dropout=0.1):
        super().__init__()
        self.stem = nn.Linear(64, dim)
        self.blocks = nn.Sequential(*(Block(dim, dropout) for _ in range(depth)))
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, 10)

    def forward(self, images):
        return self.head(self.norm(self.blocks(self.stem(images.flatten(1)))))


class Trainer:
    def __init__(self, model, train_set, val_set, config):
        self.model = model
        self.config = config
        self.train_loader = DataLoader(train_set, config.micro_batch_size, shuffle=True, drop_last=True)
        self.val_loader = DataLoader(val_set, 128)
        self.updates_per_epoch = len(self.train_loader) // config.accum_steps
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=config.max_lr, weight_decay=config.weight_decay)
        self.scheduler = OneCycleLR(
            self.optimizer, max_lr=config.max_lr, total_steps=config.epochs * self.updates_per_epoch
        )
        self.criterion = nn.CrossEntropyLoss(label_smoothing=0.05)

    def train_epoch(self):
        self.model.train()
        running = 0.0
        batches = iter(self.train_loader)
        for _ in range(self.updates_per_epoch):
            self.optimizer.zero_grad(set_to_none=False)
            for _ in range(self.config.accum_steps):
                batch = next(batches)
                with torch.autocast("cpu", dtype=torch.bfloat16):
                    logits = self.model(batch["image"])
                    loss = self.criterion(logits, batch["label"]) / self.config.accum_steps
                loss.backward()
                running += loss.item()
            nn.utils.clip_grad_norm_(self.model.parameters(), self.config.max_grad_norm)
            self.optimizer.step()
            self.scheduler.step()
        return running / self.updates_per_epoch

    @torch.inference_mode()
    def validate(self):
        self.model.eval()
        hits = total = 0
        for batch in self.val_loader:
            with torch.autocast("cpu", dtype=torch.bfloat16):
                logits = self.model(batch["image"])
            hits += (logits.argmax(-1) == batch["label"]).sum().item()
            total += len(batch["label"])
        return hits / total

    def fit(self):
        for epoch in range(self.config.epochs):
            loss = self.train_epoch()
            accuracy = self.validate()
            lr = self.scheduler.get_last_lr()[0]
            print(f"epoch {epoch}  train loss {loss:.4f}  val acc {accuracy:.4f}  lr {lr:.2e}")


def parse_config():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    defaults = Config()
    for name, value in vars(defaults).items():
        parser.add_argument("--" + name.replace("_", "-"), type=type(value), default=value)
    return Config(**vars(parser.parse_args()))


if __name__ == "__main__":
    config = parse_config()
    torch.manual_seed(config.seed)
    dataset = DigitsDataset()
    order = torch.randperm(len(dataset)).tolist()
    Trainer(ResidualMLP(), Subset(dataset, order[:1500]), Subset(dataset, order[1500:]), config).fit()
