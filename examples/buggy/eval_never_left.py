"""Bug: validate() switches to eval mode and nothing switches back, so from the second epoch on there is
no dropout and the batch norms use statistics that no longer move.

A 1-d CNN classifies noisy waveforms: sine, square, triangle and sawtooth.
"""

import argparse
import math

import torch
from torch import nn, optim


def waveforms(n, length=64, noise=0.5):
    phase = torch.rand(n, 1)
    periods = 1.5 + 2 * torch.rand(n, 1)
    t = (periods * torch.linspace(0, 1, length) + phase) % 1.0
    sine = torch.sin(2 * math.pi * t)
    shapes = torch.stack([sine, sine.sign(), 1 - 4 * (t - 0.5).abs(), 2 * t - 1], dim=1)
    labels = torch.randint(4, (n,))
    signal = shapes[torch.arange(n), labels]
    return (signal + noise * torch.randn(n, length)).unsqueeze(1), labels


def conv_block(c_in, c_out, p):
    return nn.Sequential(
        nn.Conv1d(c_in, c_out, kernel_size=5, padding=2),
        nn.BatchNorm1d(c_out),
        nn.ReLU(),
        nn.MaxPool1d(2),
        nn.Dropout(p),
    )


class WaveNet(nn.Module):
    def __init__(self, p):
        super().__init__()
        self.features = nn.Sequential(conv_block(1, 32, p), conv_block(32, 64, p), conv_block(64, 64, p))
        self.classifier = nn.Linear(64 * 8, 4)

    def forward(self, x):
        return self.classifier(self.features(x).flatten(1))


def validate(model, x, y, criterion):
    model.eval()
    with torch.no_grad():
        logits = model(x)
        return criterion(logits, y).item(), (logits.argmax(1) == y).float().mean().item()


def main(opt):
    torch.manual_seed(opt.seed)
    x_train, y_train = waveforms(1024)
    x_val, y_val = waveforms(400)

    model = WaveNet(opt.dropout)
    criterion = nn.CrossEntropyLoss()
    optimizer = optim.SGD(model.parameters(), lr=opt.lr, momentum=0.9, nesterov=True)

    model.train()
    for epoch in range(opt.epochs):
        epoch_loss = 0.0
        for idx in torch.randperm(len(x_train)).split(opt.batch_size):
            optimizer.zero_grad()
            loss = criterion(model(x_train[idx]), y_train[idx])
            loss.backward()
            optimizer.step()
            epoch_loss += loss.item() * len(idx)
        val_loss, val_acc = validate(model, x_val, y_val, criterion)
        print(f"Epoch {epoch:2d} | train {epoch_loss / len(x_train):.4f} | val {val_loss:.4f} | acc {val_acc:.3f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="waveform classifier")
    parser.add_argument("--lr", type=float, default=0.005)
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--dropout", type=float, default=0.2)
    parser.add_argument("--seed", type=int, default=0)
    main(parser.parse_args())
