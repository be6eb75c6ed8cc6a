"""Fill the gaps in recordings of bird songs: a masked transformer encoder, in bfloat16 with float32 masters."""

import argparse
import math

import torch
from bird_songs import SYLLABLES, Aviary
from engine import initialize
from torch import nn
from torch.nn.functional import cross_entropy, gelu, scaled_dot_product_attention


class Block(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.attend_norm, self.mix_norm = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv, self.merge = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.up, self.down = nn.Linear(dim, 2 * dim), nn.Linear(2 * dim, dim)

    def forward(self, x):
        batch, length, dim = x.shape
        qkv = self.qkv(self.attend_norm(x)).view(batch, length, 3, self.heads, dim // self.heads)
        mixed = scaled_dot_product_attention(*qkv.permute(2, 0, 3, 1, 4))
        x = x + self.merge(mixed.transpose(1, 2).reshape(batch, length, dim))
        return x + self.down(gelu(self.up(self.mix_norm(x))))


class SongEncoder(nn.Module):
    def __init__(self, dim, depth=2, heads=4, length=16):
        super().__init__()
        self.syllable = nn.Embedding(SYLLABLES + 1, dim)
        self.position = nn.Parameter(0.1 * torch.randn(length, dim))
        self.near = nn.Conv1d(dim, dim, kernel_size=3, padding=1)
        self.blocks = nn.ModuleList(Block(dim, heads) for _ in range(depth))
        self.norm = nn.LayerNorm(dim)
        self.out = nn.Linear(dim, SYLLABLES)

    def forward(self, songs):
        x = self.syllable(songs) + self.position
        x = x + self.near(x.mT).mT
        for block in self.blocks:
            x = block(x)
        return self.out(self.norm(x))


def split_by_decay(model, decay):
    """Matrices decay, vectors do not."""
    matrices = [p for p in model.parameters() if p.ndim >= 2]
    vectors = [p for p in model.parameters() if p.ndim < 2]
    return [{"params": matrices, "weight_decay": decay}, {"params": vectors, "weight_decay": 0.0}]


def gap_loss(logits, songs, hidden):
    return cross_entropy(logits[hidden].float(), songs[hidden])


@torch.no_grad()
def filled_right(engine, aviary, songs):
    engine.module.eval()
    gaps, hidden = aviary.masked(songs)
    guess = engine(gaps).argmax(-1)
    engine.module.train()
    return (guess[hidden] == songs[hidden]).float().mean().item()


def main():
    cli = argparse.ArgumentParser(description=__doc__)
    cli.add_argument("--steps", type=int, default=24)
    cli.add_argument("--batch", type=int, default=24)
    cli.add_argument("--dim", type=int, default=32)
    cli.add_argument("--lr", type=float, default=8e-3)
    cli.add_argument("--seed", type=int, default=50)
    args = cli.parse_args()

    torch.manual_seed(args.seed)
    aviary = Aviary(args.seed)
    test = aviary.record(64)
    model = SongEncoder(args.dim)
    optimizer = torch.optim.AdamW(split_by_decay(model, 0.05), lr=args.lr, betas=(0.9, 0.95))
    engine, optimizer = initialize(model, optimizer, clip=1.0)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda i: 0.5 + 0.5 * math.cos(math.pi * i / args.steps))
    engine.module.train()
    for step in range(args.steps):
        songs = aviary.record(args.batch)
        gaps, hidden = aviary.masked(songs)
        loss = gap_loss(engine(gaps), songs, hidden)
        engine.backward(loss)
        norm = engine.step()
        schedule.step()
        if (step + 1) % 8 == 0:
            right = filled_right(engine, aviary, test)
            print(f"step {step + 1:3}: loss {loss.item():.3f}, gradient norm {norm:.2f}, gaps filled {right:.1%}")


if __name__ == "__main__":
    main()
