"""A training loop for any model that gives its loss: accumulation, warm-up, clipping and a log."""

import math
from dataclasses import dataclass

import torch


@dataclass
class FitArguments:
    num_epochs: int = 3
    lr: float = 1e-3
    accumulation: int = 1
    warmup: int = 3
    max_norm: float = 1.0
    log_every: int = 5


class Fitter:
    """Trains `model(**batch)`, which returns the mean loss of a batch, for the epochs that the arguments ask for."""

    def __init__(self, model, args, loader, metric=None):
        self.model, self.args, self.loader, self.metric = model, args, loader, metric
        self.updates_per_epoch = max(math.ceil(len(loader) / args.accumulation), 1)
        self.max_steps = self.updates_per_epoch * args.num_epochs
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=0.01)
        self.scheduler = torch.optim.lr_scheduler.LambdaLR(self.optimizer, self.scale)
        self.global_step = 0

    def scale(self, step):
        return min(1.0, (step + 1) / self.args.warmup)

    def fit(self):
        for epoch in range(self.args.num_epochs):
            self.train_epoch()
            if self.metric is not None:
                print(f"epoch {epoch + 1}: {self.metric(self.model):.3f}")
            if self.global_step >= self.max_steps:
                break
        return self.model

    def train_epoch(self):
        self.model.train()
        self.optimizer.zero_grad()
        for number, batch in enumerate(self.loader, 1):
            first = (number - 1) // self.args.accumulation * self.args.accumulation
            group = min(self.args.accumulation, len(self.loader) - first)
            loss = self.model(**batch) / group
            loss.backward()
            if number % self.args.accumulation == 0 or number == len(self.loader):
                self.update(loss.item() * group)
                if self.global_step >= self.max_steps:
                    break

    def update(self, loss):
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.args.max_norm)
        self.optimizer.step()
        self.scheduler.step()
        self.optimizer.zero_grad()
        self.global_step += 1
        if self.global_step % self.args.log_every == 0:
            print(f"  step {self.global_step}: loss {loss:.3f}")
