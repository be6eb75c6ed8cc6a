"""The code, histories and tables that a page shows with a finding. Reports hold none of them."""

from __future__ import annotations

from dataclasses import dataclass

EMPTY, FAINT, FULL, WRONG = "empty", "faint", "full", "wrong"
"""How a state is drawn: absent, negligible, present, or wrong."""

UNKNOWN = -1
"""In place of a state that was not recorded."""


@dataclass(frozen=True, slots=True)
class CodeExcerpt:
    """Lines of the user's code around `line`; the first of them has the number `first`. `note` explains them, or says
    why there are none.
    """

    line: int
    first: int = 1
    lines: tuple[str, ...] = ()
    note: str = ""


@dataclass(frozen=True, slots=True)
class State:
    """A state of an object during a step, and how it is drawn."""

    words: str
    tone: str


@dataclass(frozen=True, slots=True)
class Strip:
    """One object over the steps: the number of its state in each step, or `UNKNOWN`."""

    states: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Aspect:
    """One question about each step, and the states that answer it."""

    title: str
    states: tuple[State, ...]


@dataclass(frozen=True, slots=True)
class Row:
    """The objects `names`, which do not differ: a strip for each aspect."""

    names: tuple[str, ...]
    strips: tuple[Strip, ...]


@dataclass(frozen=True, slots=True)
class History:
    """The states in each of `steps`. `mark` is the step to look at, `beyond` counts rows that were left out."""

    title: str
    steps: tuple[int, ...]
    mark: int
    aspects: tuple[Aspect, ...]
    rows: tuple[Row, ...]
    beyond: int = 0


@dataclass(frozen=True, slots=True)
class Curve:
    """A number over steps. Missing steps were not recorded, or had no number. `first` and `last` bound the shown range,
    `mark` is the step to look at.
    """

    title: str
    first: int
    last: int
    mark: int
    points: tuple[tuple[int, float], ...]


@dataclass(frozen=True, slots=True)
class Agreement:
    """Which ranks hold the same values in a step. Of the `values` that were compared, `agreeing[i][j]` are the same on
    the ranks (or groups of equal ranks) of the i-th and the j-th label.
    """

    step: int
    quantity: str
    labels: tuple[str, ...]
    values: int
    agreeing: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class FindingDetails:
    """Everything that is shown with one finding. `mute` is the command that mutes its rules, `note` says why its steps
    cannot be shown.
    """

    code: CodeExcerpt | None = None
    histories: tuple[History, ...] = ()
    curves: tuple[Curve, ...] = ()
    agreement: Agreement | None = None
    mute: str = ""
    note: str = ""
