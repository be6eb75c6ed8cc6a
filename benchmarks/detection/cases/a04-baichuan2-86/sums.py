"""Lines of sums as text, such as `27+35=62;`, in the letters of a small alphabet."""

import random

import torch

ALPHABET = "0123456789+=;"
CODE = {letter: number for number, letter in enumerate(ALPHABET)}


def line(rng, limit):
    a, b = rng.randrange(limit), rng.randrange(limit)
    return f"{a}+{b}={a + b};"


class SumText:
    """An endless text of sums, cut into windows of a batch."""

    def __init__(self, limit, seed):
        self.rng = random.Random(seed)
        self.limit = limit

    def window(self, length):
        text = ""
        while len(text) < length + 1:
            text += line(self.rng, self.limit)
        return torch.tensor([CODE[letter] for letter in text[: length + 1]])

    def batch(self, size, length):
        """Letters (size, length) and the letters that follow them."""
        windows = torch.stack([self.window(length) for _ in range(size)])
        return windows[:, :-1], windows[:, 1:]
