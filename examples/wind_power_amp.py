"""Quantiles of the power of a wind turbine, by an MLP in float16: gradient scaler, accumulation, clipping."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

QUANTILES = (0.1, 0.5, 0.9)


def measure(count, seed):
    """Weather (count, 4): wind, gusts and the direction; power (count,), as a share of the rated one."""
    generator = torch.Generator().manual_seed(seed)
    wind = 14 * torch.rand(count, generator=generator) ** 0.8
    gusts = torch.rand(count, generator=generator)
    direction = 6.283 * torch.rand(count, generator=generator)
    wake = 1 - 0.25 * torch.relu(torch.cos(direction - 1))
    effective = wind * wake + gusts * torch.randn(count, generator=generator)
    power = torch.sigmoid(0.9 * (effective - 7.5)) * (effective > 2.5)
    return torch.stack([wind / 14, gusts, direction.sin(), direction.cos()], dim=1), power


class PowerCurve(nn.Module):
    def __init__(self, width=64, dropout=0.05):
        super().__init__()
        self.enter = nn.Linear(4, width)
        self.hidden = nn.Linear(width, width)
        self.norm = nn.LayerNorm(width)
        self.drop = nn.Dropout(dropout)
        self.quantiles = nn.Linear(width, len(QUANTILES))

    def forward(self, weather):
        x = nn.functional.silu(self.enter(weather))
        x = x + self.drop(nn.functional.silu(self.hidden(self.norm(x))))
        return self.quantiles(x)


class PinballLoss(nn.Module):
    def __init__(self, quantiles=QUANTILES):
        super().__init__()
        self.register_buffer("quantiles", torch.tensor(quantiles))

    def forward(self, predicted, power):
        error = power[:, None] - predicted.float()
        return torch.maximum(self.quantiles * error, (self.quantiles - 1) * error).mean()


@torch.inference_mode()
def validate(model, criterion, weather, power):
    """The loss, and the share of powers between the outer quantiles."""
    model.eval()
    with torch.autocast(weather.device.type, dtype=torch.float16):
        predicted = model(weather)
    inside = (power > predicted[:, 0]) & (power < predicted[:, -1])
    return criterion(predicted, power).item(), inside.float().mean().item()


def train_epoch(model, criterion, loader, optimizer, scaler, accumulate, max_norm):
    model.train()
    total = 0.0
    optimizer.zero_grad()
    for number, (weather, power) in enumerate(loader, start=1):
        with torch.autocast(weather.device.type, dtype=torch.float16):
            predicted = model(weather)
        loss = criterion(predicted, power)
        scaler.scale(loss / accumulate).backward()
        total += loss.item()
        if number % accumulate == 0:
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), max_norm)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
    return total / len(loader)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--accumulate", type=int, default=2)
    parser.add_argument("--max-norm", type=float, default=0.1)
    parser.add_argument("--lr", type=float, default=5e-3)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.manual_seed(args.seed)

    loader = DataLoader(TensorDataset(*measure(1536, args.seed)), batch_size=64, shuffle=True, drop_last=True)
    held_out = measure(512, args.seed + 1)
    model, criterion = PowerCurve(), PinballLoss()
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    updates = args.epochs * (len(loader) // args.accumulate)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=args.epochs)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**13)
    print(f"{updates} updates; before training: pinball loss {validate(model, criterion, *held_out)[0]:.4f}")
    for epoch in range(1, args.epochs + 1):
        loss = train_epoch(model, criterion, loader, optimizer, scaler, args.accumulate, args.max_norm)
        schedule.step()
        held_out_loss, inside = validate(model, criterion, *held_out)
        print(f"epoch {epoch}: train {loss:.4f}, held out {held_out_loss:.4f}, {inside:.0%} between the quantiles")


if __name__ == "__main__":
    main()
