"""Made-up knitting instructions: rows of stitches that repeat, as tokens."""

import random

import torch

STITCHES = ["k1", "k2", "k3", "p1", "p2", "p3", "yo", "k2tog", "ssk", "sl1"]
VOCAB = ["<row>", "rep", "end", *STITCHES]
INDEX = {word: i for i, word in enumerate(VOCAB)}
REPEATS = [
    ["k1", "p1"],
    ["k2", "p2"],
    ["k3", "p3"],
    ["yo", "k2tog"],
    ["ssk", "yo", "k1"],
    ["sl1", "k1", "p1"],
    ["k2", "yo", "ssk", "p1"],
]


def pattern(rng, length):
    """Rows in which one motif repeats three times; odd rows change the motif, even rows work it backwards."""
    words, motif = [], rng.choice(REPEATS)
    while len(words) < length:
        words += ["<row>", *motif * 3, "rep", *motif, "end", "<row>", *motif[::-1] * 3, "rep", *motif[::-1], "end"]
        motif = rng.choice(REPEATS)
    return [INDEX[word] for word in words[:length]]


def pattern_tokens(count, length, seed):
    rng = random.Random(seed)
    return torch.tensor([pattern(rng, length) for _ in range(count)])


def to_text(ids):
    return " ".join(VOCAB[i] for i in ids.tolist())
