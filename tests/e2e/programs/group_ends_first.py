"""Trains in a process group that is destroyed before the model that owns it dies, with operations still under way."""

import sys

import torch
import torch.distributed as dist
from torch import nn


def train() -> None:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    model = nn.parallel.DistributedDataParallel(nn.Linear(3, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(torch.ones(1, 3)), torch.ones(1, 2)).backward()
        optimizer.step()
    large = torch.ones(1_000_000)
    for _ in range(30):
        dist.group.WORLD.broadcast(large, 0)  # as the reducer does: nobody waits for it
    dist.destroy_process_group()


sys.setswitchinterval(0.05)  # Python hands its lock over only where somebody lets go of it
for _ in range(5):
    train()
print("ended")
