"""Exhibits: what a finding is shown with, where people would rather look than read. Reports hold none of them."""

from __future__ import annotations

from dataclasses import dataclass

EMPTY, FAINT, FULL, WRONG = "empty", "faint", "full", "wrong"
"""How a state is drawn: nothing there, next to nothing, there, and not as it should be."""

UNKNOWN = -1
"""In place of a state, where the recording does not tell it."""


@dataclass(frozen=True, slots=True)
class CodeExcerpt:
    """Lines of the user's code around `line`; the first of them has the number `first`. `note` says what is to be known
    of them, or why there are none."""

    line: int
    first: int = 1
    lines: tuple[str, ...] = ()
    note: str = ""


@dataclass(frozen=True, slots=True)
class State:
    """A state that something is in during a step, and how it is drawn."""

    words: str
    tone: str


@dataclass(frozen=True, slots=True)
class Strip:
    """One thing over the steps: for each of them the number of its state, or `UNKNOWN`."""

    states: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Aspect:
    """One question that is asked in each step, and the states that answer it."""

    title: str
    states: tuple[State, ...]


@dataclass(frozen=True, slots=True)
class Row:
    """What is told of the things `names`, which do not differ: a strip for each aspect."""

    names: tuple[str, ...]
    strips: tuple[Strip, ...]


@dataclass(frozen=True, slots=True)
class History:
    """How things stood in each of `steps`. `mark` is the step to look at, `beyond` counts rows that were left out."""

    title: str
    steps: tuple[int, ...]
    mark: int
    aspects: tuple[Aspect, ...]
    rows: tuple[Row, ...]
    beyond: int = 0


@dataclass(frozen=True, slots=True)
class Curve:
    """A number over steps, by step; steps that are missing were not recorded, or had none. `first` and `last` are those
    between which it is shown, `mark` is the one to look at."""

    title: str
    first: int
    last: int
    mark: int
    points: tuple[tuple[int, float], ...]


@dataclass(frozen=True, slots=True)
class Agreement:
    """Which ranks hold the same in a step: `alike[i][j]` of the `values` that were compared are the same on the ranks
    (or groups of ranks that differ in nothing) of the i-th and the j-th label."""

    step: int
    quantity: str
    labels: tuple[str, ...]
    values: int
    agreeing: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class FindingDetails:
    """What one finding is shown with. `mute` is the command that switches its rules off, `note` says why there is
    nothing to be seen of its steps."""

    code: CodeExcerpt | None = None
    histories: tuple[History, ...] = ()
    curves: tuple[Curve, ...] = ()
    agreement: Agreement | None = None
    mute: str = ""
    note: str = ""
