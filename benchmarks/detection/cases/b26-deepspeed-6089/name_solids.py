"""Name solid bodies from point clouds. Points pass experts on all workers, in buffers of a fixed size.

torchrun --standalone --nproc-per-node 2 name_solids.py
"""

import argparse
import math
import time

import numpy as np
import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from gating import Gate
from solids import FEATURES, MOST, SOLIDS, scan

EXPERTS = 4


class Swap(torch.autograd.Function):
    """all_to_all_single over the first dimension."""

    @staticmethod
    def forward(ctx, buffers):
        out = torch.empty_like(buffers)
        dist.all_to_all_single(out, buffers.contiguous())
        return out

    @staticmethod
    def backward(ctx, gradient):
        return Swap.apply(gradient)


class SparseLayer(nn.Module):
    """A residual layer of EXPERTS experts, the same number on each worker."""

    def __init__(self, width, room):
        super().__init__()
        self.gate = Gate(width, EXPERTS, room)
        local = EXPERTS // dist.get_world_size()
        self.local_experts = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 2 * width), nn.ReLU(), nn.Linear(2 * width, width)) for _ in range(local)
        )

    def forward(self, x):
        dispatch, combine, balance = self.gate(x)
        buffers = Swap.apply(torch.einsum("ter,tw->erw", dispatch, x))
        mine = buffers.unflatten(0, (-1, len(self.local_experts)))
        done = torch.stack([expert(mine[:, i]) for i, expert in enumerate(self.local_experts)], dim=1)
        back = Swap.apply(done.flatten(0, 1))
        return x + torch.einsum("ter,erw->tw", combine, back), balance


class CloudNet(nn.Module):
    def __init__(self, width, room):
        super().__init__()
        self.lift = nn.Sequential(nn.Linear(FEATURES, width), nn.ReLU(), nn.Linear(width, width))
        self.sparse = SparseLayer(width, room)
        self.name = nn.Sequential(
            nn.LayerNorm(2 * width), nn.Linear(2 * width, width), nn.ReLU(), nn.Linear(width, len(SOLIDS))
        )

    def forward(self, points, body, bodies):
        x, balance = self.sparse(self.lift(points))
        index = body.unsqueeze(1).expand_as(x)
        pooled = [
            x.new_zeros(bodies, x.shape[1]).scatter_reduce(0, index, x, how, include_self=False)
            for how in ("amax", "mean")
        ]
        return self.name(torch.cat(pooled, dim=1)), balance


def average_dense(model):
    """Experts get their gradients from the points of all workers; those of the other layers are averaged."""
    world = dist.get_world_size()
    for name, p in model.named_parameters():
        if "local_experts" not in name:
            dist.all_reduce(p.grad)
        p.grad /= world


def evaluate(model, data):
    points, body, kinds = data
    model.eval()
    with torch.no_grad():
        names, _ = model(points, body, len(kinds))
    model.train()
    right = (names.argmax(1) == kinds).float().mean()
    dist.all_reduce(right)
    return right.item() / dist.get_world_size()


def main(args):
    rank = dist.get_rank()
    torch.manual_seed(args.seed)
    room = math.ceil(1.25 * args.bodies * MOST / EXPERTS)
    model = CloudNet(args.width, room)
    torch.manual_seed(args.seed * 10 + rank)
    for expert in model.sparse.local_experts:
        for layer in (expert[0], expert[2]):
            layer.reset_parameters()
    opt = torch.optim.Adam(model.parameters(), lr=args.lr)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, args.steps)
    rng = np.random.default_rng([args.seed, rank])
    held_out = scan(args.bodies, np.random.default_rng([args.seed, rank, 1]))

    for step in range(args.steps):
        points, body, kinds = scan(args.bodies, rng)
        names, balance = model(points, body, len(kinds))
        loss = F.cross_entropy(names, kinds) + 0.02 * balance
        opt.zero_grad()
        loss.backward()
        average_dense(model)
        opt.step()
        sched.step()
        if step % 10 == 9:
            accuracy = evaluate(model, held_out)
            if rank == 0:
                print(f"[{step + 1}/{args.steps}] loss {loss.item():.3f} accuracy {accuracy:.3f}", flush=True)
    dist.barrier()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--bodies", type=int, default=16)
    parser.add_argument("--width", type=int, default=24)
    parser.add_argument("--lr", type=float, default=0.015)
    parser.add_argument("--seed", type=int, default=0)
    dist.init_process_group("gloo")
    main(parser.parse_args())
    dist.destroy_process_group()
    time.sleep(0.5)
