"""Counts the results of experiments and replays, so that a run keeps a small summary instead of every reading."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace

from traincheck.vocab import replayed_computations, verification
from traincheck.vocab.events import Reading, Window
from traincheck.vocab.facts import value_of
from traincheck.vocab.replayed_computations import ELSEWHERE, PARTS
from traincheck.vocab.verification import VerifiedComputation

AGREEING = frozenset((verification.AGREES, replayed_computations.SAME))
UNDECIDED = frozenset((verification.UNDECIDED, replayed_computations.UNDECIDED))
ORDER: Mapping[str, int] = {name: rank for rank, name in enumerate((*verification.EXPERIMENTS, *PARTS, ELSEWHERE))}
"""The order of the rows: experiments, then replays."""

MAX_ROWS, MAX_REASONS = 200, 5
"""Rows of a run, and reasons of a row. A program may build optimizers without end, and a note stays small."""

NOT_REPEATED = "its result was different each time"
"""The reason where a replay gives none."""


class VerificationTally:
    """Counts the readings of one process. `rows` may be read on another thread than `feed` runs on."""

    def __init__(self) -> None:
        self._rows: dict[tuple[str, str], VerifiedComputation] = {}

    def feed(self, window: Window) -> None:
        """Count the results in a window."""
        for reading in window.readings:
            if reading.kind == verification.KIND and reading.attribute in ORDER:
                self._add(_row_of(reading))

    @property
    def rows(self) -> tuple[VerifiedComputation, ...]:
        """One row for each experiment and subject, in a fixed order."""
        return _sorted(list(self._rows.values()))

    def _add(self, row: VerifiedComputation) -> None:
        key = (row.experiment, row.subject)
        known = self._rows.get(key)
        if known is not None or len(self._rows) < MAX_ROWS:
            self._rows[key] = row if known is None else _joined(known, row)


def merged(rows: Iterable[VerifiedComputation]) -> tuple[VerifiedComputation, ...]:
    """The rows of several processes as one table."""
    tally = VerificationTally()
    for row in rows:
        tally._add(row)
    return tally.rows


def _row_of(reading: Reading) -> VerifiedComputation:
    row = VerifiedComputation(reading.attribute, reading.variable)
    if reading.value in AGREEING:
        return replace(row, agreed=1)
    if reading.value in UNDECIDED:
        return replace(row, reasons=(str(value_of(reading.context, "found") or NOT_REPEATED),))
    return replace(row, disagreed=1)


def _joined(row: VerifiedComputation, more: VerifiedComputation) -> VerifiedComputation:
    reasons = tuple(dict.fromkeys((*row.reasons, *more.reasons)))[:MAX_REASONS]
    return replace(row, agreed=row.agreed + more.agreed, disagreed=row.disagreed + more.disagreed, reasons=reasons)


def _sorted(rows: Iterable[VerifiedComputation]) -> tuple[VerifiedComputation, ...]:
    return tuple(sorted(rows, key=lambda row: (ORDER.get(row.experiment, len(ORDER)), _by_numbers(row.subject))))


def _by_numbers(name: str) -> list[tuple[int, str]]:
    """The order of names with numbers: `Adam#2` before `Adam#10`."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"([0-9]+)", name)]
