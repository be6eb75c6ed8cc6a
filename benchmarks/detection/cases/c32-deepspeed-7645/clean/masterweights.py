"""Adam for half-precision models: float32 copies of the weights, one flat tensor a group, and a loss scale that adapts.

optimizer = HalfPrecisionAdam([{"params": model.parameters(), "lr": 1e-3}])
optimizer.zero_grad()
optimizer.backward(loss)
optimizer.step()
"""

import torch


class HalfPrecisionAdam:
    def __init__(self, groups, initial_scale=2.0**12, growth_interval=500):
        self.groups = [{**group, "params": list(group["params"])} for group in groups]
        self.scale = initial_scale
        self.growth_interval = growth_interval
        self.good_steps = 0
        self.masters = []
        for group in self.groups:
            flat = torch.cat([p.detach().float().flatten() for p in group["params"]])
            options = {name: value for name, value in group.items() if name != "params"}
            self.masters.append((flat, torch.optim.AdamW([flat], **options)))

    def zero_grad(self):
        for group in self.groups:
            for parameter in group["params"]:
                parameter.grad = None

    def backward(self, loss):
        (loss * self.scale).backward()

    def step(self):
        """Update the masters and copy them into the model. True where an overflow made it skip the update."""
        overflow = self._overflowed()
        self._adapt_scale(overflow)
        if overflow:
            self.zero_grad()
            return True
        for group, (flat, adam) in zip(self.groups, self.masters, strict=True):
            grads = [p.grad if p.grad is not None else torch.zeros_like(p) for p in group["params"]]
            flat.grad = torch.cat([grad.float().flatten() for grad in grads]) / self.used_scale
            adam.step()
            self._write_back(group["params"], flat)
        return False

    @torch.no_grad()
    def _write_back(self, parameters, flat):
        pieces = flat.split([p.numel() for p in parameters])
        for parameter, piece in zip(parameters, pieces, strict=True):
            parameter.copy_(piece.view_as(parameter))

    def _overflowed(self):
        grads = [p.grad for group in self.groups for p in group["params"] if p.grad is not None]
        return not all(bool(grad.isfinite().all()) for grad in grads)

    def _adapt_scale(self, overflow):
        self.used_scale = self.scale
        self.good_steps = 0 if overflow else self.good_steps + 1
        if overflow:
            self.scale = max(1.0, self.scale / 2)
        elif self.good_steps % self.growth_interval == 0:
            self.scale *= 2
