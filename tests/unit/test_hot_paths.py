"""Counts TrainCheck's work in a training step: calls of its functions, and bytes read for fingerprints.

A limit here may fall. A higher limit slows down each step of each user's training, so it needs a reason.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import pytest
import torch
from torch import nn

import traincheck
from loops import STEP, loader
from observed_process import observing
from traincheck.checking.engine import Engine, demand_of
from traincheck.invariants.book import read_book
from traincheck.sources.functions import described_windows
from traincheck.sources.recording import sampling_gate
from traincheck.sources.tensors import hashing
from traincheck.vocab.demand import EVERYTHING, NOTHING, Demand
from traincheck.vocab.events import Window

OURS = str(Path(traincheck.__file__).parent)
STEPS = range(17, 23)  # steps in which no values are read, see call_summaries.py

OF_A_RULE = Demand.of_calls(STEP, changes=("parameter.data",))

MAX_CALLS = {"everything": 2_123, "described": 2_505, "a rule": 578, "nothing": 240, "not watched": 90, "counted": 11}
"""A recording of everything makes one call for each forward, to know those without gradients (value_forms.py).
Built-in rules make 17: about gradients that an optimizer uses again, weights that are not registered,
and target networks that follow themselves."""
MAX_CALLS_TO_JUDGE = 1_250
"""With the rules of the general pack; more than `LEAST_JUDGED` of them judge such a step."""
LEAST_JUDGED = 10
MAX_BYTES = {"everything": 4.2, "described": 4.2, "a rule": 2.1, "nothing": 0, "not watched": 0, "counted": 0}
"""In multiples of the bytes of the parameters."""


def train(
    demand: Demand,
    watches: Callable[[int], bool],
    before_step: Callable[[int], object],
    windows: list[Window] | None = None,
    *,
    counts: bool = False,
) -> int:
    """Train a model of ten parameters, and return their bytes. With `counts`, steps that are not watched are only
    counted.

    Calls `before_step` before each step, and with 0 at the end. Appends the recorded windows to `windows`.
    """
    model = nn.Sequential(*(nn.Sequential(nn.Linear(16, 16), nn.ReLU()) for _ in range(5)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    quiet_steps = (lambda first, most: 0 if watches(first) else most) if counts else None
    with observing(demand, watches=watches, quiet_steps=quiet_steps) as seen:
        for step, (x,) in enumerate(loader(STEPS.stop), start=1):
            before_step(step)
            optimizer.zero_grad()
            model(torch.cat((x, x, x, x), 1)).square().mean().backward()
            optimizer.step()
        before_step(0)
    assert seen.faults == []
    if windows is not None:
        windows += seen.windows
    return sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())


KINDS: dict[str, tuple[Demand, Callable[[int], bool]]] = {
    "everything": (EVERYTHING, lambda step: True),
    "described": (EVERYTHING, lambda step: True),  # as the first steps are, and then one in 25
    "a rule": (OF_A_RULE, lambda step: True),
    "nothing": (NOTHING, lambda step: True),
    "not watched": (EVERYTHING, lambda step: step < STEPS.start - 2),
    "counted": (EVERYTHING, lambda step: step < STEPS.start - 4),  # see sampling_gate.py
}


class Counted:
    """Counts calls of TrainCheck's functions, as a profiler."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()

    def count(self, frame: FrameType, event: str, arg: object) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(OURS):
            self.calls[f"{Path(frame.f_code.co_filename).name}:{frame.f_code.co_name}"] += 1

    @property
    def in_a_step(self) -> float:
        return self.calls.total() / len(STEPS)

    def __str__(self) -> str:
        most = "\n".join(f"{number / len(STEPS):8.1f} {name}" for name, number in self.calls.most_common(25))
        return f"{self.in_a_step} calls in a step:\n{most}"


@pytest.mark.parametrize("kind", KINDS)
def test_a_step_calls_no_more_functions(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(described_windows, "FULL_CALLS", described_windows.FULL_CALLS if kind == "described" else 0)
    monkeypatch.delitem(sys.modules, "jax", raising=False)  # another test may have imported it
    counted = Counted()

    def before_step(step: int) -> None:
        sys.setprofile(counted.count if step in STEPS else None)

    monkeypatch.setattr(sampling_gate, "LONGEST", 1e3)  # however slow the machine is
    monkeypatch.setattr(sampling_gate, "LONGEST_STEP", 1e3)
    before = sys.getprofile()
    try:
        train(*KINDS[kind], before_step, counts=kind == "counted")
    finally:
        sys.setprofile(before)
    assert counted.in_a_step <= MAX_CALLS[kind], str(counted)
    assert counted.calls or kind not in ("everything", "a rule")


def test_judging_a_step_calls_no_more_functions() -> None:
    rules = read_book(Path(OURS) / "packs" / "general.jsonl").invariants
    windows: list[Window] = []
    train(demand_of(rules), lambda step: True, lambda step: None, windows)
    engine, counted, before = Engine(rules), Counted(), sys.getprofile()
    try:
        for window in windows:
            sys.setprofile(counted.count if window.step in STEPS else None)
            engine.feed(window)
    finally:
        sys.setprofile(before)
    assert sum(tried.triggered > 0 for tried in engine.outcome.tried.values()) >= LEAST_JUDGED
    assert counted.in_a_step <= MAX_CALLS_TO_JUDGE, str(counted)


@pytest.mark.parametrize("kind", KINDS)
def test_a_step_reads_no_more_bytes(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    read, counted = [0], [False]
    digest = hashing.digest

    def counting(memory: hashing.Memory) -> int:
        read[0] += memory.size if counted[0] else 0
        return digest(memory)

    def before_step(step: int) -> None:
        counted[0] = step in STEPS

    monkeypatch.setattr(hashing, "digest", counting)
    size = train(*KINDS[kind], before_step)
    assert read[0] / len(STEPS) <= MAX_BYTES[kind] * size, f"{read[0] / len(STEPS) / size:.2f} times the parameters"
    assert read[0] or kind not in ("everything", "a rule")
