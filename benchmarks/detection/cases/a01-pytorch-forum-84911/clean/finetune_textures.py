"""Fine-tune a small DenseNet on textures: a new head, with batch statistics that adapt to the new images."""

import argparse
import tempfile
from pathlib import Path

import torch
import torch.nn.functional as F
from densenet import NarrowDenseNet, fit_filters
from textures import KINDS, texture_set
from torch import nn
from torch.optim import SGD, Optimizer
from torch.utils.data import DataLoader


def load_backbone(path: Path) -> NarrowDenseNet:
    """The network with the weights from a file and a fresh head."""
    model = NarrowDenseNet(num_classes=10)
    model.load_state_dict(torch.load(path, weights_only=True))
    model.classifier = nn.Linear(model.classifier.in_features, len(KINDS))
    return model


def freeze_backbone(model: NarrowDenseNet) -> None:
    for module in model.modules():
        if not isinstance(module, nn.BatchNorm2d) and module is not model.classifier:
            for parameter in module.parameters(recurse=False):
                parameter.requires_grad = False


def train_one_epoch(model: nn.Module, loader: DataLoader, optimizer: Optimizer) -> float:
    model.train()
    losses = []
    for images, labels in loader:
        loss = F.cross_entropy(model(images), labels)
        model.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return sum(losses) / len(losses)


@torch.no_grad()
def accuracy(model: nn.Module, loader: DataLoader) -> float:
    model.eval()
    right = sum((model(images).argmax(1) == labels).sum().item() for images, labels in loader)
    return right / len(loader.dataset)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--per-class", type=int, default=64)
    parser.add_argument("--batch-size", type=int, default=40)
    parser.add_argument("--lr", type=float, default=0.02)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.manual_seed(args.seed)

    with tempfile.TemporaryDirectory() as folder:
        weights = Path(folder) / "densenet.pt"
        fit_filters(texture_set(30, args.seed + 500).tensors[0], weights)
        model = load_backbone(weights)
    freeze_backbone(model)
    optimizer = SGD(model.classifier.parameters(), lr=args.lr, momentum=0.9)

    train_loader = DataLoader(texture_set(args.per_class, args.seed), args.batch_size, shuffle=True)
    test_loader = DataLoader(texture_set(24, args.seed + 1000), batch_size=60)
    print(f"before: test accuracy {accuracy(model, test_loader):.3f}")
    for epoch in range(1, args.epochs + 1):
        loss = train_one_epoch(model, train_loader, optimizer)
        print(f"epoch {epoch}: loss {loss:.4f}, test accuracy {accuracy(model, test_loader):.3f}")


if __name__ == "__main__":
    main()
