"""A recurrent classifier of time series, trained in two parts: save everything, throw it away, restore, go on."""

import argparse
import random
import tempfile
from pathlib import Path

import numpy as np
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset

CLASSES = ("random walk", "mean reverting", "trend", "seasonal")


def make_series(count, length, seed):
    """Noisy series of four kinds, each standardized."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, len(CLASSES), size=count)
    noise = rng.normal(size=(count, length))
    time = np.arange(length)
    series = np.empty((count, length))
    for i, label in enumerate(labels):
        if label == 0:
            series[i] = np.cumsum(noise[i])
        elif label == 1:
            series[i, 0] = noise[i, 0]
            for t in range(1, length):
                series[i, t] = 0.5 * series[i, t - 1] + noise[i, t]
        elif label == 2:
            series[i] = rng.choice([-1, 1]) * rng.uniform(0.15, 0.3) * time + noise[i]
        else:
            series[i] = 2.5 * np.sin(2 * np.pi * (time / rng.uniform(6, 10) + rng.random())) + noise[i]
    series = (series - series.mean(1, keepdims=True)) / series.std(1, keepdims=True)
    return TensorDataset(torch.from_numpy(series).float().unsqueeze(-1), torch.from_numpy(labels))


class SeriesClassifier(nn.Module):
    def __init__(self, hidden=48, dropout=0.2):
        super().__init__()
        self.gru = nn.GRU(2, hidden, num_layers=2, dropout=dropout, batch_first=True, bidirectional=True)
        self.head = nn.Sequential(nn.Dropout(dropout), nn.Linear(4 * hidden, len(CLASSES)))

    def forward(self, series):
        change = torch.diff(series, dim=1, prepend=series[:, :1])
        states, _ = self.gru(torch.cat([series, change], dim=-1))
        return self.head(torch.cat([states.mean(dim=1), states.amax(dim=1)], dim=-1))


def build(args, device):
    model = SeriesClassifier().to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=args.epochs)
    scaler = torch.amp.GradScaler(device, init_scale=2.0**14)
    return model, optimizer, scheduler, scaler


def save_checkpoint(path, epoch, model, optimizer, scheduler, scaler, shuffler):
    checkpoint = {
        "epoch": epoch,
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "scheduler": scheduler.state_dict(),
        "scaler": scaler.state_dict(),
        "rng": {
            "python": random.getstate(),
            "numpy": np.random.get_state(),
            "torch": torch.get_rng_state(),
            "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
            "shuffler": shuffler.get_state(),
        },
    }
    unfinished = path.with_suffix(".tmp")
    torch.save(checkpoint, unfinished)
    unfinished.replace(path)  # a run that is killed while it saves leaves the old checkpoint whole


def load_checkpoint(path, model, optimizer, scheduler, scaler, shuffler):
    """Put everything back and return the epoch to go on with."""
    # our own file; the state of numpy's generator is not a tensor
    checkpoint = torch.load(path, map_location="cpu", weights_only=False)
    model.load_state_dict(checkpoint["model"])
    optimizer.load_state_dict(checkpoint["optimizer"])
    scheduler.load_state_dict(checkpoint["scheduler"])
    scaler.load_state_dict(checkpoint["scaler"])
    rng = checkpoint["rng"]
    random.setstate(rng["python"])
    np.random.set_state(rng["numpy"])
    torch.set_rng_state(rng["torch"])
    if rng["cuda"]:
        torch.cuda.set_rng_state_all(rng["cuda"])
    shuffler.set_state(rng["shuffler"])
    return checkpoint["epoch"] + 1


def train_epoch(model, loader, optimizer, scaler, device):
    model.train()
    losses = []
    for series, labels in loader:
        series, labels = series.to(device), labels.to(device)
        optimizer.zero_grad()
        with torch.autocast(device, dtype=torch.float16):
            loss = nn.functional.cross_entropy(model(series), labels)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 0.2)
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.item())
    return np.mean(losses)


@torch.no_grad()
def accuracy(model, loader, device):
    model.eval()
    hits = sum((model(x.to(device)).argmax(-1).cpu() == y).sum().item() for x, y in loader)
    return hits / len(loader.dataset)


def run(args, checkpoint_path, last_epoch):
    """Train up to and including `last_epoch`, from the checkpoint where there is one."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    random.seed(args.seed)
    np.random.seed(args.seed)
    torch.manual_seed(args.seed)

    shuffler = torch.Generator().manual_seed(args.seed)
    train_loader = DataLoader(make_series(512, args.length, seed=1), 64, shuffle=True, generator=shuffler)
    val_loader = DataLoader(make_series(256, args.length, seed=2), 256)
    model, optimizer, scheduler, scaler = build(args, device)

    first_epoch = 0
    if checkpoint_path.exists():
        first_epoch = load_checkpoint(checkpoint_path, model, optimizer, scheduler, scaler, shuffler)
        print(f"restored: epoch {first_epoch} comes next")

    for epoch in range(first_epoch, last_epoch + 1):
        lr = scheduler.get_last_lr()[0]
        loss = train_epoch(model, train_loader, optimizer, scaler, device)
        scheduler.step()
        print(f"epoch {epoch}: lr {lr:.5f}  loss {loss:.4f}  accuracy {accuracy(model, val_loader, device):.3f}")
        save_checkpoint(checkpoint_path, epoch, model, optimizer, scheduler, scaler, shuffler)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--stop-after", type=int, default=2, help="epochs before the run is cut")
    parser.add_argument("--lr", type=float, default=5e-3)
    parser.add_argument("--length", type=int, default=24, help="points per series")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    with tempfile.TemporaryDirectory() as folder:
        checkpoint_path = Path(folder) / "last.pt"
        run(args, checkpoint_path, last_epoch=args.stop_after - 1)
        print("-- cut here --")
        run(args, checkpoint_path, last_epoch=args.epochs - 1)


if __name__ == "__main__":
    main()
