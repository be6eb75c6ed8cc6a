"""A small network, as a long job would be written: epochs, evaluation, a schedule, a log, checkpoints."""

import tempfile
from pathlib import Path

import torch
from gauge import Gauge
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
gauge = Gauge()
inputs = torch.randn(3200, 16)
targets = (inputs.sum(1) > 0).long() + (inputs[:, 0] > 0).long()
held_out = DataLoader(TensorDataset(inputs[:64], targets[:64]), batch_size=32)
model = nn.Sequential(nn.Linear(16, 32), nn.LayerNorm(32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 3))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=gauge.steps)
home = Path(tempfile.mkdtemp())
total = 0.0
while gauge.step < gauge.steps:
    loader = DataLoader(TensorDataset(inputs, targets), batch_size=32, shuffle=True)  # made anew for each epoch
    model.train()
    for x, y in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        total += loss.item()
        gauge.tick()
        if gauge.step % 200 == 0:
            torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, home / "last.pt")
        if gauge.step == gauge.steps:
            break
    model.eval()
    with torch.no_grad():
        right = sum((model(x).argmax(1) == y).sum().item() for x, y in held_out)
