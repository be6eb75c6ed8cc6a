"""Good run 1: fit a plane with a small network."""

import torch
from torch import nn

torch.manual_seed(0)
inputs = torch.randn(512, 4)
targets = inputs @ torch.tensor([[1.0], [-2.0], [0.5], [3.0]]) + 0.1 * torch.randn(512, 1)

model = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)

for _ in range(40):
    batch = torch.randint(len(inputs), (32,))
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(inputs[batch]), targets[batch])
    loss.backward()
    optimizer.step()
print(f"regression: loss {loss.item():.4f}")
