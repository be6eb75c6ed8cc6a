"""Spot the wrong notes of long tunes; each rank holds one stretch of every tune.

torchrun --standalone --nproc-per-node 2 spot_wrong_notes.py
"""

import argparse
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from longstrip import Mesh, average_gradients, gather_sequence, own_stretch
from scales import NOTES, compose
from torch import nn


class StretchAttention(nn.Module):
    """The notes of the own stretch look at those of the whole tune."""

    def __init__(self, width, heads, mesh):
        super().__init__()
        self.heads, self.mesh = heads, mesh
        self.query = nn.Linear(width, width)
        self.key_value = nn.Linear(width, 2 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x):
        key, value = gather_sequence(self.key_value(x), self.mesh).chunk(2, dim=-1)
        split = [t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in (self.query(x), key, value)]
        return self.out(F.scaled_dot_product_attention(*split).transpose(1, 2).flatten(2))


class NoteTagger(nn.Module):
    def __init__(self, width, mesh):
        super().__init__()
        self.notes = nn.Embedding(NOTES, width)
        self.norm1 = nn.LayerNorm(width)
        self.attention = StretchAttention(width, 4, mesh)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 3 * width), nn.GELU(), nn.Linear(3 * width, width))
        self.norm3 = nn.LayerNorm(width)
        self.tag = nn.Linear(width, 1)

    def forward(self, notes):
        x = self.notes(notes)
        x = x + self.attention(self.norm1(x))
        x = x + self.mlp(self.norm2(x))
        return self.tag(self.norm3(x)).squeeze(-1)


@torch.no_grad()
def spotted(model, notes, wrong, mesh):
    """Share of all notes that are tagged rightly, over all stretches."""
    model.eval()
    right = ((model(own_stretch(notes, mesh)) > 0) == (own_stretch(wrong, mesh) > 0.5)).float().mean()
    dist.all_reduce(right, group=mesh.sequence)
    return right.item() / mesh.stretches


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--tunes", type=int, default=24)
    parser.add_argument("--length", type=int, default=64)
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument("--lr", type=float, default=1e-2)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    mesh = Mesh(sequence_parallel=dist.get_world_size())
    torch.manual_seed(args.seed)
    model = NoteTagger(args.width, mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, betas=(0.9, 0.95), weight_decay=0.01)
    composer = torch.Generator().manual_seed(args.seed + 1)
    test = compose(64, args.length, torch.Generator().manual_seed(args.seed + 2))
    for step in range(1, args.steps + 1):
        notes, wrong = compose(args.tunes, args.length, composer)
        model.train()
        logits = model(own_stretch(notes, mesh))
        loss = F.binary_cross_entropy_with_logits(logits, own_stretch(wrong, mesh))
        optimizer.zero_grad()
        loss.backward()
        average_gradients(model, mesh)
        optimizer.step()
        if step % 10 == 0:
            right = spotted(model, *test, mesh)
            if dist.get_rank() == 0:
                print(f"step {step}: loss {loss.item():.4f}, right {right:.3f}", flush=True)


if __name__ == "__main__":
    dist.init_process_group("gloo")
    main()
    dist.barrier()
    dist.destroy_process_group()
    time.sleep(0.5)
