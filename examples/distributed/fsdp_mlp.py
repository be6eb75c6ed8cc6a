"""Fully sharded data parallel: a sine-activated MLP learns a picture as a function of its coordinates."""

# torchrun --standalone --nproc-per-node 2 fsdp_mlp.py

import argparse
import math
import shutil
import tempfile
import time

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.nn as nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh

try:
    from torch.distributed.fsdp import fully_shard
except ImportError:
    raise SystemExit("this example needs torch.distributed.fsdp.fully_shard, that is, PyTorch 2.6 or later") from None


class SineLayer(nn.Module):
    """A linear layer and a sine, initialized as in "Implicit Neural Representations with Periodic Activations"."""

    def __init__(self, n_in, n_out, omega, first=False):
        super().__init__()
        self.omega = omega
        self.linear = nn.Linear(n_in, n_out)
        bound = 1 / n_in if first else math.sqrt(6 / n_in) / omega
        nn.init.uniform_(self.linear.weight, -bound, bound)

    def forward(self, x):
        return torch.sin(self.omega * self.linear(x))


class Siren(nn.Module):
    def __init__(self, width=128, depth=3, omega=10.0):
        super().__init__()
        self.layers = nn.ModuleList([SineLayer(2, width, omega, first=True)])
        self.layers.extend(SineLayer(width, width, omega) for _ in range(depth - 1))
        self.output = nn.Linear(width, 1)

    def forward(self, coordinates):
        x = coordinates
        for layer in self.layers:
            x = layer(x)
        return self.output(x)


def picture(xy):
    """Ripples around a point, and a slanted wave; brightness at coordinates in [-1, 1]."""
    x, y = xy[:, :1], xy[:, 1:]
    ripples = torch.cos(9 * torch.hypot(x - 0.3, y + 0.2)) * torch.exp(-x.square())
    return 0.6 * ripples + 0.4 * torch.sin(4 * x + 3 * y)


def build_model(args, mesh):
    torch.manual_seed(args.seed)  # alike on all ranks: each keeps its shard of the same weights
    model = Siren(width=args.width)
    # one group of parameters per layer, gathered only while the layer runs, and one for the rest
    for layer in model.layers:
        fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def build_optimizer(model, args):
    # after sharding: the parameters are DTensors now
    return torch.optim.Adam(model.parameters(), lr=args.lr)


@torch.no_grad()
def psnr(model, grid):
    model.eval()
    own = grid.chunk(dist.get_world_size())[dist.get_rank()]
    error = nn.functional.mse_loss(model(own), picture(own))
    dist.all_reduce(error)
    error /= dist.get_world_size()
    model.train()
    return 10 * math.log10(4.0 / error.item())  # values lie in [-1, 1]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--batch-size", type=int, default=256, help="points per rank and step")
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    rank = dist.get_rank()
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    model = build_model(args, mesh)
    optimizer = build_optimizer(model, args)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=args.steps, eta_min=0.1 * args.lr)
    if rank == 0:
        own = sum(p.to_local().numel() for p in model.parameters())
        print(f"rank 0 holds {own} of {sum(p.numel() for p in model.parameters())} parameters")

    axis = torch.linspace(-1, 1, 32)
    grid = torch.cartesian_prod(axis, axis)
    points = torch.Generator().manual_seed(args.seed * 100 + rank)  # other points on each rank

    for step in range(1, args.steps + 1):
        xy = 2 * torch.rand(args.batch_size, 2, generator=points) - 1
        loss = nn.functional.mse_loss(model(xy), picture(xy))
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)
        optimizer.step()
        optimizer.zero_grad()
        scheduler.step()
        if step % 15 == 0:
            quality = psnr(model, grid)
            if rank == 0:
                print(f"step {step:3d}: loss {loss.item():.4f}, {quality:.1f} dB")

    # a sharded checkpoint: each rank writes and reads its part
    folder = [tempfile.mkdtemp() if rank == 0 else None]
    dist.broadcast_object_list(folder, src=0)
    model_state, optimizer_state = get_state_dict(model, optimizer)
    dcp.save({"model": model_state, "optimizer": optimizer_state}, checkpoint_id=folder[0])

    args.seed += 1  # other weights, to be replaced
    restored = build_model(args, mesh)
    restored_optimizer = build_optimizer(restored, args)
    model_state, optimizer_state = get_state_dict(restored, restored_optimizer)
    state = {"model": model_state, "optimizer": optimizer_state}
    dcp.load(state, checkpoint_id=folder[0])
    set_state_dict(restored, restored_optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
    quality = psnr(restored, grid)
    if rank == 0:
        print(f"restored: {quality:.1f} dB")
    dist.barrier()
    if rank == 0:
        shutil.rmtree(folder[0])


if __name__ == "__main__":
    dist.init_process_group("gloo")
    main()
    dist.barrier()
    dist.destroy_process_group()
    time.sleep(0.5)
