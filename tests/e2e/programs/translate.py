"""A small sequence model that learns to reverse words: one pipeline with the parts that real ones have."""

import argparse
import math
import random
import tempfile
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

PAD, BOS, EOS, FIRST = 0, 1, 2, 3


class Words(Dataset):
    """Words of random letters; a letter is masked now and then."""

    def __init__(self, size, length, seed):
        rng = random.Random(seed)
        self.words = [[rng.randrange(FIRST, 20) for _ in range(length)] for _ in range(size)]

    def __len__(self):
        return len(self.words)

    def __getitem__(self, i):
        word = np.array(self.words[i])
        masked = np.where(np.random.rand(len(word)) < 0.05, PAD, word)
        return masked, word[::-1].copy()


def collate(items):
    sources = torch.stack([torch.from_numpy(source) for source, _ in items])
    targets = torch.stack([torch.from_numpy(target) for _, target in items])
    return {"source": sources, "target": targets}


class Attention(nn.Module):
    def __init__(self, dim, heads, dropout):
        super().__init__()
        self.heads = heads
        self.dropout = dropout
        self.qkv = nn.Linear(dim, 3 * dim)
        self.out = nn.Linear(dim, dim)

    def forward(self, x):
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.qkv(x).chunk(3, dim=-1))
        p = self.dropout if self.training else 0.0
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=p, is_causal=True)
        return self.out(y.transpose(1, 2).flatten(2))


class Layer(nn.Module):
    def __init__(self, dim, heads, dropout):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.attention = Attention(dim, heads, dropout)
        self.mlp = nn.Sequential(nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim))

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Model(nn.Module):
    def __init__(self, vocab=20, dim=32, layers=2, heads=2, dropout=0.1, context=32):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim)
        self.position = nn.Embedding(context, dim)
        self.layers = nn.ModuleList(Layer(dim, heads, dropout) for _ in range(layers))
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, vocab)
        self.init_weights()

    def init_weights(self):
        for module in self.modules():
            if isinstance(module, (nn.Linear, nn.Embedding)):
                nn.init.normal_(module.weight, std=0.05)

    def forward(self, tokens):
        x = self.embed(tokens) + self.position(torch.arange(tokens.shape[1]))
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


@torch.no_grad()
def generate(model, prompt, max_new_tokens, window):
    prompt = prompt[:, -window:]
    limit = prompt.shape[1] + max_new_tokens
    tokens = prompt
    while tokens.shape[1] < limit:
        tokens = torch.cat([tokens, model(tokens)[:, -1].argmax(-1, keepdim=True)], dim=1)
    return tokens[:, prompt.shape[1] :]


def save_checkpoint(model, optimizer, scheduler, path):
    state = model.state_dict()
    torch.save({"model": state, "optimizer": optimizer.state_dict(), "scheduler": scheduler.state_dict()}, path)


def loss_of(model, batch, weight=None):
    tokens = torch.cat([batch["source"], torch.full((len(batch["source"]), 1), BOS), batch["target"]], dim=1)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits = model(tokens[:, :-1])
    length = batch["target"].shape[1]
    scores = logits[:, -length:].float().flatten(0, 1)
    return F.cross_entropy(scores, tokens[:, -length:].flatten())


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--words", type=int, default=520)
    parser.add_argument("--batch-size", type=int, default=40)
    parser.add_argument("--accumulate", type=int, default=3)
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    random.seed(args.seed)
    np.random.seed(args.seed)
    torch.manual_seed(args.seed)

    loader = DataLoader(
        Words(args.words, 6, args.seed), args.batch_size, shuffle=True, num_workers=2, collate_fn=collate
    )
    validation = DataLoader(Words(80, 6, args.seed + 1), args.batch_size, collate_fn=collate)
    model = Model(dim=args.width)
    model.position.weight.requires_grad_(False)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=5e-3)
    total_steps = math.ceil(len(loader) / args.accumulate) * args.epochs
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 5))

    step, out = 0, tempfile.TemporaryDirectory()
    while step < total_steps:
        model.train()
        for i, batch in enumerate(loader, 1):
            loss = loss_of(model, batch) / args.accumulate
            loss.backward()
            if i % args.accumulate and i < len(loader):
                continue
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
            step += 1
            if step == total_steps:
                break
        model.eval()
        with torch.no_grad():
            losses = [loss_of(model, batch).item() for batch in validation]
        print(
            f"step {step} of {total_steps}: loss {args.accumulate * loss.item():.3f}, validation {np.mean(losses):.3f}"
        )
        save_checkpoint(model, optimizer, scheduler, Path(out.name) / "last.pt")
        prompt = next(iter(validation))["source"][:4]
        print(generate(model, prompt, max_new_tokens=3 + step % 4, window=5)[0].tolist())
    out.cleanup()


if __name__ == "__main__":
    main()
