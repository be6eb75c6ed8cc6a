"""Warns in the ways of torch: from Python and from C++, in a loop, under filters, and in a list of caught warnings."""

import warnings

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
scheduler = torch.optim.lr_scheduler.ConstantLR(optimizer, 1.0)
pair = torch.ones(3, 1), torch.ones(3)


def total(output):
    return float(output.sum())  # torch warns in C++ that the tensor requires a gradient


for step in range(6):
    output = model(torch.randn(8, 4))
    loss = F.mse_loss(output, torch.randn(8))
    F.softmax(output)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    scheduler.step(step)
    total(output)
    F.l1_loss(*pair), F.mse_loss(*pair)
    F.mse_loss(*pair)

with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    F.mse_loss(*pair)
    F.mse_loss(*pair)
print("CAUGHT", [(warning.filename == __file__, warning.lineno) for warning in caught])

for action in ("once", "module", "ignore"):
    with warnings.catch_warnings():
        warnings.filterwarnings(action, module="__main__")
        for size in (4, 4, 5):
            F.mse_loss(torch.ones(size, 1), torch.ones(size))
            F.mse_loss(torch.ones(size, 1), torch.ones(size))

with warnings.catch_warnings():
    warnings.filterwarnings("error", module="__main__")
    try:
        F.mse_loss(*pair)
    except UserWarning as warning:
        print("RAISED", warning)
