"""A loop of your own with Fabric on two processes: data parallel, accumulation, clipping and checkpoints."""

import argparse
import tempfile

import torch
import torch.nn.functional as F
from lightning.fabric import Fabric
from tiny import digest
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

EPOCHS, ACCUMULATION = 3, 2


def make_data(count, seed):
    draw = torch.Generator().manual_seed(seed)
    inputs = torch.randn(count, 12, generator=draw)
    return TensorDataset(inputs, (inputs[:, :3].sum(dim=1, keepdim=True).sin() + 0.1 * inputs[:, 3:4]).float())


class Regressor(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(12, 48), nn.ReLU(), nn.Dropout(0.1), nn.Linear(48, 1))

    def forward(self, inputs):
        return self.layers(inputs)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    fabric = Fabric(accelerator="cpu", devices=2, strategy="ddp")
    fabric.launch()
    fabric.seed_everything(args.seed, verbose=False)
    with fabric.init_module():
        model = Regressor()
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    model, optimizer = fabric.setup(model, optimizer)
    loader, evaluation = fabric.setup_dataloaders(
        DataLoader(make_data(256, args.seed), batch_size=16, shuffle=True),
        DataLoader(make_data(64, args.seed + 1000), batch_size=16),
    )
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=EPOCHS * len(loader) // ACCUMULATION)
    for epoch in range(EPOCHS):
        model.train()
        for batch, (inputs, targets) in enumerate(loader):
            accumulating = (batch + 1) % ACCUMULATION != 0
            with fabric.no_backward_sync(model, enabled=accumulating):
                fabric.backward(F.mse_loss(model(inputs), targets) / ACCUMULATION)
            if not accumulating:
                fabric.clip_gradients(model, optimizer, max_norm=1.0)
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
        model.eval()
        with torch.no_grad():
            losses = torch.stack([F.mse_loss(model(inputs), targets) for inputs, targets in evaluation])
        mean = fabric.all_reduce(losses.mean(), reduce_op="mean")
        fabric.print(f"epoch {epoch} evaluation {mean.item():.6f} rate {schedule.get_last_lr()[0]:.6f}")
    with tempfile.TemporaryDirectory() as folder:
        path = fabric.broadcast(f"{folder}/state.ckpt")
        fabric.save(path, {"model": model, "optimizer": optimizer})
        fabric.barrier()
        fabric.load(path, {"model": model, "optimizer": optimizer})
        fabric.barrier()
    fabric.print("weights", digest(model.module))


if __name__ == "__main__":
    main()
