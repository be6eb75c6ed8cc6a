"""Keeps a training run in a folder, so that it can be stopped and taken up again, and sets its learning rates."""

import math
from pathlib import Path

import torch


class CosineSchedule:
    """A linear warm-up to the peak rate of a group, then half a cosine down to a tenth of it."""

    def __init__(self, warmup, total, floor=0.1):
        self.warmup = warmup
        self.total = total
        self.floor = floor

    def rate(self, peak, step):
        if step < self.warmup:
            return peak * (step + 1) / self.warmup
        done = (step - self.warmup) / max(1, self.total - self.warmup)
        return peak * (self.floor + (1 - self.floor) * (1 + math.cos(math.pi * done)) / 2)


class RunFolder:
    """A model, its optimizer and the number of updates made, with their newest checkpoint in a folder."""

    def __init__(self, folder, model, optimizer, schedule):
        self.file = Path(folder) / "newest.pt"
        self.model = model
        self.optimizer = optimizer
        self.schedule = schedule
        self.step = 0

    def set_rates(self):
        """Set the learning rate of each group for the update that comes next."""
        for group in self.optimizer.param_groups:
            if group.get("initial_lr") is None:
                group["initial_lr"] = group["lr"]
            group["lr"] = self.schedule.rate(group["initial_lr"], self.step)

    def save(self):
        """Write a checkpoint. What belongs to a parameter is kept under its name, so that groups may change."""
        names = {parameter: name for name, parameter in self.model.named_parameters()}
        state, options = {}, {}
        for group in self.optimizer.param_groups:
            kept = {key: group[key] for key in self.optimizer.defaults}
            for parameter in group["params"]:
                state[names[parameter]] = self.optimizer.state[parameter]
                options[names[parameter]] = kept
        torch.save({"step": self.step, "model": self.model.state_dict(), "state": state, "options": options}, self.file)

    def take_up(self):
        """Go on from the checkpoint, if there is one. Says whether there was."""
        if not self.file.exists():
            return False
        saved = torch.load(self.file)
        self.step = saved["step"]
        self.model.load_state_dict(saved["model"])
        names = {parameter: name for name, parameter in self.model.named_parameters()}
        for group in self.optimizer.param_groups:
            for parameter in group["params"]:
                group.update(saved["options"][names[parameter]])
                self.optimizer.state[parameter] = saved["state"][names[parameter]]
        return True
