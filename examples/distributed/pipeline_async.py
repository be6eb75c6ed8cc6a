"""A pipeline with the 1F1B schedule and isend/irecv: a deep residual network learns to undo a random mixing."""

import argparse
import time
from collections import deque
from collections.abc import Iterator

import torch
import torch.distributed as dist
import torch.nn as nn


class Neighbours:
    """Point-to-point messages along the pipeline. A message that is being sent is kept until it has arrived."""

    def __init__(self, rank: int, size: int):
        self.previous = rank - 1 if rank > 0 else None
        self.following = rank + 1 if rank < size - 1 else None
        self._on_the_way = deque()  # pairs of a request and the tensor that it sends

    def _post(self, tensor: torch.Tensor, peer: int) -> None:
        while self._on_the_way and self._on_the_way[0][0].is_completed():
            self._on_the_way.popleft()[0].wait()
        tensor = tensor.detach().contiguous()
        self._on_the_way.append((dist.isend(tensor, dst=peer), tensor))

    def send_activation(self, tensor: torch.Tensor) -> None:
        if self.following is not None:
            self._post(tensor, self.following)

    def send_gradient(self, tensor: torch.Tensor) -> None:
        if self.previous is not None:
            self._post(tensor, self.previous)

    def start_recv(self, shape: tuple[int, ...], peer: int):
        """The request, and the buffer that is filled when it has been waited for."""
        buffer = torch.empty(shape)
        return dist.irecv(buffer, src=peer), buffer

    def drain(self) -> None:
        while self._on_the_way:
            work, _ = self._on_the_way.popleft()
            work.wait()


class ResidualUnit(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.body = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.body(x)


def build_stage(rank: int, size: int, features: int, width: int, units: int) -> nn.Sequential:
    layers: list[nn.Module] = [ResidualUnit(width) for _ in range(units)]
    if rank == 0:
        layers.insert(0, nn.Linear(features, width))
    if rank == size - 1:
        layers += [nn.LayerNorm(width), nn.Linear(width, features)]
    return nn.Sequential(*layers)


class PipelineStage:
    def __init__(self, module: nn.Module, width: int, n_micro: int):
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self.module, self.width, self.n_micro = module, width, n_micro
        self.link = Neighbours(self.rank, self.size)
        self.is_first, self.is_last = self.rank == 0, self.rank == self.size - 1

    def _forward(self, inputs: Iterator, targets: Iterator, pending: deque) -> None:
        if self.is_first:
            x = next(inputs)
        else:
            rows = len(next(inputs))
            work, x = self.link.start_recv((rows, self.width), self.link.previous)
            work.wait()
            x.requires_grad_()
        output = self.module(x)
        if self.is_last:
            output = nn.functional.mse_loss(output, next(targets)) / self.n_micro
            self.loss += output.item()
        else:
            self.link.send_activation(output)
        pending.append((x, output))

    def _backward(self, pending: deque) -> None:
        x, output = pending.popleft()
        if self.is_last:
            output.backward()
        else:
            work, grad = self.link.start_recv(output.shape, self.link.following)
            work.wait()
            output.backward(grad)
        if not self.is_first:
            self.link.send_gradient(x.grad)

    def forward_backward(self, x: torch.Tensor, y: torch.Tensor) -> float:
        """One forward, one backward: a stage never holds more micro-batches than there are stages from it on."""
        self.loss = 0.0
        inputs, targets = iter(x.chunk(self.n_micro)), iter(y.chunk(self.n_micro))
        pending: deque = deque()
        warmup = min(self.size - 1 - self.rank, self.n_micro)
        for _ in range(warmup):
            self._forward(inputs, targets, pending)
        for _ in range(self.n_micro - warmup):
            self._forward(inputs, targets, pending)
            self._backward(pending)
        for _ in range(warmup):
            self._backward(pending)
        self.link.drain()
        return self.loss

    @torch.no_grad()
    def evaluate(self, x: torch.Tensor, y: torch.Tensor) -> float | None:
        self.module.eval()
        if not self.is_first:
            work, x = self.link.start_recv((len(x), self.width), self.link.previous)
            work.wait()
        output = self.module(x)
        self.link.send_activation(output)
        self.link.drain()
        self.module.train()
        return nn.functional.mse_loss(output, y).item() if self.is_last else None


class Mixing:
    """Pairs (mixed, sources): a fixed random rotation, a squashing, another rotation."""

    def __init__(self, features: int, seed: int):
        self.generator = torch.Generator().manual_seed(seed)
        self.features = features
        gaussian = torch.randn(2, features, features, generator=self.generator)
        self.rotations = torch.linalg.qr(gaussian).Q

    def batch(self, n: int) -> tuple[torch.Tensor, torch.Tensor]:
        sources = torch.rand(n, self.features, generator=self.generator) * 2 - 1
        mixed = torch.tanh(2.0 * sources @ self.rotations[0]) @ self.rotations[1]
        return mixed, sources


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=36)
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--micro-batches", type=int, default=4)
    parser.add_argument("--units", type=int, default=2, help="residual units per stage")
    parser.add_argument("--lr", type=float, default=4e-3)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    rank, size = dist.get_rank(), dist.get_world_size()
    features, width = 8, 48
    torch.manual_seed(args.seed + 31 * rank)
    module = build_stage(rank, size, features, width, args.units)
    stage = PipelineStage(module, width, args.micro_batches)
    optimizer = torch.optim.Adam(module.parameters(), lr=args.lr)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=args.lr, total_steps=args.steps, pct_start=0.2)
    data = Mixing(features, args.seed)  # every stage generates the same batches
    val_x, val_y = data.batch(512)

    module.train()
    for step in range(1, args.steps + 1):
        x, y = data.batch(args.batch_size)
        optimizer.zero_grad(set_to_none=True)
        loss = stage.forward_backward(x, y)
        optimizer.step()
        scheduler.step()
        if step % 12 == 0:
            val_loss = stage.evaluate(val_x, val_y)
            if stage.is_last:
                print(f"step {step:3d}: loss {loss:.4f}, validation {val_loss:.4f} (variance {val_y.var().item():.4f})")


if __name__ == "__main__":
    dist.init_process_group("gloo")
    main()
    dist.barrier()
    dist.destroy_process_group()
    time.sleep(0.5)
