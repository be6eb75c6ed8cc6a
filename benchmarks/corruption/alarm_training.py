"""Trains one model with a fault and records loss and gradient norm for the usual alarms."""

from __future__ import annotations

from typing import Any

import torch
from torch.linalg import vector_norm

from benchmarks.corruption.grid import Point
from traincheck.sdc.determinism import make_deterministic
from traincheck.sdc.workload.workload import load_workload
from traincheck.testing.corruption import Fault, inject

STEPS = 60
CPU = torch.device("cpu")
NONE = Fault(chance=0.0)
"""A fault that never strikes."""


def train(point: Point, steps: int = STEPS) -> dict[str, Any]:
    """Train a point. Return losses and gradient norms by step, the number of strokes, and the step of the first stroke.

    A loss that is not finite does not end the training, as in a program without an alarm.
    """
    make_deterministic(point.seed, 1)
    workload = load_workload(point.workload, point.seed, CPU)
    model = workload.build_model()
    optimizer = workload.build_optimizer(model)
    losses, norms = [], []
    with inject(model, optimizer, point.fault or NONE) as injected:
        for step in range(1, steps + 1):
            optimizer.zero_grad()
            loss = workload.loss(model, workload.batch(step))
            loss.backward()
            gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
            norms.append(float(vector_norm(torch.stack([vector_norm(gradient) for gradient in gradients]))))
            losses.append(float(loss.detach()))
            optimizer.step()
    first = injected.hits[0].step if injected.hits else None
    return {"strokes": injected.times, "first": first, "losses": losses, "norms": norms}
