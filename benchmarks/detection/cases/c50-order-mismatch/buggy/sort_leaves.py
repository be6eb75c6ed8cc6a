"""Sort pressed leaves by the shape of their outline with a small residual network."""

import argparse

import numpy as np
import torch
import torch.nn as nn
from leaves import KINDS, press_leaves


class Batches:
    """Goes over pictures and labels in a new order each time, in batches."""

    def __init__(self, pictures, labels, batch_size, rng):
        self.pictures = pictures
        self.labels = labels
        self.batch_size = batch_size
        self.rng = rng

    def __len__(self):
        return len(self.pictures) // self.batch_size

    def __iter__(self):
        pictures = self.rng.permutation(self.pictures)
        labels = self.rng.permutation(self.labels)
        for first in range(0, len(self) * self.batch_size, self.batch_size):
            batch = slice(first, first + self.batch_size)
            yield torch.from_numpy(pictures[batch]), torch.from_numpy(labels[batch])


class ResidualBlock(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride=2, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(outputs, momentum=0.3)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(outputs, momentum=0.3)
        self.shortcut = nn.Conv2d(inputs, outputs, 1, stride=2)

    def forward(self, x):
        out = torch.relu(self.norm1(self.conv1(x)))
        return torch.relu(self.norm2(self.conv2(out)) + self.shortcut(x))


def make_model(width):
    return nn.Sequential(
        nn.Conv2d(1, width, 3, padding=1),
        ResidualBlock(width, 2 * width),
        ResidualBlock(2 * width, 4 * width),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(4 * width, len(KINDS)),
    )


def evaluate(model, pictures, labels):
    model.eval()
    with torch.no_grad():
        guesses = model(torch.from_numpy(pictures)).argmax(dim=1).numpy()
    return np.mean(guesses == labels)


parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--leaves", type=int, default=320)
parser.add_argument("--epochs", type=int, default=4)
parser.add_argument("--batch-size", type=int, default=32)
parser.add_argument("--width", type=int, default=8)
parser.add_argument("--lr", type=float, default=0.02)
parser.add_argument("--seed", type=int, default=0)

if __name__ == "__main__":
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    train_set = Batches(*press_leaves(args.leaves, args.seed), args.batch_size, np.random.default_rng(args.seed))
    test_pictures, test_labels = press_leaves(120, args.seed + 1)

    net = make_model(args.width)
    loss_function = nn.CrossEntropyLoss()
    sgd = torch.optim.SGD(net.parameters(), lr=args.lr, momentum=0.9, nesterov=True, weight_decay=1e-4)
    for epoch in range(1, args.epochs + 1):
        net.train()
        running = 0.0
        for pictures, labels in train_set:
            sgd.zero_grad()
            loss = loss_function(net(pictures), labels)
            loss.backward()
            sgd.step()
            running += loss.item()
        accuracy = evaluate(net, test_pictures, test_labels)
        print(f"[{epoch}/{args.epochs}] loss {running / len(train_set):.3f}  test accuracy {accuracy:.2f}")
