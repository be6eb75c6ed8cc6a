"""One shared encoder, three tasks: name a turned digit, say how far it is turned, and draw it from its code."""

import argparse

import torch
import torch.nn as nn
from sklearn.datasets import load_digits
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import DataLoader, TensorDataset


class Encoder(nn.Module):
    def __init__(self, code_size):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 32, kernel_size=3, padding=1)
        self.bn1 = nn.BatchNorm2d(32)
        self.conv2 = nn.Conv2d(32, 64, kernel_size=3, padding=1)
        self.bn2 = nn.BatchNorm2d(64)
        self.pool = nn.MaxPool2d(2)
        self.act = nn.ELU()
        self.to_code = nn.Linear(64 * 2 * 2, code_size)

    def forward(self, x):
        x = self.pool(self.act(self.bn1(self.conv1(x))))
        x = self.pool(self.act(self.bn2(self.conv2(x))))
        return self.act(self.to_code(x.flatten(1)))


class MultiTaskNet(nn.Module):
    def __init__(self, code_size=64):
        super().__init__()
        self.encoder = Encoder(code_size)
        self.dropout = nn.Dropout(0.2)
        self.digit_head = nn.Linear(code_size, 10)
        self.turn_head = nn.Linear(code_size, 4)
        self.decoder = nn.Sequential(nn.Linear(code_size, 128), nn.ELU(), nn.Linear(128, 64))

    def forward(self, x):
        code = self.encoder(x)
        features = self.dropout(code)
        return {
            "digit": self.digit_head(features),
            "turn": self.turn_head(features),
            "image": self.decoder(code).view_as(x),
        }


class MultiTaskLoss(nn.Module):
    def __init__(self, weights):
        super().__init__()
        self.weights = weights
        self.digit = nn.CrossEntropyLoss()
        self.turn = nn.CrossEntropyLoss()
        self.image = nn.MSELoss()

    def forward(self, outputs, targets):
        parts = {task: getattr(self, task)(outputs[task], targets[task]) for task in self.weights}
        return sum(self.weights[task] * part for task, part in parts.items()), parts


def turned_digits():
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16.0
    turns = torch.randint(0, 4, (len(images),))
    turned = torch.stack([torch.rot90(image, int(k), dims=(1, 2)) for image, k in zip(images, turns, strict=True)])
    return turned, torch.tensor(digits.target), turns


def train_one_epoch(net, loader, loss_fn, optimizer):
    net.train()
    sums = dict.fromkeys(loss_fn.weights, 0.0)
    for images, digits, turns in loader:
        loss, parts = loss_fn(net(images), {"digit": digits, "turn": turns, "image": images})
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        for task, part in parts.items():
            sums[task] += part.item()
    return {task: value / len(loader) for task, value in sums.items()}


def evaluate(net, loader):
    net.eval()
    right = {"digit": 0, "turn": 0}
    confidence, squared_error, count = 0.0, 0.0, 0
    with torch.no_grad():
        for images, digits, turns in loader:
            outputs = net(images)
            probs = torch.softmax(outputs["digit"], dim=1)
            confidence += probs.max(dim=1).values.sum().item()
            right["digit"] += (probs.argmax(dim=1) == digits).sum().item()
            right["turn"] += (outputs["turn"].argmax(dim=1) == turns).sum().item()
            squared_error += (outputs["image"] - images).square().mean(dim=(1, 2, 3)).sum().item()
            count += len(images)
    return {
        "digit accuracy": right["digit"] / count,
        "confidence": confidence / count,
        "turn accuracy": right["turn"] / count,
        "pixel error": (squared_error / count) ** 0.5,
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--weights", type=float, nargs=3, default=[1.0, 0.5, 2.0], metavar=("DIGIT", "TURN", "IMAGE"))
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    images, digits, turns = turned_digits()
    train_set = TensorDataset(images[:1440], digits[:1440], turns[:1440])
    test_set = TensorDataset(images[1440:], digits[1440:], turns[1440:])
    train_loader = DataLoader(train_set, batch_size=90, shuffle=True)
    test_loader = DataLoader(test_set, batch_size=120)

    net = MultiTaskNet()
    loss_fn = MultiTaskLoss(dict(zip(("digit", "turn", "image"), args.weights, strict=True)))
    optimizer = torch.optim.RMSprop(net.parameters(), lr=args.lr, alpha=0.95)
    scheduler = StepLR(optimizer, step_size=2, gamma=0.3)

    for epoch in range(args.epochs):
        losses = train_one_epoch(net, train_loader, loss_fn, optimizer)
        scheduler.step()
        metrics = evaluate(net, test_loader)
        print(f"epoch {epoch}  losses: " + ", ".join(f"{task} {value:.3f}" for task, value in losses.items()))
        print("         test: " + ", ".join(f"{name} {value:.3f}" for name, value in metrics.items()))
