"""The clean twin of frozen_head.py: the head is unfrozen, and the optimizer holds all that is trained.

A small ResNet learns to tell how a digit was rotated; its batch norms and a new head should then learn the digits.
"""

import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset


class BasicBlock(nn.Module):
    def __init__(self, in_planes, planes, stride=1):
        super().__init__()
        self.conv1 = nn.Conv2d(in_planes, planes, 3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(planes)
        self.conv2 = nn.Conv2d(planes, planes, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(planes)
        self.shortcut = nn.Sequential()
        if stride != 1 or in_planes != planes:
            self.shortcut = nn.Sequential(
                nn.Conv2d(in_planes, planes, 1, stride=stride, bias=False), nn.BatchNorm2d(planes)
            )

    def forward(self, x):
        out = F.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        return F.relu(out + self.shortcut(x))


class ResNetMini(nn.Module):
    def __init__(self, num_classes):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 16, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(16)
        self.layer1 = BasicBlock(16, 24, stride=2)
        self.layer2 = BasicBlock(24, 48, stride=2)
        self.fc = nn.Linear(48 * 4, num_classes)

    def forward(self, x):
        x = F.relu(self.bn1(self.conv1(x)))
        x = self.layer2(self.layer1(x))
        return self.fc(torch.flatten(x, 1))


def make_digits(count):
    """Digits of 8x8 pixels: ten fixed glyphs, shifted by up to a pixel, with noise on top."""
    glyphs = (torch.rand(10, 8, 8, generator=torch.Generator().manual_seed(7)) > 0.6).float()
    labels = torch.randint(10, (count,))
    shifts = torch.randint(-1, 2, (count, 2)).tolist()
    images = torch.stack([torch.roll(glyphs[k], move, (0, 1)) for k, move in zip(labels, shifts, strict=True)])
    return (images + 0.3 * torch.randn_like(images)).clamp(0, 1).unsqueeze(1), labels


def pretrained_resnet(images, steps=30, batch_size=64):
    model = ResNetMini(num_classes=4)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(steps):
        batch = images[torch.randint(len(images), (batch_size,))]
        turns = torch.randint(4, (batch_size,))
        rotated = torch.stack([torch.rot90(img, int(k), dims=(1, 2)) for img, k in zip(batch, turns, strict=True)])
        loss = F.cross_entropy(model(rotated), turns)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"pretrained on rotations, last loss {loss.item():.4f}")
    return model


def test(model, loader):
    model.eval()
    loss, correct = 0.0, 0
    with torch.no_grad():
        for images, labels in loader:
            logits = model(images)
            loss += F.cross_entropy(logits, labels, reduction="sum").item()
            correct += (logits.argmax(1) == labels).sum().item()
    return loss / len(loader.dataset), correct / len(loader.dataset)


def main():
    parser = argparse.ArgumentParser(description="fine-tune a small ResNet on digits")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--lr", type=float, default=0.02)
    parser.add_argument("--batch-size", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.manual_seed(args.seed)

    images, labels = make_digits(1797)
    train_loader = DataLoader(TensorDataset(images[:1400], labels[:1400]), args.batch_size, shuffle=True)
    test_loader = DataLoader(TensorDataset(images[1400:], labels[1400:]), batch_size=200)

    model = pretrained_resnet(images[:1400])
    model.fc = nn.Linear(model.fc.in_features, 10)

    # only the batch norms and the head adapt to the new task
    for module in model.modules():
        if not isinstance(module, nn.BatchNorm2d):
            for param in module.parameters(recurse=False):
                param.requires_grad = False
    for param in model.fc.parameters():
        param.requires_grad = True

    trainable = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.SGD(trainable, lr=args.lr, momentum=0.9)

    for epoch in range(args.epochs):
        model.train()
        running_loss = 0.0
        for inputs, targets in train_loader:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(inputs), targets)
            loss.backward()
            optimizer.step()
            running_loss += loss.item() * len(targets)
        test_loss, accuracy = test(model, test_loader)
        print(
            f"epoch {epoch}: train loss {running_loss / len(train_loader.dataset):.4f}  "
            f"test loss {test_loss:.4f}  test accuracy {accuracy:.3f}"
        )


if __name__ == "__main__":
    main()
