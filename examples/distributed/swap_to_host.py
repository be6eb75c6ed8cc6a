"""A diffusion model of points in the plane under DDP, validated with an average of its weights kept in host memory."""

# For validation the average is swapped into the model, in place, and the live weights wait on the host.
#     torchrun --standalone --nproc-per-node 2 swap_to_host.py

import argparse
import math
import time
from contextlib import contextmanager

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


class HostEMA:
    """Exponential moving average of the parameters of a module, which takes no accelerator memory."""

    def __init__(self, module, decay):
        self.params = list(module.parameters())
        self.decay = decay
        self.updates = 0
        self.host = [p.detach().to("cpu", copy=True) for p in self.params]

    @torch.no_grad()
    def update(self):
        self.updates += 1
        # the first averages are short, so that the initial weights are soon forgotten
        decay = min(self.decay, self.updates / (self.updates + 9))
        for averaged, param in zip(self.host, self.params, strict=True):
            averaged.lerp_(param.detach().to("cpu"), 1 - decay)

    def swap(self):
        """Exchange the model's weights and the average; swapped twice, each is back in its place."""
        for i, param in enumerate(self.params):
            live = param.data.to("cpu", copy=True)
            param.data.copy_(self.host[i])
            self.host[i] = live

    @contextmanager
    def average_in_model(self):
        self.swap()
        try:
            yield
        finally:
            self.swap()


class FiLMBlock(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.norm = nn.LayerNorm(dim, elementwise_affine=False)
        self.film = nn.Linear(dim, 2 * dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 2 * dim), nn.SiLU(), nn.Linear(2 * dim, dim))

    def forward(self, x, condition):
        scale, shift = self.film(condition).chunk(2, dim=-1)
        return x + self.mlp(self.norm(x) * (1 + scale) + shift)


class Denoiser(nn.Module):
    """Predicts the noise in `x` at time `t`."""

    def __init__(self, dim=96, depth=3):
        super().__init__()
        self.register_buffer("frequencies", torch.exp(torch.linspace(0, math.log(200.0), dim // 2)))
        self.time_mlp = nn.Sequential(nn.Linear(dim, dim), nn.SiLU())
        self.enter = nn.Linear(2, dim)
        self.blocks = nn.ModuleList(FiLMBlock(dim) for _ in range(depth))
        self.leave = nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, 2))

    def forward(self, x, t):
        angles = t[:, None] * self.frequencies
        condition = self.time_mlp(torch.cat([angles.sin(), angles.cos()], dim=-1))
        h = self.enter(x)
        for block in self.blocks:
            h = block(h, condition)
        return self.leave(h)


class Diffusion:
    def __init__(self, steps=50):
        self.steps = steps
        self.betas = torch.linspace(1e-3, 0.2, steps)
        self.alpha_bars = torch.cumprod(1 - self.betas, dim=0)

    def loss(self, model, x0, generator):
        step = torch.randint(self.steps, (len(x0),), generator=generator)
        noise = torch.randn(x0.shape, generator=generator)
        kept = self.alpha_bars[step, None]
        noisy = kept.sqrt() * x0 + (1 - kept).sqrt() * noise
        return F.mse_loss(model(noisy, step / self.steps), noise)

    @torch.no_grad()
    def sample(self, model, n, generator):
        x = torch.randn(n, 2, generator=generator)
        for step in reversed(range(self.steps)):
            predicted = model(x, torch.full((n,), step / self.steps))
            x = x - self.betas[step] / (1 - self.alpha_bars[step]).sqrt() * predicted
            x = x / (1 - self.betas[step]).sqrt()
            if step > 0:
                x = x + self.betas[step].sqrt() * torch.randn(n, 2, generator=generator)
        return x


CENTRES = torch.tensor([[1.5, 0.0], [-0.75, 1.3], [-0.75, -1.3]])


def three_spots(n, generator):
    spot = torch.randint(len(CENTRES), (n,), generator=generator)
    return CENTRES[spot] + 0.1 * torch.randn(n, 2, generator=generator)


def distance_to_spots(points):
    return torch.cdist(points, CENTRES).amin(dim=1).mean().item()


@torch.no_grad()
def validate(model, diffusion, points):
    """The loss over all ranks, with the same noise each time."""
    model.eval()
    loss = diffusion.loss(model, points, torch.Generator().manual_seed(dist.get_rank()))
    dist.all_reduce(loss)
    model.train()
    return loss.item() / dist.get_world_size()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--eval-every", type=int, default=20)
    parser.add_argument("--batch-size", type=int, default=256, help="per rank")
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--ema-decay", type=float, default=0.9)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    rank = dist.get_rank()
    torch.manual_seed(args.seed)
    model = DDP(Denoiser())
    ema = HostEMA(model.module, args.ema_decay)
    optimizer = torch.optim.NAdam(model.parameters(), lr=args.lr)
    diffusion = Diffusion()
    generator = torch.Generator().manual_seed(args.seed * 10 + rank)
    held_out = three_spots(1000, torch.Generator().manual_seed(args.seed * 10 + 1000 + rank))

    for step in range(1, args.steps + 1):
        loss = diffusion.loss(model, three_spots(args.batch_size, generator), generator)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        ema.update()
        if step % args.eval_every == 0:
            live = validate(model.module, diffusion, held_out)
            with ema.average_in_model():
                averaged = validate(model.module, diffusion, held_out)
            if rank == 0:
                print(f"step {step:3d}: validation loss {live:.4f}, of the averaged weights {averaged:.4f}")

    if rank == 0:
        model.eval()
        with ema.average_in_model():
            samples = diffusion.sample(model.module, 500, generator)
        noise = torch.randn(500, 2, generator=generator)
        print(f"mean distance to the nearest spot: noise {distance_to_spots(noise):.2f}", end=", ")
        print(f"samples {distance_to_spots(samples):.2f}")


if __name__ == "__main__":
    dist.init_process_group("gloo")
    main()
    dist.barrier()
    dist.destroy_process_group()
    time.sleep(0.5)
