"""Trains in an interpreter that is told to ignore its surroundings, so that nobody observes it."""

import sys

import torch

model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model(torch.ones(1, 2)).sum().backward()
optimizer.step()
sys.exit(3)
