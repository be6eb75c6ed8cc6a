"""A character-level transformer that learns to write sums in words and continues a few prompts after each epoch."""

import argparse
import random
import tempfile
from pathlib import Path

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

UNITS = [
    "zero",
    "one",
    "two",
    "three",
    "four",
    "five",
    "six",
    "seven",
    "eight",
    "nine",
    "ten",
    "eleven",
    "twelve",
    "thirteen",
    "fourteen",
    "fifteen",
    "sixteen",
]
PROMPTS = [
    ("two and", 24),
    ("six and five make", 9),
    ("one and one make two. two and two make four. three and three make six. four and four", 14),  # beyond the context
    ("n", 40),
]


def write_sums(count, rng):
    sums = []
    for _ in range(count):
        a, b = rng.randint(0, 8), rng.randint(0, 8)
        sums.append(f"{UNITS[a]} and {UNITS[b]} make {UNITS[a + b]}.")
    return " ".join(sums)


class Vocabulary:
    def __init__(self, text):
        self.chars = sorted(set(text))
        self.index = {c: i for i, c in enumerate(self.chars)}

    def __len__(self):
        return len(self.chars)

    def encode(self, text):
        return [self.index[c] for c in text]

    def decode(self, ids):
        return "".join(self.chars[i] for i in ids)


class Windows(Dataset):
    """Windows of the text; the target is the same window one character later."""

    def __init__(self, ids, context, stride):
        self.ids, self.context, self.stride = torch.tensor(ids), context, stride

    def __len__(self):
        return (len(self.ids) - self.context - 1) // self.stride + 1

    def __getitem__(self, i):
        start = i * self.stride
        window = self.ids[start : start + self.context + 1]
        return window[:-1], window[1:]


class SelfAttention(nn.Module):
    def __init__(self, width, heads, dropout):
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width)
        self.value = nn.Linear(width, width)
        self.out = nn.Linear(width, width)

    def forward(self, x):
        q, k, v = (
            proj(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for proj in (self.query, self.key, self.value)
        )
        dropout_p = self.dropout if self.training else 0.0
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=dropout_p, is_causal=True)
        return self.out(y.transpose(1, 2).flatten(2))


class Layer(nn.Module):
    def __init__(self, width, heads, dropout):
        super().__init__()
        self.attention_norm = nn.LayerNorm(width)
        self.attention = SelfAttention(width, heads, dropout)
        self.mlp_norm = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        x = x + self.dropout(self.attention(self.attention_norm(x)))
        return x + self.dropout(self.mlp(self.mlp_norm(x)))


class CharTransformer(nn.Module):
    def __init__(self, vocab_size, context, width=96, num_layers=2, heads=4, dropout=0.1):
        super().__init__()
        self.context = context
        self.tokens = nn.Embedding(vocab_size, width)
        self.positions = nn.Embedding(context, width)
        self.layers = nn.ModuleList(Layer(width, heads, dropout) for _ in range(num_layers))
        self.norm = nn.LayerNorm(width)
        self.to_logits = nn.Linear(width, vocab_size)

    def forward(self, ids):
        x = self.tokens(ids) + self.positions(torch.arange(ids.shape[1], device=ids.device))
        for layer in self.layers:
            x = layer(x)
        return self.to_logits(self.norm(x))


@torch.no_grad()
def generate(model, prompt, max_new_tokens, temperature=0.7, top_k=5):
    """Continue a prompt (1, length); of a long one the model sees the last `context` characters."""
    was_training = model.training
    model.eval()
    ids = prompt
    for _ in range(max_new_tokens):
        logits = model(ids[:, -model.context :])[:, -1] / temperature
        best, where = logits.topk(top_k)
        choice = torch.multinomial(F.softmax(best, dim=-1), num_samples=1)
        ids = torch.cat([ids, where.gather(1, choice)], dim=1)
    model.train(was_training)
    return ids


@torch.no_grad()
def validation_loss(model, loader):
    model.eval()
    losses = [F.cross_entropy(model(x).flatten(0, 1), y.flatten()).item() for x, y in loader]
    return sum(losses) / len(losses)


def train_one_epoch(model, loader, optimizer, scheduler):
    model.train()
    total = 0.0
    for x, y in loader:
        logits = model(x)
        loss = F.cross_entropy(logits.flatten(0, 1), y.flatten())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        total += loss.item()
    return total / len(loader)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--context", type=int, default=48, help="characters that the model sees")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.manual_seed(args.seed)

    text = write_sums(600, random.Random(args.seed))
    vocab = Vocabulary(text)
    ids = vocab.encode(text)
    cut = int(0.9 * len(ids))
    train_set = Windows(ids[:cut], args.context, stride=40)
    val_set = Windows(ids[cut:], args.context, stride=args.context)
    train_loader = DataLoader(train_set, batch_size=24, shuffle=True, drop_last=True)
    val_loader = DataLoader(val_set, batch_size=64)

    model = CharTransformer(len(vocab), args.context)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3, betas=(0.9, 0.98), weight_decay=0.01)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=args.epochs * len(train_loader))

    with tempfile.TemporaryDirectory() as folder:
        best_path, best_loss = Path(folder) / "best.pt", float("inf")
        for epoch in range(args.epochs):
            train_loss = train_one_epoch(model, train_loader, optimizer, scheduler)
            val_loss = validation_loss(model, val_loader)
            print(f"epoch {epoch}: train {train_loss:.3f}  val {val_loss:.3f}")
            for prompt, length in PROMPTS:
                continued = generate(model, torch.tensor([vocab.encode(prompt)]), max_new_tokens=length)
                print(f"   {prompt[-30:]!r} -> {vocab.decode(continued[0, len(prompt) :].tolist())!r}")
            if val_loss < best_loss:
                best_loss = val_loss
                torch.save({"model": model.state_dict(), "chars": vocab.chars, "epoch": epoch}, best_path)

        best = torch.load(best_path, weights_only=True)
        model.load_state_dict(best["model"])
        print(f"best epoch {best['epoch']}: val {validation_loss(model, val_loader):.3f}")


if __name__ == "__main__":
    main()
