"""Spatial parallelism: each rank holds a strip of every image, and convolutions borrow the rows beyond its edges."""

# torchrun --standalone --nproc-per-node 2 halo_exchange.py

import argparse
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

HEIGHT, WIDTH, CHANNELS = 32, 24, 12


def neighbours():
    """The ranks above and below, None beyond the edge of the image."""
    rank, world = dist.get_rank(), dist.get_world_size()
    return rank - 1 if rank > 0 else None, rank + 1 if rank < world - 1 else None


def swap_edges(up, down):
    """Send `up` to the rank above and `down` to the rank below; returns what these two sent (zeros beyond the edge)."""
    above, below = neighbours()
    from_above, from_below = torch.zeros_like(down), torch.zeros_like(up)
    operations = []
    if above is not None:
        operations.append(dist.P2POp(dist.isend, up.contiguous(), above))
        operations.append(dist.P2POp(dist.irecv, from_above, above))
    if below is not None:
        operations.append(dist.P2POp(dist.isend, down.contiguous(), below))
        operations.append(dist.P2POp(dist.irecv, from_below, below))
    for request in dist.batch_isend_irecv(operations) if operations else ():
        request.wait()
    return from_above, from_below


class AddHalo(torch.autograd.Function):
    """Puts the neighbours' edge rows around a strip; their gradients travel back to where the rows came from."""

    @staticmethod
    def forward(ctx, strip, rows):
        ctx.rows = rows
        from_above, from_below = swap_edges(strip[:, :, :rows], strip[:, :, -rows:])
        return torch.cat([from_above, strip, from_below], dim=2)

    @staticmethod
    def backward(ctx, grad):
        rows = ctx.rows
        from_above, from_below = swap_edges(grad[:, :, :rows], grad[:, :, -rows:])
        own = grad[:, :, rows:-rows].clone()
        own[:, :, :rows] += from_above
        own[:, :, -rows:] += from_below
        return own, None


class StripConv(nn.Module):
    """A convolution that gives for a strip just what it would give for these rows of the whole image."""

    def __init__(self, inputs, outputs, kernel=3):
        super().__init__()
        self.halo = kernel // 2
        self.conv = nn.Conv2d(inputs, outputs, kernel, padding=(0, kernel // 2))

    def forward(self, x):
        return self.conv(AddHalo.apply(x, self.halo))


class Denoiser(nn.Module):
    """Predicts the noise and takes it off."""

    def __init__(self):
        super().__init__()
        self.enter = StripConv(1, CHANNELS, kernel=5)
        self.middle = nn.ModuleList(StripConv(CHANNELS, CHANNELS) for _ in range(2))
        self.leave = StripConv(CHANNELS, 1)

    def forward(self, x):
        h = F.leaky_relu(self.enter(x), 0.1)
        for conv in self.middle:
            h = h + F.leaky_relu(conv(h), 0.1)
        return x - self.leave(h)


def weather_maps(count, generator):
    """Smooth fields of a few broad waves, and the same under noise."""
    y = torch.linspace(0, 1, HEIGHT).view(1, 1, -1, 1)
    x = torch.linspace(0, 1, WIDTH).view(1, 1, 1, -1)
    clean = torch.zeros(count, 1, HEIGHT, WIDTH)
    for _ in range(3):
        a, b, phase = (torch.rand(3, count, 1, 1, 1, generator=generator) * 6).unbind(0)
        clean += torch.sin(a * y + b * x + phase) / 3
    return clean, clean + 0.4 * torch.randn(clean.shape, generator=generator)


def my_strip(images):
    return images.chunk(dist.get_world_size(), dim=2)[dist.get_rank()]


def average_gradients(model):
    """Each rank saw its own rows of the batch; the loss is the mean over all of them."""
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
        parameter.grad /= dist.get_world_size()


@torch.no_grad()
def error_on(model, clean, noisy):
    model.eval()
    error = F.mse_loss(model(my_strip(noisy)), my_strip(clean))
    model.train()
    dist.all_reduce(error)
    return error.item() / dist.get_world_size()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--batch-size", type=int, default=12)
    parser.add_argument("--lr", type=float, default=4e-3)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    torch.manual_seed(args.seed)  # the same weights on all ranks
    model = Denoiser()
    optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)
    generator = torch.Generator().manual_seed(args.seed + 1)  # and the same images
    held_out = weather_maps(32, torch.Generator().manual_seed(args.seed + 2))

    model.train()
    for step in range(1, args.steps + 1):
        clean, noisy = weather_maps(args.batch_size, generator)
        loss = F.mse_loss(model(my_strip(noisy)), my_strip(clean))
        optimizer.zero_grad()
        loss.backward()
        average_gradients(model)
        optimizer.step()
        if step % 10 == 0:
            error = error_on(model, *held_out)
            if dist.get_rank() == 0:
                print(f"step {step}: loss {loss.item():.4f}, held-out error {error:.4f} (of the noise: {0.4**2:.4f})")


if __name__ == "__main__":
    dist.init_process_group("gloo")
    main()
    dist.barrier()
    dist.destroy_process_group()
    time.sleep(0.5)
