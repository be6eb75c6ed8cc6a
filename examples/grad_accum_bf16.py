"""A tiny vision transformer on digits: bfloat16 autocast and gradient accumulation."""

import argparse
from dataclasses import dataclass

import torch
import torch.nn as nn
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


class TinyViT(nn.Module):
    """Sees an 8x8 image as sixteen 2x2 patches."""

    def __init__(self, dim=96, depth=3, heads=4):
        super().__init__()
        self.patch_embed = nn.Linear(4, dim)
        self.cls_token = nn.Parameter(torch.zeros(1, 1, dim))
        self.pos_embed = nn.Parameter(0.02 * torch.randn(1, 17, dim))
        layer = nn.TransformerEncoderLayer(
            dim, heads, dim_feedforward=2 * dim, dropout=0.1, activation="gelu", batch_first=True, norm_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, depth, norm=nn.LayerNorm(dim), enable_nested_tensor=False)
        self.head = nn.Linear(dim, 10)

    def forward(self, images):
        b = images.shape[0]
        patches = images.reshape(b, 4, 2, 4, 2).transpose(2, 3).reshape(b, 16, 4)
        tokens = torch.cat([self.cls_token.expand(b, -1, -1), self.patch_embed(patches)], dim=1)
        return self.head(self.encoder(tokens + self.pos_embed)[:, 0])


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
    Trainer(TinyViT(), Subset(dataset, order[:1500]), Subset(dataset, order[1500:]), config).fit()
