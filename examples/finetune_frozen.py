"""Transfer learning in small: pretrain on digits 0-4, freeze the backbone, learn 5-9 with a new head."""

import argparse
import io
import random

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split


def seed_everything(seed: int) -> None:
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


class Backbone(nn.Sequential):
    out_features = 128

    def __init__(self):
        super().__init__(
            nn.Conv2d(1, 32, 3, padding=1, bias=False),
            nn.BatchNorm2d(32),
            nn.ReLU(),
            nn.Conv2d(32, 64, 3, padding=1, bias=False),
            nn.BatchNorm2d(64),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(64, 128, 3, padding=1, bias=False),
            nn.BatchNorm2d(128),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
        )


class Classifier(nn.Module):
    def __init__(self, n_classes: int):
        super().__init__()
        self.backbone = Backbone()
        self.head = nn.Linear(Backbone.out_features, n_classes)

    def freeze_backbone(self) -> None:
        for param in self.backbone.parameters():
            param.requires_grad = False

    def train(self, mode: bool = True) -> "Classifier":
        super().train(mode)
        if not any(param.requires_grad for param in self.backbone.parameters()):
            self.backbone.eval()  # keeps the running statistics of the frozen batch norms
        return self

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.backbone(x))


def digits_dataset(classes: range) -> TensorDataset:
    digits = load_digits()
    keep = np.isin(digits.target, list(classes))
    images = torch.as_tensor(digits.images[keep] / 16.0, dtype=torch.float32)[:, None]
    labels = torch.as_tensor(digits.target[keep] - classes.start)
    return TensorDataset(images, labels)


def pretrain(model: Classifier, loader: DataLoader, epochs: int, lr: float) -> None:
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.Adam(model.parameters(), lr=lr)
    model.train()
    for epoch in range(epochs):
        total = 0.0
        for images, labels in loader:
            loss = criterion(model(images), labels)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            total += loss.item() * len(labels)
        print(f"[pretrain] epoch {epoch}: loss {total / len(loader.dataset):.4f}")


def finetune(model: Classifier, train_loader: DataLoader, val_loader: DataLoader, epochs: int, lr: float) -> None:
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.Adam(model.head.parameters(), lr=lr)
    for epoch in range(epochs):
        model.train()
        total = 0.0
        for images, labels in train_loader:
            loss = criterion(model(images), labels)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            total += loss.item() * len(labels)
        accuracy = evaluate(model, val_loader)
        print(f"[finetune] epoch {epoch}: loss {total / len(train_loader.dataset):.4f}, val accuracy {accuracy:.3f}")


@torch.no_grad()
def evaluate(model: nn.Module, loader: DataLoader) -> float:
    model.eval()
    correct = sum((model(images).argmax(1) == labels).sum().item() for images, labels in loader)
    return correct / len(loader.dataset)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pretrain-epochs", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--lr", type=float, default=3e-2, help="learning rate of the new head")
    parser.add_argument("--pretrain-lr", type=float, default=2e-3)
    parser.add_argument("--batch-size", type=int, default=48)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    seed_everything(args.seed)

    model = Classifier(n_classes=5)
    source = DataLoader(digits_dataset(range(0, 5)), batch_size=args.batch_size, shuffle=True)
    pretrain(model, source, args.pretrain_epochs, args.pretrain_lr)
    pretrained = io.BytesIO()  # in place of a file
    torch.save(model.backbone.state_dict(), pretrained)

    pretrained.seek(0)
    model = Classifier(n_classes=5)
    model.backbone.load_state_dict(torch.load(pretrained))
    model.freeze_backbone()

    train_set, val_set = random_split(digits_dataset(range(5, 10)), [0.8, 0.2])
    train_loader = DataLoader(train_set, batch_size=args.batch_size, shuffle=True)
    val_loader = DataLoader(val_set, batch_size=256)
    trainable = sum(p.numel() for p in model.parameters() if p.requires_grad)
    print(f"{trainable} of {sum(p.numel() for p in model.parameters())} parameters are trained")
    finetune(model, train_loader, val_loader, args.epochs, args.lr)
    torch.save(model.state_dict(), io.BytesIO())


if __name__ == "__main__":
    main()
