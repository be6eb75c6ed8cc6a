"""A small transformer language model under DDP, with gradient accumulation, bfloat16 autocast and clipping."""

# Start with: torchrun --standalone --nproc-per-node 2 ddp_accumulate.py

import argparse
import math
import random
import time
from contextlib import nullcontext
from dataclasses import dataclass, fields

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel


@dataclass
class TrainConfig:
    updates: int = 30
    accumulation: int = 3
    micro_batch: int = 8
    context: int = 40
    dim: int = 64
    layers: int = 2
    heads: int = 4
    lr: float = 6e-3
    warmup: int = 5
    max_norm: float = 1.0
    seed: int = 0


# ---- data: a railway timetable in prose ----

TOWNS = ["arlen", "bruck", "corvo", "delft", "ennis", "fjord", "gmund"]
NUMBERS = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]


def timetable(lines: int, seed: int) -> str:
    rng = random.Random(seed)
    out = []
    for _ in range(lines):
        start, end = rng.sample(TOWNS, 2)
        hour, minute = rng.choice(NUMBERS), rng.choice(NUMBERS)
        out.append(f"the train from {start} to {end} leaves at {minute} past {hour}.")
    return "\n".join(out)


class Batches:
    """Random windows of the text; each rank draws its own."""

    def __init__(self, tokens: Tensor, cfg: TrainConfig, seed: int):
        self.tokens = tokens
        self.cfg = cfg
        self.generator = torch.Generator().manual_seed(seed)

    def next(self) -> tuple[Tensor, Tensor]:
        n = self.cfg.context
        starts = torch.randint(len(self.tokens) - n - 1, (self.cfg.micro_batch, 1), generator=self.generator)
        window = self.tokens[starts + torch.arange(n + 1)]
        return window[:, :-1], window[:, 1:]


# ---- model ----


class DecoderLayer(nn.Module):
    def __init__(self, dim: int, heads: int):
        super().__init__()
        self.heads = heads
        self.attn_norm = nn.LayerNorm(dim)
        self.qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.out = nn.Linear(dim, dim, bias=False)
        self.mlp_norm = nn.LayerNorm(dim)
        self.gate_up = nn.Linear(dim, 4 * dim, bias=False)
        self.down = nn.Linear(2 * dim, dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        qkv = self.qkv(self.attn_norm(x)).unflatten(-1, (3, self.heads, -1))
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind()
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).flatten(2))
        gate, up = self.gate_up(self.mlp_norm(x)).chunk(2, dim=-1)
        return x + self.down(F.silu(gate) * up)


class Decoder(nn.Module):
    def __init__(self, vocab: int, cfg: TrainConfig):
        super().__init__()
        self.tokens = nn.Embedding(vocab, cfg.dim)
        self.positions = nn.Embedding(cfg.context, cfg.dim)
        self.layers = nn.ModuleList(DecoderLayer(cfg.dim, cfg.heads) for _ in range(cfg.layers))
        self.norm = nn.LayerNorm(cfg.dim)
        self.lm_head = nn.Linear(cfg.dim, vocab, bias=False)
        for name, p in self.named_parameters():
            if p.dim() > 1:
                scale = 0.02 / math.sqrt(2 * cfg.layers) if name.endswith(("out.weight", "down.weight")) else 0.02
                nn.init.normal_(p, std=scale)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.tokens(ids) + self.positions.weight[: ids.size(1)]
        for layer in self.layers:
            x = layer(x)
        return self.lm_head(self.norm(x))


def lm_loss(model: nn.Module, ids: Tensor, targets: Tensor) -> Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits = model(ids)
    return F.cross_entropy(logits.float().flatten(0, 1), targets.flatten())


def mean_over_ranks(value: Tensor) -> float:
    value = value.detach().clone()
    dist.all_reduce(value)
    return (value / dist.get_world_size()).item()


# ---- training ----


def optimizer_update(model: DistributedDataParallel, batches: Batches, optimizer, cfg: TrainConfig) -> tuple:
    loss_sum = torch.zeros(())
    for micro_step in range(cfg.accumulation):
        ids, targets = batches.next()
        # gradients travel between the ranks once per update, in the last backward pass
        last = micro_step == cfg.accumulation - 1
        with nullcontext() if last else model.no_sync():
            loss = lm_loss(model, ids, targets) / cfg.accumulation
            loss.backward()
        loss_sum += loss.detach()
    norm = nn.utils.clip_grad_norm_(model.parameters(), cfg.max_norm)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return loss_sum, norm


@torch.inference_mode()
def validation_loss(model: nn.Module, batches: list[tuple[Tensor, Tensor]]) -> float:
    model.eval()
    loss = torch.stack([lm_loss(model, ids, targets) for ids, targets in batches]).mean()
    model.train()
    return mean_over_ranks(loss)


def main(cfg: TrainConfig) -> None:
    rank = dist.get_rank()
    text = timetable(1200, cfg.seed)
    chars = sorted(set(text))
    tokens = torch.tensor([chars.index(c) for c in text])
    cut = int(0.9 * len(tokens))
    train_batches = Batches(tokens[:cut], cfg, seed=cfg.seed * 1000 + rank)
    val_source = Batches(tokens[cut:], cfg, seed=rank)
    val_batches = [val_source.next() for _ in range(4)]

    torch.manual_seed(cfg.seed)
    model = DistributedDataParallel(Decoder(len(chars), cfg), gradient_as_bucket_view=True)
    matrices = [p for p in model.parameters() if p.dim() >= 2]
    vectors = [p for p in model.parameters() if p.dim() < 2]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=cfg.lr, betas=(0.9, 0.95))

    def cosine(step: int) -> float:
        if step < cfg.warmup:
            return (step + 1) / (cfg.warmup + 1)
        progress = (step - cfg.warmup) / (cfg.updates - cfg.warmup)
        return 0.1 + 0.45 * (1.0 + math.cos(math.pi * progress))

    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, cosine)
    model.train()
    for update in range(1, cfg.updates + 1):
        lr = scheduler.get_last_lr()[0]
        loss, norm = optimizer_update(model, train_batches, optimizer, cfg)
        scheduler.step()
        if update % 5 == 0:
            train_loss = mean_over_ranks(loss)
            message = f"update {update:3d} | loss {train_loss:.3f} | grad norm {norm:.2f} | lr {lr:.2e}"
            if update % 15 == 0:
                message += f" | val loss {validation_loss(model, val_batches):.3f}"
            if rank == 0:
                print(message, flush=True)


def parse_args() -> TrainConfig:
    parser = argparse.ArgumentParser()
    for field in fields(TrainConfig):
        parser.add_argument(f"--{field.name}", type=type(field.default), default=field.default)
    return TrainConfig(**vars(parser.parse_args()))


if __name__ == "__main__":
    config = parse_args()
    dist.init_process_group("gloo")
    main(config)
    dist.barrier()
    dist.destroy_process_group()
    time.sleep(0.5)
