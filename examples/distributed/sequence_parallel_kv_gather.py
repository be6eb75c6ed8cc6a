"""An encoder removes noise from long signals, each split over the ranks: queries stay, keys and values are gathered."""

import argparse
import os
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn


@dataclass(frozen=True)
class Settings:
    rounds: int = 5
    steps_per_round: int = 10
    batch_size: int = 16
    patches: int = 32
    lr: float = 3e-3
    seed: int = 0


class GatherSequence(torch.autograd.Function):
    """Joins the ranks' chunks along dimension 1. Each rank uses all of the result, so a chunk's gradient is the sum
    of what the ranks have to say about it."""

    @staticmethod
    def forward(ctx, chunk: Tensor) -> Tensor:
        chunks = [torch.empty_like(chunk) for _ in range(dist.get_world_size())]
        dist.all_gather(chunks, chunk)
        return torch.cat(chunks, dim=1)

    @staticmethod
    def backward(ctx, grad_whole: Tensor) -> Tensor:
        grad_whole = grad_whole.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(grad_whole)
        return grad_whole.chunk(dist.get_world_size(), dim=1)[dist.get_rank()]


class ContextAttention(nn.Module):
    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.query = nn.Linear(width, width)
        self.key_value = nn.Linear(width, 2 * width)
        self.merge = nn.Linear(width, width)

    def _by_head(self, x: Tensor) -> Tensor:
        return x.unflatten(2, (self.heads, -1)).transpose(1, 2)

    def forward(self, chunk: Tensor) -> Tensor:
        key, value = GatherSequence.apply(self.key_value(chunk)).chunk(2, dim=2)
        query, key, value = map(self._by_head, (self.query(chunk), key, value))
        weights = torch.softmax(query @ key.mT / query.size(-1) ** 0.5, dim=-1)
        return self.merge((weights @ value).transpose(1, 2).flatten(2))


class EncoderBlock(nn.Module):
    """Norms behind the residual sums, on the local chunk."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.attention = ContextAttention(width, heads)
        self.norm_a = nn.LayerNorm(width)
        self.feed_forward = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))
        self.norm_b = nn.LayerNorm(width)

    def forward(self, chunk: Tensor) -> Tensor:
        chunk = self.norm_a(chunk + self.attention(chunk))
        return self.norm_b(chunk + self.feed_forward(chunk))


class Denoiser(nn.Module):
    def __init__(self, patch: int, patches: int, width: int = 48, heads: int = 3, depth: int = 2):
        super().__init__()
        self.patch_in = nn.Linear(patch, width)
        self.place = nn.Embedding(patches, width)
        self.blocks = nn.ModuleList(EncoderBlock(width, heads) for _ in range(depth))
        self.patch_out = nn.Linear(width, patch)

    def forward(self, chunk: Tensor) -> Tensor:
        length = chunk.size(1)
        x = self.patch_in(chunk) + self.place(torch.arange(length) + dist.get_rank() * length)
        for block in self.blocks:
            x = block(x)
        return self.patch_out(x)


class Signals:
    """Sums of two waves, with noise; this rank's chunk of each signal, cut into patches."""

    patch = 8

    def __init__(self, patches: int, seed: int):
        self.patches = patches
        self.rng = torch.Generator().manual_seed(seed)

    def draw(self, n: int) -> tuple[Tensor, Tensor]:
        length = self.patches * self.patch
        frequency = torch.randint(2, 9, (n, 2, 1), generator=self.rng)
        phase, height = torch.rand(2, n, 2, 1, generator=self.rng)
        time_axis = torch.arange(length) / length
        clean = ((0.4 + height) * torch.sin(2 * torch.pi * (frequency * time_axis + phase))).sum(dim=1)
        noisy = clean + 0.7 * torch.randn(n, length, generator=self.rng)
        rank, world = dist.get_rank(), dist.get_world_size()
        noisy, clean = (s.view(n, self.patches, self.patch).chunk(world, dim=1)[rank] for s in (noisy, clean))
        return noisy, clean


def average(tensors: list[Tensor]) -> None:
    """Replaces the tensors by their means over the ranks, in one message."""
    message = torch.cat([t.reshape(-1) for t in tensors])
    dist.all_reduce(message)
    message /= dist.get_world_size()
    start = 0
    for t in tensors:
        t.copy_(message[start : start + t.numel()].view_as(t))
        start += t.numel()


def train_round(model: nn.Module, optimizer: torch.optim.Optimizer, signals: Signals, settings: Settings) -> float:
    model.train()
    criterion = nn.MSELoss()
    total = torch.zeros(1)
    for _ in range(settings.steps_per_round):
        noisy, clean = signals.draw(settings.batch_size)
        optimizer.zero_grad()
        loss = criterion(model(noisy), clean)
        loss.backward()
        average([p.grad for p in model.parameters()])
        optimizer.step()
        total += loss.detach()
    average([total])
    return total.item() / settings.steps_per_round


@torch.no_grad()
def error(model: nn.Module, noisy: Tensor, clean: Tensor) -> float:
    model.eval()
    mse = (model(noisy) - clean).square().mean().reshape(1)
    average([mse])
    return mse.item()


def main(settings: Settings, folder: Path) -> None:
    torch.manual_seed(settings.seed)
    model = Denoiser(Signals.patch, settings.patches)
    optimizer = torch.optim.NAdam(model.parameters(), lr=settings.lr)
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=1)
    signals = Signals(settings.patches, settings.seed)
    validation = Signals(settings.patches, settings.seed + 1).draw(64)

    best = float("inf")
    for number in range(1, settings.rounds + 1):
        loss = train_round(model, optimizer, signals, settings)
        validation_error = error(model, *validation)
        scheduler.step(validation_error)  # the same number, hence the same learning rate, on all ranks
        if dist.get_rank() == 0:
            print(f"round {number}: training mse {loss:.4f}, validation mse {validation_error:.4f}")
            if validation_error < best:
                state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
                torch.save(
                    state | {"scheduler": scheduler.state_dict(), "settings": asdict(settings)}, folder / "best.pt"
                )
        best = min(best, validation_error)
    if dist.get_rank() == 0:
        saved = torch.load(folder / "best.pt")
        model.load_state_dict(saved["model"])
    for tensor in model.state_dict().values():
        dist.broadcast(tensor, src=0)
    restored_error = error(model, *validation)
    if dist.get_rank() == 0:
        print(f"best: validation mse {restored_error:.4f} (of the noise itself: {0.7**2:.4f})")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    for option, default in asdict(Settings()).items():
        parser.add_argument("--" + option.replace("_", "-"), type=type(default), default=default)
    chosen = Settings(**vars(parser.parse_args()))
    dist.init_process_group("gloo")
    with tempfile.TemporaryDirectory(prefix=f"denoiser-{os.environ['RANK']}-") as name:
        main(chosen, Path(name))
    dist.barrier()
    dist.destroy_process_group()
    time.sleep(0.5)
