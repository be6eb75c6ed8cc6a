"""Forecasting with a dilated convolutional network in a loop of Accelerate, with accumulation and a saved state."""

import argparse
import math
import tempfile

import torch
import torch.nn as nn
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.optim.lr_scheduler import OneCycleLR
from torch.utils.data import DataLoader, Dataset


class Signals(Dataset):
    """Sums of two damped waves; the past is given, the next `horizon` values are asked for."""

    def __init__(self, count, past=48, horizon=8, seed=0):
        generator = torch.Generator().manual_seed(seed)
        time = torch.arange(past + horizon) / past
        frequency = 1 + 5 * torch.rand(count, 2, 1, generator=generator)
        phase = 2 * math.pi * torch.rand(count, 2, 1, generator=generator)
        decay = torch.rand(count, 2, 1, generator=generator)
        waves = torch.exp(-decay * time) * torch.sin(2 * math.pi * frequency * time + phase)
        signal = waves.sum(1) + 0.03 * torch.randn(count, past + horizon, generator=generator)
        self.past, self.future = signal[:, :past], signal[:, past:]

    def __len__(self):
        return len(self.past)

    def __getitem__(self, i):
        return {"past": self.past[i], "future": self.future[i]}


class CausalConv(nn.Module):
    def __init__(self, channels, dilation):
        super().__init__()
        self.pad = dilation
        self.conv = nn.Conv1d(channels, 2 * channels, kernel_size=2, dilation=dilation)
        self.skip = nn.Conv1d(channels, channels, kernel_size=1)

    def forward(self, x):
        value, gate = self.conv(nn.functional.pad(x, (self.pad, 0))).chunk(2, dim=1)
        return x + self.skip(torch.tanh(value) * torch.sigmoid(gate))


class Forecaster(nn.Module):
    def __init__(self, channels=32, horizon=8, dilations=(1, 2, 4, 8, 16)):
        super().__init__()
        self.lift = nn.Conv1d(1, channels, kernel_size=1)
        self.stack = nn.Sequential(*(CausalConv(channels, d) for d in dilations))
        self.dropout = nn.Dropout(0.05)
        self.readout = nn.Linear(channels, horizon)

    def forward(self, past):
        x = self.stack(self.lift(past.unsqueeze(1)))
        return self.readout(self.dropout(torch.relu(x[:, :, -1])))


def validate(accelerator, model, loader):
    model.eval()
    errors = []
    for batch in loader:
        with torch.no_grad():
            forecast = model(batch["past"])
        forecast, future = accelerator.gather_for_metrics((forecast, batch["future"]))
        errors.append((forecast - future).square().mean(dim=1))
    return torch.cat(errors).mean().item()


def train_epoch(accelerator, model, optimizer, scheduler, loader, max_norm):
    model.train()
    total = 0.0
    for batch in loader:
        with accelerator.accumulate(model):
            loss = nn.functional.mse_loss(model(batch["past"]), batch["future"])
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), max_norm)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
        total += loss.item()
    return total / len(loader)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--accumulate", type=int, default=2, help="batches per update")
    parser.add_argument("--max-lr", type=float, default=1.2e-2)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    set_seed(args.seed)

    accelerator = Accelerator(gradient_accumulation_steps=args.accumulate)
    train_loader = DataLoader(Signals(768, seed=args.seed), batch_size=32, shuffle=True)
    val_loader = DataLoader(Signals(192, seed=args.seed + 1), batch_size=96)
    model = Forecaster()
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.max_lr, weight_decay=1e-3)
    updates = args.epochs * math.ceil(len(train_loader) / args.accumulate)
    scheduler = OneCycleLR(optimizer, max_lr=args.max_lr, total_steps=updates, pct_start=0.2)
    model, optimizer, train_loader, val_loader, scheduler = accelerator.prepare(
        model, optimizer, train_loader, val_loader, scheduler
    )

    accelerator.print(f"{accelerator.device}, error before training {validate(accelerator, model, val_loader):.4f}")
    with tempfile.TemporaryDirectory() as folder:
        best = float("inf")
        for epoch in range(args.epochs):
            loss = train_epoch(accelerator, model, optimizer, scheduler, train_loader, max_norm=1.0)
            error = validate(accelerator, model, val_loader)
            lr = scheduler.get_last_lr()[0]
            accelerator.print(f"epoch {epoch}: train loss {loss:.4f}  validation error {error:.4f}  lr {lr:.2e}")
            if error < best:
                best = error
                accelerator.save_state(folder)

        accelerator.wait_for_everyone()
        accelerator.load_state(folder)
        accelerator.print(f"best state: validation error {validate(accelerator, model, val_loader):.4f}")
    accelerator.end_training()


if __name__ == "__main__":
    main()
