"""Learns to add two numbers, on as many ranks as are started: each has a copy of the model, and batches of its own."""

import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=2)
parser.add_argument("--around", action="store_true", help="call the inner model, and not the wrapper around it")
args = parser.parse_args()

dist.init_process_group("gloo")
torch.manual_seed(0)
pairs = torch.rand(320, 2)
data = TensorDataset(pairs, pairs.sum(1, keepdim=True))
sampler = DistributedSampler(data, shuffle=True)
loader = DataLoader(data, batch_size=16, sampler=sampler)

adder = nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 1))
wrapped = DistributedDataParallel(adder)
optimizer = torch.optim.Adam(wrapped.parameters(), lr=1e-2)

for epoch in range(args.epochs):
    sampler.set_epoch(epoch)
    for numbers, sums in loader:
        optimizer.zero_grad()
        told = adder(numbers) if args.around else wrapped(numbers)
        loss = nn.functional.mse_loss(told, sums)
        loss.backward()
        optimizer.step()
    if dist.get_rank() == 0:
        print(f"epoch {epoch}: loss {loss.item():.4f}")

dist.barrier()
dist.destroy_process_group()
