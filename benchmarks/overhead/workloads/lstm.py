"""An LSTM that learns sequences of characters, its state carried on and detached: the workload `lstm`."""

import torch
from timing import Clock
from torch import nn

VOCABULARY, WIDTH, BATCH, LENGTH = 64, 192, 32, 40

torch.manual_seed(0)
embedding = nn.Embedding(VOCABULARY, WIDTH)
lstm = nn.LSTM(WIDTH, WIDTH, num_layers=2, batch_first=True)
head = nn.Linear(WIDTH, VOCABULARY)
model = nn.ModuleList((embedding, lstm, head))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
state = None
clock = Clock()
for _ in range(clock.steps(80)):
    characters = torch.randint(VOCABULARY, (BATCH, LENGTH + 1))
    hidden, state = lstm(embedding(characters[:, :-1]), state)
    state = tuple(part.detach() for part in state)
    loss = nn.functional.cross_entropy(head(hidden).flatten(0, 1), characters[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    clock.tick()
clock.write_times()
