"""Denoising autoencoder on augmented digits: loader workers, a plateau schedule, and a run that stops and resumes."""

import argparse
import tempfile
from pathlib import Path

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.optim.lr_scheduler import ReduceLROnPlateau
from torch.utils.data import DataLoader, Dataset


class NoisyDigits(Dataset):
    """Pairs of a shifted digit and a noisy copy of it; shift and noise are drawn anew each time."""

    def __init__(self, images, noise=0.3):
        self.images = images
        self.noise = noise

    def __len__(self):
        return len(self.images)

    def __getitem__(self, i):
        clean = np.roll(self.images[i], np.random.randint(-1, 2, size=2), axis=(0, 1))
        noisy = clean + self.noise * np.random.randn(*clean.shape)
        return torch.from_numpy(noisy[None]).float(), torch.from_numpy(clean[None]).float()


def make_model(width):
    return nn.Sequential(
        nn.Conv2d(1, width, 3, padding=1),
        nn.GroupNorm(4, width),
        nn.GELU(),
        nn.Conv2d(width, width, 3, stride=2, padding=1),
        nn.GroupNorm(4, width),
        nn.GELU(),
        nn.ConvTranspose2d(width, width, 2, stride=2),
        nn.GELU(),
        nn.Conv2d(width, 1, 3, padding=1),
        nn.Sigmoid(),
    )


class Session:
    """Everything that a resumed run has to get back."""

    def __init__(self, args):
        self.model = make_model(args.width)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=args.lr, momentum=0.9, nesterov=True)
        self.scheduler = ReduceLROnPlateau(self.optimizer, factor=0.5, patience=0)
        self.epoch = 0

    def save(self, path):
        parts = {name: getattr(self, name).state_dict() for name in ("model", "optimizer", "scheduler")}
        torch.save({**parts, "epoch": self.epoch}, path)

    def load(self, path):
        state = torch.load(path)
        for name in ("model", "optimizer", "scheduler"):
            getattr(self, name).load_state_dict(state[name])
        self.epoch = state["epoch"]

    def run(self, until, train_loader, val_loader):
        while self.epoch < until:
            self.model.train()
            for noisy, clean in train_loader:
                loss = nn.functional.mse_loss(self.model(noisy), clean)
                self.optimizer.zero_grad()
                loss.backward()
                self.optimizer.step()
            self.model.eval()
            with torch.no_grad():
                errors = [nn.functional.mse_loss(self.model(noisy), clean).item() for noisy, clean in val_loader]
            self.scheduler.step(np.mean(errors))
            self.epoch += 1
            print(f"epoch {self.epoch}: train {loss.item():.4f}, val {np.mean(errors):.4f}")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--batch-size", type=int, default=50)
    parser.add_argument("--lr", type=float, default=0.5)
    parser.add_argument("--width", type=int, default=16)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    np.random.seed(args.seed)

    images = load_digits().images / 16.0
    workers = {"num_workers": args.workers, "persistent_workers": args.workers > 0}
    train_loader = DataLoader(NoisyDigits(images[:1200]), args.batch_size, shuffle=True, **workers)
    val_loader = DataLoader(NoisyDigits(images[1200:]), 128)

    with tempfile.TemporaryDirectory() as folder:
        checkpoint = Path(folder) / "session.pt"
        session = Session(args)
        session.run(args.epochs // 2, train_loader, val_loader)
        session.save(checkpoint)

        session = Session(args)
        session.load(checkpoint)
        session.run(args.epochs, train_loader, val_loader)


if __name__ == "__main__":
    main()
