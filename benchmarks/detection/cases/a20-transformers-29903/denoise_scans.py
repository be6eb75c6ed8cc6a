"""Take the noise out of made-up scans with a small convolutional network; a sharded checkpoint after each epoch."""

import argparse
import shutil
import tempfile
from pathlib import Path

import torch
from shards import save_sharded
from torch import nn


class ResidualDenoiser(nn.Module):
    """Predicts the noise, which is then taken off."""

    def __init__(self, channels, depth=3):
        super().__init__()
        layers = [nn.Conv2d(1, channels, 3, padding=1), nn.LeakyReLU(0.1)]
        for _ in range(depth - 2):
            layers += [nn.Conv2d(channels, channels, 3, padding=1), nn.LeakyReLU(0.1)]
        self.noise = nn.Sequential(*layers, nn.Conv2d(channels, 1, 3, padding=1))

    def forward(self, x):
        return x - self.noise(x)


class ScanMaker:
    """Clean scans of overlapping soft ellipses, and the same with grain."""

    def __init__(self, seed, size=20, grain=0.25):
        self.generator = torch.Generator().manual_seed(seed)
        self.size, self.grain = size, grain

    def make(self, count):
        axis = torch.linspace(-1, 1, self.size)
        y, x = axis[None, None, :, None], axis[None, None, None, :]
        cy, cx, ry, rx = torch.rand(4, count, 4, 1, 1, generator=self.generator)
        inside = 1 - ((y - 1.6 * cy + 0.8) / (0.2 + ry / 2)) ** 2 - ((x - 1.6 * cx + 0.8) / (0.2 + rx / 2)) ** 2
        clean = torch.sigmoid(12 * inside).mean(1, keepdim=True)
        noisy = clean + self.grain * torch.randn(clean.shape, generator=self.generator)
        return noisy.to(memory_format=torch.channels_last), clean


def psnr(model, noisy, clean):
    model.eval()
    with torch.no_grad():
        error = nn.functional.mse_loss(model(noisy), clean)
    return -10 * error.log10().item()


def main(args, out):
    torch.manual_seed(args.seed)
    noisy, clean = ScanMaker(args.seed).make(args.scans)
    test_noisy, test_clean = ScanMaker(args.seed + 1).make(48)
    model = ResidualDenoiser(args.channels).to(memory_format=torch.channels_last)
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    best = psnr(model, test_noisy, test_clean)
    print(f"untrained: {best:.2f} dB")

    for epoch in range(args.epochs):
        model.train()
        for rows in torch.randperm(len(noisy)).split(args.batch_size):
            loss = nn.functional.mse_loss(model(noisy[rows]), clean[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        reached = psnr(model, test_noisy, test_clean)
        files = save_sharded(model.state_dict(), out / f"epoch-{epoch}", max_bytes=4096)
        if reached > best:
            best = reached
            shutil.copytree(out / f"epoch-{epoch}", out / "best", dirs_exist_ok=True)
        print(f"epoch {epoch}: loss {loss.item():.5f}, {reached:.2f} dB, saved in {len(files)} files")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--scans", type=int, default=256)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--channels", type=int, default=16)
    parser.add_argument("--lr", type=float, default=5e-3)
    parser.add_argument("--seed", type=int, default=0)
    with tempfile.TemporaryDirectory() as folder:
        main(parser.parse_args(), Path(folder))
