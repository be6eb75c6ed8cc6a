"""Sequence parallelism as in Ulysses: a rank holds a part of each sequence, and during attention some of the heads."""

import argparse
import math
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F


class Transpose(torch.autograd.Function):
    """x[i] of rank j and x[j] of rank i change places. The gradients are sent back by the same operation."""

    @staticmethod
    def forward(ctx, x):
        x = x.contiguous()
        y = torch.empty_like(x)
        dist.all_to_all_single(y, x)
        return y

    @staticmethod
    def backward(ctx, dy):
        dy = dy.contiguous()
        dx = torch.empty_like(dy)
        dist.all_to_all_single(dx, dy)
        return dx


def split_heads_gather_sequence(x):
    """[..., local sequence, heads, d] -> [..., sequence, local heads, d]"""
    x = x.unflatten(-2, (dist.get_world_size(), -1)).movedim(-3, 0)
    return Transpose.apply(x).movedim(0, -4).flatten(-4, -3)


def split_sequence_gather_heads(x):
    """[..., sequence, local heads, d] -> [..., local sequence, heads, d]"""
    x = x.unflatten(-3, (dist.get_world_size(), -1)).movedim(-4, 0)
    return Transpose.apply(x).movedim(0, -3).flatten(-3, -2)


def rotary(x, theta=10_000.0):
    """Rotates queries or keys of whole sequences, [batch, sequence, heads, d], by their positions."""
    length, half = x.size(1), x.size(-1) // 2
    frequency = theta ** (-torch.arange(half) / half)
    angle = torch.outer(torch.arange(length), frequency)[:, None]
    a, b = x.chunk(2, dim=-1)
    return torch.cat([a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos()], dim=-1)


class UlyssesAttention(nn.Module):
    def __init__(self, dim, n_heads):
        super().__init__()
        self.n_heads = n_heads
        self.in_proj = nn.Linear(dim, 3 * dim, bias=False)
        self.out_proj = nn.Linear(dim, dim, bias=False)

    def forward(self, x):
        qkv = self.in_proj(x).unflatten(-1, (3, self.n_heads, -1)).movedim(2, 0)
        q, k, v = split_heads_gather_sequence(qkv)
        q, k, v = (t.transpose(1, 2) for t in (rotary(q), rotary(k), v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)
        return self.out_proj(split_sequence_gather_heads(y).flatten(2))


class Layer(nn.Module):
    def __init__(self, dim, n_heads, dropout):
        super().__init__()
        self.attention_norm = nn.LayerNorm(dim)
        self.attention = UlyssesAttention(dim, n_heads)
        self.mlp = nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, 3 * dim), nn.SiLU(), nn.Linear(3 * dim, dim))
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        x = x + self.dropout(self.attention(self.attention_norm(x)))
        return x + self.dropout(self.mlp(x))


class LanguageModel(nn.Module):
    def __init__(self, vocab_size, dim=48, n_heads=4, n_layers=2, dropout=0.05):
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, dim)
        self.layers = nn.Sequential(*(Layer(dim, n_heads, dropout) for _ in range(n_layers)))
        self.norm = nn.LayerNorm(dim)
        self.to_logits = nn.Linear(dim, vocab_size)

    def forward(self, tokens):
        return self.to_logits(self.norm(self.layers(self.embedding(tokens))))


class Vocabularies:
    """Each sequence uses only a few of all tokens, some of them more often; which ones, the beginning has to tell."""

    def __init__(self, vocab_size, used, seed):
        self.vocab_size = vocab_size
        self.frequency = 0.6 ** torch.arange(used)
        self.generator = torch.Generator().manual_seed(seed)

    def sample(self, batch_size, length):
        """This rank's part of the inputs and of the labels; whole sequences are drawn alike on all ranks."""
        lottery = torch.rand(batch_size, self.vocab_size, generator=self.generator)
        words = lottery.argsort(dim=1)[:, : len(self.frequency)]
        picks = torch.multinomial(
            self.frequency.expand(batch_size, -1), length + 1, replacement=True, generator=self.generator
        )
        text = words.gather(1, picks)
        rank, world = dist.get_rank(), dist.get_world_size()
        return text[:, :-1].chunk(world, dim=1)[rank], text[:, 1:].chunk(world, dim=1)[rank]


def token_loss(model, tokens, labels):
    return F.cross_entropy(model(tokens).flatten(0, 1), labels.flatten())


def mean_over_ranks(value):
    value = value.detach().clone()
    dist.all_reduce(value)
    return (value / dist.get_world_size()).item()


def sync_gradients(model):
    """All parts of a sequence are of one length, so the loss of the sequence is the mean of the ranks' losses."""
    for param in model.parameters():
        dist.all_reduce(param.grad)
        param.grad /= dist.get_world_size()


def main(args):
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(args.seed)
    corpus = Vocabularies(vocab_size=32, used=6, seed=args.seed)
    model = LanguageModel(corpus.vocab_size)
    torch.manual_seed(args.seed + 1 + rank)  # alike weights, but dropout of its own for each part of the sequence
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=0.02)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=args.steps, eta_min=0.05 * args.lr)
    if rank == 0:
        print(f"sequences of {args.seq_len} tokens, {args.seq_len // world} on each rank; {math.log(32):.3f} by chance")

    held_out = corpus.sample(32, args.seq_len)
    for step in range(1, args.steps + 1):
        model.train()
        tokens, labels = corpus.sample(args.batch_size, args.seq_len)
        loss = token_loss(model, tokens, labels)
        optimizer.zero_grad()
        loss.backward()
        sync_gradients(model)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        if step % 10 == 0:
            model.eval()
            with torch.no_grad():
                val_loss = mean_over_ranks(token_loss(model, *held_out))
            train_loss = mean_over_ranks(loss)
            if rank == 0:
                print(f"step {step:2d} | train {train_loss:.4f} | val {val_loss:.4f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--seq-len", type=int, default=64)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--lr", type=float, default=6e-3)
    parser.add_argument("--seed", type=int, default=0)
    cli = parser.parse_args()
    dist.init_process_group("gloo")
    main(cli)
    dist.barrier()
    dist.destroy_process_group()
    time.sleep(0.5)
