"""A training with marks computes the same bits: results, gradients, updates and random numbers."""

from __future__ import annotations

import random

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.checkpoint import checkpoint

import traincheck
from traincheck.runtime.marks import receive
from traincheck.sources.operations.marks import MarkSink
from traincheck.sources.recording.call_sites import CallSites
from traincheck.sources.recording.recorder import Recorder
from traincheck.sources.registry import attach, build_all
from traincheck.vocab.demand import NOTHING
from traincheck.vocab.marks import Mark

LAYERS = ("relu", "scale in place", "dropout", "transpose", "sum with itself", "checkpoint", "detach")
DTYPES = st.sampled_from([torch.float32, torch.float64, torch.bfloat16])


def train(layers: list[str], dtype: torch.dtype, retain: bool, gradient: bool) -> list[torch.Tensor]:
    """Train a small network that marks each value; everything that it computes."""
    torch.manual_seed(0)
    np.random.seed(0)
    random.seed(0)
    weights = [torch.randn(6, 6, dtype=dtype, requires_grad=True) for _ in layers]
    optimizer = torch.optim.SGD(weights, lr=0.1) if weights else None
    results = []
    for _ in range(2):
        x = torch.randn(6, 6, dtype=dtype, requires_grad=True)
        traincheck.mark("x", x, gradient=gradient)
        y = x
        for layer, weight in zip(layers, weights, strict=True):
            y = apply(layer, y @ weight)
            traincheck.mark(layer, y, gradient=gradient)
        loss = (y * y).mean()
        traincheck.mark("loss", loss, gradient=gradient)
        loss.backward(retain_graph=retain)
        if retain:
            loss.backward()
        traincheck.mark("gradient", x.grad)
        if optimizer is not None:
            optimizer.step()
        results += [y.detach().clone(), loss.detach(), x.grad]
    drawn = torch.tensor([random.random(), np.random.rand(), float(torch.rand(()))], dtype=torch.float64)
    state = [torch.get_rng_state(), drawn]
    return [
        *results,
        *(weight.detach() for weight in weights),
        *(w.grad for w in weights if w.grad is not None),
        *state,
    ]


def apply(layer: str, y: torch.Tensor) -> torch.Tensor:
    if layer == "scale in place":
        return (y * 2).mul_(0.5)
    if layer == "checkpoint":
        return checkpoint(torch.tanh, y, use_reentrant=False)
    functions = {
        "relu": torch.relu,
        "dropout": lambda v: torch.dropout(v, 0.5, True),
        "transpose": lambda v: v.t(),
        "sum with itself": lambda v: v + v.tanh(),
        "detach": lambda v: v + v.detach(),
    }
    return functions[layer](y)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.sampled_from(LAYERS), max_size=4), DTYPES, st.booleans(), st.booleans())
def test_marks_change_no_bit(layers: list[str], dtype: torch.dtype, retain: bool, gradient: bool) -> None:
    plain = train(layers, dtype, retain, gradient)
    marks: list[Mark] = []
    faults: list[str] = []
    recorder = Recorder(CallSites(()), lambda window: None, lambda source, error: faults.append(f"{source}: {error!r}"))
    sink = MarkSink(marks.append, receive, faults.append)
    undo, _ = attach(build_all(recorder, lambda: None, installed=False, marks=sink).sources, NOTHING, recorder)
    try:
        observed = train(layers, dtype, retain, gradient)
    finally:
        undo.close()
    assert faults == [] and len(marks) >= 2 * (3 + len(layers))
    assert all(torch.equal(a, b) for a, b in zip(plain, observed, strict=True))
