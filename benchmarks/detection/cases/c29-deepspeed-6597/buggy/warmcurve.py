"""Learning rates that rise linearly from near zero and then fall along a cosine.

scheduler = WarmupCosine(optimizer, peak=1e-3, warmup_steps=100, total_steps=2000)
for batch in batches:
    ...
    optimizer.step()
    scheduler.step()
"""

import math


class WarmupCosine:
    """Sets the rate of all groups of an optimizer; the group's entry `lr_scale`, if there is one, multiplies it."""

    def __init__(self, optimizer, peak, warmup_steps, total_steps, floor=0.05):
        if not 0 < warmup_steps < total_steps:
            raise ValueError(f"warm-up takes {warmup_steps} of {total_steps} steps")
        self.optimizer = optimizer
        self.peak = peak
        self.warmup_steps = warmup_steps
        self.total_steps = total_steps
        self.floor = floor
        self.updates = 0

    def rate(self):
        """The rate of the next update."""
        if self.updates < self.warmup_steps:
            return self.peak * (self.updates + 1) / (self.warmup_steps + 1)
        done = min(1.0, (self.updates - self.warmup_steps) / (self.total_steps - self.warmup_steps))
        return self.peak * (self.floor + (1 - self.floor) * 0.5 * (1 + math.cos(math.pi * done)))

    def step(self):
        self.updates += 1
        self._apply()

    def _apply(self):
        rate = self.rate()
        for group in self.optimizer.param_groups:
            group["lr"] = rate * group.get("lr_scale", 1.0)

    def state_dict(self):
        return {"updates": self.updates}

    def load_state_dict(self, state):
        self.updates = state["updates"]
        self._apply()
