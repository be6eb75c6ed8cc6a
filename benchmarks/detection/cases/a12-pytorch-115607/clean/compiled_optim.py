"""Adam with a compiled step: specialised to the parameters that it finds, kept, and reused while its guard holds."""

from collections.abc import Callable
from dataclasses import dataclass

import torch


@dataclass
class Specialization:
    """A step for a group of parameters of which only some are updated."""

    updated: list[torch.nn.Parameter]
    untouched: list[torch.nn.Parameter]
    run: Callable[[dict], None]

    def guard(self):
        """Whether the step fits what the parameters hold now."""
        ready = all(p.grad is not None for p in self.updated)
        return ready and all(p.grad is None for p in self.untouched)


class CompiledAdam(torch.optim.Optimizer):
    """Adam; `compilations` counts how often a step had to be specialised."""

    def __init__(self, params, lr=1e-3, betas=(0.9, 0.999), eps=1e-8):
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps})
        self.cache = [[] for _ in self.param_groups]
        self.compilations = 0

    @torch.no_grad()
    def step(self, closure=None):
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group, entries in zip(self.param_groups, self.cache, strict=True):
            self.lookup(group, entries).run(group)
        return loss

    def lookup(self, group, entries):
        """The specialisation to run; the one used last is tried first."""
        for entry in entries:
            if entry.guard():
                entries.remove(entry)
                break
        else:
            entry = self.specialize(group)
        entries.insert(0, entry)
        return entry

    def specialize(self, group):
        self.compilations += 1
        updated = [p for p in group["params"] if p.grad is not None]
        untouched = [p for p in group["params"] if p.grad is None]
        for p in updated:
            if p not in self.state:
                self.state[p] = {"step": 0, "mean": torch.zeros_like(p), "square": torch.zeros_like(p)}
        slots = [(p, self.state[p]) for p in updated]

        def run(group):
            (beta1, beta2), lr, eps = group["betas"], group["lr"], group["eps"]
            for p, state in slots:
                state["step"] += 1
                state["mean"].lerp_(p.grad, 1 - beta1)
                state["square"].mul_(beta2).addcmul_(p.grad, p.grad, value=1 - beta2)
                scale = (state["square"] / (1 - beta2 ** state["step"])).sqrt_().add_(eps)
                p.addcdiv_(state["mean"], scale, value=-lr / (1 - beta1 ** state["step"]))

        return Specialization(updated, untouched, run)
