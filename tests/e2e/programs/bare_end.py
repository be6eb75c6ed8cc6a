"""Trains in an isolated interpreter, which TrainCheck cannot observe."""

import sys

import torch

model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model(torch.ones(1, 2)).sum().backward()
optimizer.step()
sys.exit(3)
