"""Record the results of a training as fingerprints, and find the first result in which two runs differ."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from itertools import zip_longest
from pathlib import Path
from typing import NamedTuple

BUILD, BATCH, FORWARD, BACKWARD, OPTIMIZER = "build", "batch", "forward", "backward", "optimizer"
"""Directions: the phases of a training. `build` comes before the first step and has step 0."""


class Entry(NamedTuple):
    """A computed result: training step, direction, module (or parameter, or empty), operation and fingerprint."""

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
        """Describe the entry, for example `aten.mm in layers.0.attention, forward, step 1`."""
        inside = f" in {self.module}" if self.module else ""
        when = f"step {self.step}" if self.step else "before the first step"
        return f"{self.operation}{inside}, {self.direction}, {when}"


class Difference(NamedTuple):
    """The first entry in which two runs differ, from each run; None if that run has already ended."""

    number: int
    first: Entry | None
    second: Entry | None

    @property
    def same_work(self) -> bool:
        """Whether both runs executed the same operation there, with different results."""
        return self.first is not None and self.second is not None and self.first.location == self.second.location


def first_difference(first: Iterable[Entry], second: Iterable[Entry]) -> Difference | None:
    """Return the first difference of two runs, or None if they are equal."""
    for number, (entry, other) in enumerate(zip_longest(first, second)):
        if entry != other:
            return Difference(number, entry, other)
    return None


def written(entries: Iterable[Entry]) -> Iterator[str]:
    """Yield the entries as lines of JSON."""
    for entry in entries:
        yield json.dumps(entry) + "\n"


def read_entries(path: Path) -> Iterator[Entry]:
    """Yield the entries of a file."""
    with path.open(encoding="utf-8") as lines:
        for line in lines:
            yield Entry(*json.loads(line))
