"""The clean twin of checkpointed_dropout.py: checkpointing restores the random state for the second computation.

A residual network learns the majority vote of groups of bits; its blocks are computed again in the backward.
"""

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

SEED, STEPS, BATCH = 0, 100, 64
BITS, WIDTH, BLOCKS, DROPOUT = 27, 64, 3, 0.3


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, 2 * WIDTH)
        self.down = nn.Linear(2 * WIDTH, WIDTH)
        self.dropout = nn.Dropout(DROPOUT)

    def forward(self, x):
        return self.down(self.dropout(torch.relu(self.up(self.norm(x)))))


class Voter(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Linear(BITS, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(BLOCKS))
        self.head = nn.Linear(WIDTH, 1)

    def forward(self, bits):
        x = self.stem(bits)
        for block in self.blocks:
            x = x + checkpoint(block, x, use_reentrant=False)
        return self.head(x).squeeze(1)


def votes(count):
    """Groups of three bits vote, then groups of three votes, then the rest."""
    bits = torch.randint(0, 2, (count, BITS)).float()
    winner = bits
    while winner.shape[1] > 1:
        winner = (winner.unflatten(1, (-1, 3)).sum(2) > 1).float()
    return bits * 2 - 1, winner.squeeze(1)


torch.manual_seed(SEED)
model = Voter()
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
loss_fn = nn.BCEWithLogitsLoss()
running = 0.0
for step in range(STEPS):
    bits, winner = votes(BATCH)
    loss = loss_fn(model(bits), winner)
    model.zero_grad()
    loss.backward()
    optimizer.step()
    running += loss.item() / 25
    if step % 25 == 24:
        print(f"step {step + 1:3}  loss {running:.4f}")
        running = 0.0
