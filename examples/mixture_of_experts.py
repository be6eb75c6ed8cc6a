"""A language model with a mixture of experts: top-2 routing, limited expert capacity and a load-balancing loss."""

import argparse
import math
from typing import NamedTuple

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

VOCAB, DIALECTS = 48, 4


class RoutingStats(NamedTuple):
    balance_loss: torch.Tensor
    load: torch.Tensor  # share of the assignments that each expert got
    dropped: torch.Tensor  # share of the assignments beyond capacity


def dialect_corpus(count, length, seed):
    """Sequences from four Markov chains over the same tokens, as if in four dialects."""
    tables = np.random.default_rng(1234).integers(0, VOCAB, size=(DIALECTS, VOCAB, 3))
    rng = np.random.default_rng(seed)
    dialect = rng.integers(0, DIALECTS, size=count)
    tokens = np.empty((count, length), dtype=np.int64)
    tokens[:, 0] = rng.integers(0, VOCAB, size=count)
    choices = rng.choice(3, size=(count, length), p=[0.8, 0.15, 0.05])
    for t in range(1, length):
        tokens[:, t] = tables[dialect, tokens[:, t - 1], choices[:, t]]
    # each sequence starts with a token that names its dialect
    return torch.from_numpy(np.column_stack([VOCAB + dialect, tokens]))


class Expert(nn.Module):
    def __init__(self, dim, hidden):
        super().__init__()
        self.w_in = nn.Linear(dim, hidden)
        self.w_out = nn.Linear(hidden, dim)

    def forward(self, x):
        return self.w_out(F.gelu(self.w_in(x)))


class MixtureOfExperts(nn.Module):
    def __init__(self, dim, hidden, num_experts, top_k=2, capacity_factor=1.5):
        super().__init__()
        self.num_experts, self.top_k, self.capacity_factor = num_experts, top_k, capacity_factor
        self.router = nn.Linear(dim, num_experts, bias=False)
        self.experts = nn.ModuleList(Expert(dim, hidden) for _ in range(num_experts))

    def forward(self, x):
        tokens = x.reshape(-1, x.size(-1))
        probs = self.router(tokens).softmax(dim=-1)
        gates, chosen = probs.topk(self.top_k, dim=-1)
        gates = gates / gates.sum(dim=-1, keepdim=True)

        # an expert takes at most `capacity` tokens, all first choices before any second choice
        capacity = math.ceil(self.capacity_factor * self.top_k * len(tokens) / self.num_experts)
        assigned = F.one_hot(chosen.t().reshape(-1), self.num_experts)
        place = (assigned.cumsum(dim=0) * assigned).sum(dim=-1)
        kept = (place <= capacity).view(self.top_k, -1).t()

        output = torch.zeros_like(tokens)
        for e, expert in enumerate(self.experts):
            token, choice = torch.where((chosen == e) & kept)
            if len(token):
                output.index_add_(0, token, gates[token, choice, None] * expert(tokens[token]))

        load = assigned.float().mean(dim=0)
        balance_loss = self.num_experts * (load * probs.mean(dim=0)).sum()
        return output.view_as(x), RoutingStats(balance_loss, load, 1 - kept.float().mean())


class MoEBlock(nn.Module):
    def __init__(self, dim, heads, num_experts):
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(dim)
        self.to_qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.to_out = nn.Linear(dim, dim, bias=False)
        self.norm2 = nn.LayerNorm(dim)
        self.moe = MixtureOfExperts(dim, 2 * dim, num_experts)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.to_qkv(self.norm1(x)).view(b, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.to_out(attended.transpose(1, 2).reshape(b, t, d))
        update, stats = self.moe(self.norm2(x))
        return x + update, stats


class MoELanguageModel(nn.Module):
    def __init__(self, vocab_size, length, dim=64, heads=2, num_layers=2, num_experts=4):
        super().__init__()
        self.token = nn.Embedding(vocab_size, dim)
        self.place = nn.Embedding(length, dim)
        self.blocks = nn.ModuleList(MoEBlock(dim, heads, num_experts) for _ in range(num_layers))
        self.norm = nn.LayerNorm(dim)
        self.unembed = nn.Linear(dim, vocab_size, bias=False)

    def forward(self, ids):
        x = self.token(ids) + self.place.weight[: ids.size(1)]
        stats = []
        for block in self.blocks:
            x, s = block(x)
            stats.append(s)
        return self.unembed(self.norm(x)), stats


def next_token_loss(model, ids):
    logits, stats = model(ids[:, :-1])
    return F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten()), stats


def evaluate(model, loader):
    model.eval()
    with torch.no_grad():
        losses, loads, dropped = [], [], []
        for (ids,) in loader:
            loss, stats = next_token_loss(model, ids)
            losses.append(loss.item())
            loads.append(torch.stack([s.load for s in stats]))
            dropped.append(sum(s.dropped.item() for s in stats) / len(stats))
    return np.mean(losses), torch.stack(loads).mean(0), np.mean(dropped)


@torch.no_grad()
def complete(model, prompts, max_new_tokens):
    """The likeliest continuation of each prompt, without the prompt."""
    model.eval()
    ids = prompts
    for _ in range(max_new_tokens):
        logits, _ = model(ids)
        ids = torch.cat([ids, logits[:, -1:].argmax(-1)], dim=1)
    return ids[:, prompts.size(1) :]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--experts", type=int, default=4)
    parser.add_argument("--balance", type=float, default=0.02, help="weight of the load-balancing loss")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.manual_seed(args.seed)

    length = 20
    train_loader = DataLoader(TensorDataset(dialect_corpus(1280, length, args.seed)), batch_size=64, shuffle=True)
    val_loader = DataLoader(TensorDataset(dialect_corpus(256, length, args.seed + 1)), batch_size=128)

    model = MoELanguageModel(VOCAB + DIALECTS, length, num_experts=args.experts)
    optimizer = torch.optim.Adam(model.parameters(), lr=8e-3, betas=(0.9, 0.95))
    scheduler = torch.optim.lr_scheduler.LinearLR(
        optimizer, start_factor=1.0, end_factor=0.05, total_iters=args.epochs * len(train_loader)
    )

    for epoch in range(1, args.epochs + 1):
        model.train()
        for step, (ids,) in enumerate(train_loader, start=1):
            lm_loss, stats = next_token_loss(model, ids)
            balance = sum(s.balance_loss for s in stats) / len(stats)
            loss = lm_loss + args.balance * balance
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            if step % 10 == 0:
                print(f"epoch {epoch} step {step}: loss {lm_loss.item():.3f}  balance {balance.item():.3f}")
        val_loss, load, dropped = evaluate(model, val_loader)
        print(f"epoch {epoch}: perplexity {math.exp(val_loss):.2f}, {dropped:.1%} of the assignments dropped")
        for layer, shares in enumerate(load.tolist()):
            print(f"    load in layer {layer}: " + " ".join(f"{share:.2f}" for share in shares))
        (ids,) = next(iter(val_loader))
        written = complete(model, ids[:32, :-8], max_new_tokens=8)
        right = (written == ids[:32, -8:]).float().mean().item()
        print(f"    {right:.0%} of the last tokens are as in the text")


if __name__ == "__main__":
    main()
