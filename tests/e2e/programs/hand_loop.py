"""Loops that update parameters without an optimizer, or not at all.

Arguments: what to do, how many times, and the least seconds that a step takes (0 by default).
"""

from __future__ import annotations

import sys
import time

import torch
from torch import nn

way, rounds = sys.argv[1], int(sys.argv[2])
pause = float(sys.argv[3]) if len(sys.argv) > 3 else 0.0
torch.manual_seed(0)
CLASSES = 1 if way == "one_class" else 3


class Tagger(nn.Module):
    """A small language model like many examples: an LSTM whose hidden state continues from batch to batch."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(20, 8)
        self.lstm = nn.LSTM(8, 8)
        self.head = nn.Linear(8, CLASSES)

    def forward(self, words, state):
        hidden, state = self.lstm(self.embedding(words), state)
        return self.head(hidden).flatten(0, 1), state


def learn(model: nn.Module) -> None:
    if way == "built":
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    if way == "one_class":
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    state = None
    for number in range(1, rounds + 1):
        words = torch.randint(0, 20, (5, 4))
        time.sleep(pause)
        if way not in ("not_cleared", "accumulated"):
            model.zero_grad()
        if state is not None:
            state = tuple(part.detach() for part in state)
        scores, state = model(words, state)
        nn.functional.cross_entropy(scores, words.flatten() % CLASSES).backward()
        if way != "accumulated" or number % 4 == 0:
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        if way in ("data", "not_cleared"):
            for parameter in model.parameters():
                parameter.data.add_(parameter.grad, alpha=-0.5)
        elif way == "no_grad":
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter -= 0.5 * parameter.grad
        elif way == "accumulated" and number % 4 == 0:
            for parameter in model.parameters():
                parameter.data.add_(parameter.grad, alpha=-0.5)
                parameter.grad = None
        elif way == "one_class":
            optimizer.step()
        if way == "leaves":
            sys.exit(7)


model = Tagger()
if way == "predicts":
    model.eval()
    with torch.no_grad():
        for _ in range(rounds):
            model(torch.randint(0, 20, (5, 4)), None)
else:
    learn(model)
print(*(parameter.double().sum().item() for parameter in model.parameters()))
