"""Train a language model of gated causal convolutions on knitting instructions; it writes a few after each epoch."""

import argparse

import torch
import torch.nn.functional as F
from generation import generate
from knitting import VOCAB, pattern_tokens, to_text
from torch import nn


class GatedBlock(nn.Module):
    def __init__(self, channels, dilation):
        super().__init__()
        self.pad = 2 * dilation
        self.conv = nn.Conv1d(channels, 2 * channels, kernel_size=3, dilation=dilation)
        self.mix = nn.Conv1d(channels, channels, kernel_size=1)

    def forward(self, x):
        return x + self.mix(F.glu(self.conv(F.pad(x, (self.pad, 0))), dim=1))


class PatternWriter(nn.Module):
    """Next-token logits (batch, length, vocabulary) for up to `context_length` tokens."""

    def __init__(self, vocab_size, channels=48, context_length=32):
        super().__init__()
        self.context_length = context_length
        self.tokens = nn.Embedding(vocab_size, channels)
        self.places = nn.Embedding(context_length, channels)
        self.blocks = nn.Sequential(*[GatedBlock(channels, dilation) for dilation in (1, 2, 4)])
        self.norm = nn.LayerNorm(channels)
        self.to_vocab = nn.Linear(channels, vocab_size)

    def forward(self, ids):
        x = self.tokens(ids) + self.places.weight[: ids.shape[1]]
        x = self.blocks(x.transpose(1, 2)).transpose(1, 2)
        return self.to_vocab(self.norm(x))


def next_token_loss(model, ids):
    logits = model(ids[:, :-1])
    return F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())


def batches(tokens, size):
    for chosen in torch.randperm(len(tokens)).split(size):
        yield tokens[chosen]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--patterns", type=int, default=384)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--prompt-length", type=int, default=48)
    parser.add_argument("--new-tokens", type=int, default=12)
    parser.add_argument("--lr", type=float, default=4e-3)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    model = PatternWriter(len(VOCAB))
    length = model.context_length + 1
    train_tokens = pattern_tokens(args.patterns, length, args.seed)
    test_tokens = pattern_tokens(64, length, args.seed + 1)
    prompts = pattern_tokens(2, args.prompt_length, args.seed + 2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)

    for epoch in range(args.epochs):
        model.train()
        for ids in batches(train_tokens, args.batch_size):
            loss = next_token_loss(model, ids)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        model.eval()
        with torch.no_grad():
            test_loss = next_token_loss(model, test_tokens).item()
        print(f"epoch {epoch}: loss {loss.item():.3f}, test loss {test_loss:.3f}")
        for written in generate(model, prompts, max_new_tokens=args.new_tokens):
            print("   ...", to_text(written))


if __name__ == "__main__":
    main()
