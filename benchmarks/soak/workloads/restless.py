"""A program that never comes to rest: models, optimizers and loaders are made anew, shapes and rates vary."""

import copy
import io
import random
from contextlib import nullcontext

import torch
from gauge import Gauge
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
random.seed(0)
gauge = Gauge()
inputs = torch.randn(400, 16)
targets = (inputs.sum(1) > 0).float()


class Net(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(16, width), nn.BatchNorm1d(width), nn.ReLU())
        self.head = nn.Linear(width, 1)

    def forward(self, x):
        return self.head(self.body(x)).squeeze(1)


def train(model, optimizer, schedule, loader):
    average = copy.deepcopy(model)
    for x, y in loader:
        model.train()
        optimizer.zero_grad()
        noise = torch.randn(x.shape[0], random.randint(1, 64))  # memory and shapes that were not there before
        penalty = noise.mean() * 0
        with torch.autocast("cpu", torch.bfloat16) if random.random() < 0.3 else nullcontext():
            loss = nn.functional.binary_cross_entropy_with_logits(model(x).float(), y) + penalty
        loss.backward()
        optimizer.step()
        schedule.step()
        with torch.no_grad():
            for kept, live in zip(average.parameters(), model.parameters(), strict=True):
                kept.lerp_(live, 0.1)
        rate = loss.item() * 1e-3 + 1e-4
        optimizer.param_groups[0]["lr"] = rate  # a rate that no step has seen
        gauge.tick()
        if gauge.step == gauge.steps:
            return
        if gauge.step % 25 == 0:
            average.eval()
            average(inputs[: random.randint(2, 64)]).mean().item()


while gauge.step < gauge.steps:
    model = Net(random.choice([8, 16, 24]))
    kind = random.choice([torch.optim.SGD, torch.optim.Adam])
    optimizer = kind(model.parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 10)
    for _ in range(4):
        loader = DataLoader(TensorDataset(inputs, targets), batch_size=16, shuffle=True)
        train(model, optimizer, schedule, loader)
        if gauge.step == gauge.steps:
            break
    written = io.BytesIO()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, written)
    written.seek(0)
    model.load_state_dict(torch.load(written, weights_only=True)["model"])
