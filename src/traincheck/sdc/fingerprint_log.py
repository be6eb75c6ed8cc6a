"""Entry: one thing that a training computed, as a fingerprint, and the first in which two runs differ."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from itertools import zip_longest
from pathlib import Path
from typing import NamedTuple

BUILD, BATCH, FORWARD, BACKWARD, OPTIMIZER = "build", "batch", "forward", "backward", "optimizer"
"""Directions: what the training is doing. Building comes before the first step and is of step 0."""


class Entry(NamedTuple):
    """What was computed: training step, direction, module (or parameter, or nothing), operation, fingerprint."""

    step: int
    direction: str
    module: str
    operation: str
    fingerprint: str

    @property
    def location(self) -> tuple[int, str, str, str]:
        return self[:4]

    @property
    def sentence(self) -> str:
        """`aten.mm in layers.0.attention, forward, step 1`."""
        inside = f" in {self.module}" if self.module else ""
        when = f"step {self.step}" if self.step else "before the first step"
        return f"{self.operation}{inside}, {self.direction}, {when}"


class Difference(NamedTuple):
    """Where two runs part: the first entry, of each run, that is not as that of the other; None after a run's end."""

    number: int
    first: Entry | None
    second: Entry | None

    @property
    def same_work(self) -> bool:
        """Whether both did the same there, with another result. Else they went different ways."""
        return self.first is not None and self.second is not None and self.first.location == self.second.location


def first_difference(first: Iterable[Entry], second: Iterable[Entry]) -> Difference | None:
    """None where the two runs are the same."""
    for number, (entry, other) in enumerate(zip_longest(first, second)):
        if entry != other:
            return Difference(number, entry, other)
    return None


def written(entries: Iterable[Entry]) -> Iterator[str]:
    """As lines of JSON."""
    for entry in entries:
        yield json.dumps(entry) + "\n"


def read_entries(path: Path) -> Iterator[Entry]:
    """What was written to a file."""
    with path.open(encoding="utf-8") as lines:
        for line in lines:
            yield Entry(*json.loads(line))
