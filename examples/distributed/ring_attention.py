"""Ring attention: sequences are split over the ranks, and keys and values travel from rank to rank around a ring."""

# Start with: torchrun --standalone --nproc-per-node 2 ring_attention.py

import argparse
import math
import time
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn


@dataclass
class Config:
    steps: int = 40
    sequences: int = 16
    length: int = 64
    width: int = 32
    heads: int = 4
    layers: int = 2
    lr: float = 4e-3
    seed: int = 0


class Rotate(torch.autograd.Function):
    """What this rank holds goes to the next one, what the previous one holds comes in; gradients go the other way."""

    @staticmethod
    def forward(ctx, block: Tensor) -> Tensor:
        return pass_on(block, 1)

    @staticmethod
    def backward(ctx, grad: Tensor) -> Tensor:
        return pass_on(grad, -1)


def pass_on(block: Tensor, by: int) -> Tensor:
    rank, world = dist.get_rank(), dist.get_world_size()
    outgoing, incoming = block.contiguous(), torch.empty(block.shape, dtype=block.dtype)
    sending = dist.isend(outgoing, dst=(rank + by) % world)
    receiving = dist.irecv(incoming, src=(rank - by) % world)
    receiving.wait()
    sending.wait()  # not before is `outgoing` free again
    return incoming


def ring_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attention of the own queries to the keys of all ranks, block by block, with a softmax that is kept up to date."""
    highest = q.new_full((*q.shape[:-1], 1), -math.inf)
    total, weighted = torch.zeros_like(highest), torch.zeros_like(q)
    for turn in range(dist.get_world_size()):
        if turn > 0:
            k, v = Rotate.apply(torch.stack([k, v])).unbind(0)
        scores = q @ k.transpose(-2, -1) / math.sqrt(q.size(-1))
        new_highest = torch.maximum(highest, scores.detach().amax(dim=-1, keepdim=True))
        weights = (scores - new_highest).exp()
        fade = (highest - new_highest).exp()
        total = total * fade + weights.sum(dim=-1, keepdim=True)
        weighted = weighted * fade + weights @ v
        highest = new_highest
    return weighted / total


class Layer(nn.Module):
    def __init__(self, cfg: Config):
        super().__init__()
        self.heads = cfg.heads
        self.norm1, self.norm2 = nn.LayerNorm(cfg.width), nn.LayerNorm(cfg.width)
        self.to_qkv = nn.Linear(cfg.width, 3 * cfg.width)
        self.to_out = nn.Linear(cfg.width, cfg.width)
        self.mlp = nn.Sequential(nn.Linear(cfg.width, 2 * cfg.width), nn.GELU(), nn.Linear(2 * cfg.width, cfg.width))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.to_qkv(self.norm1(x)).chunk(3, -1)
        )
        x = x + self.to_out(ring_attention(q, k, v).transpose(1, 2).flatten(2))
        return x + self.mlp(self.norm2(x))


class Tagger(nn.Module):
    """Says of each token whether it is like the majority of its sequence."""

    def __init__(self, vocabulary: int, cfg: Config):
        super().__init__()
        self.embed = nn.Embedding(vocabulary, cfg.width)
        self.layers = nn.ModuleList(Layer(cfg) for _ in range(cfg.layers))
        self.norm = nn.LayerNorm(cfg.width)
        self.head = nn.Linear(cfg.width, 2)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


VOCABULARY = 8


def sample(cfg: Config, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Sequences in which one token is more frequent, and where it stands. All ranks draw the same ones."""
    favourite = torch.randint(VOCABULARY, (count, 1), generator=generator)
    tokens = torch.randint(VOCABULARY, (count, cfg.length), generator=generator)
    often = torch.rand(tokens.shape, generator=generator) < 0.35
    tokens = torch.where(often, favourite, tokens)
    return tokens, (tokens == favourite).long()


def own_part(whole: Tensor) -> Tensor:
    return whole.chunk(dist.get_world_size(), dim=1)[dist.get_rank()].contiguous()


def mean_over_ranks(value: Tensor) -> Tensor:
    dist.all_reduce(value)
    return value / dist.get_world_size()


@torch.no_grad()
def accuracy(model: Tagger, tokens: Tensor, tags: Tensor) -> float:
    model.eval()
    right = (model(own_part(tokens)).argmax(dim=-1) == own_part(tags)).float().mean()
    model.train()
    return mean_over_ranks(right).item()


def train(cfg: Config) -> None:
    torch.manual_seed(cfg.seed)
    model = Tagger(VOCABULARY, cfg)
    for parameter in model.parameters():
        dist.broadcast(parameter.data, src=0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=cfg.lr, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, start_factor=0.2, total_iters=5)
    generator = torch.Generator().manual_seed(cfg.seed + 1)
    held_out = sample(cfg, 64, torch.Generator().manual_seed(cfg.seed + 2))

    model.train()
    for step in range(1, cfg.steps + 1):
        tokens, tags = sample(cfg, cfg.sequences, generator)
        logits = model(own_part(tokens))
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), own_part(tags).flatten())
        optimizer.zero_grad()
        loss.backward()
        for parameter in model.parameters():  # every rank has a part of the tokens, and the mean is over all
            parameter.grad = mean_over_ranks(parameter.grad)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % 10 == 0:
            mean_loss, right = mean_over_ranks(loss.detach()).item(), accuracy(model, *held_out)
            if dist.get_rank() == 0:
                print(f"step {step:2d}  loss {mean_loss:.4f}  right {right:.3f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("steps", "sequences", "length", "seed"):
        parser.add_argument(f"--{name}", type=int, default=getattr(Config, name))
    parser.add_argument("--lr", type=float, default=Config.lr)
    train(Config(**vars(parser.parse_args())))


if __name__ == "__main__":
    dist.init_process_group("gloo")
    main()
    dist.barrier()
    dist.destroy_process_group()
    time.sleep(0.5)
