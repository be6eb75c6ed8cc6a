"""Alignment: which windows of several ranks tell of the same part of the run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from traincheck.vocab.events import EVAL, STAGES, TRAIN, Window

Place = tuple[int, int, int]
"""Step, number of the stage in the order of `STAGES`, occurrence of the stage in the step."""


def aligned(windows_of: Sequence[Iterable[Window]]) -> Iterator[tuple[Window, ...]]:
    """The windows of all ranks that have the same place in the run, in lock step: one of each rank, in their order.

    `windows_of` holds the windows of one process of each rank. Two windows have the same place when they are the same
    occurrence of the same stage in the same training step; clocks say nothing. A window that has no partner on each
    of the other ranks is left out, as are evaluations behind dropped windows: how many there were before is not known.
    One window of each rank is held at a time, for within a process places come in order: a step is trained, then
    evaluated, and its number never falls.

    Known limitations: evaluations of one step are told apart by their number. Where a rank evaluates alone before all
    ranks do, in the same step, its first is taken for the first of the others.
    """
    streams = [_placed(windows) for windows in windows_of]
    heads = [next(stream, None) for stream in streams]
    while heads:
        found = [head for head in heads if head is not None]
        if len(found) < len(heads):
            return  # a rank has no more windows, so no further one has a partner there
        latest = max(place for place, _ in found)
        behind = [rank for rank, (place, _) in enumerate(found) if place < latest]
        if not behind:
            yield tuple(window for _, window in found)
            behind = list(range(len(heads)))
        for rank in behind:
            heads[rank] = next(streams[rank], None)


def _placed(windows: Iterable[Window]) -> Iterator[tuple[Place, Window]]:
    """The windows of one process, each with its place; those whose place is doubtful are left out."""
    seen: Counter[str] = Counter()
    step = following = 0
    doubtful = False
    for window in windows:
        if window.step != step:
            step = window.step
            seen.clear()
        if window.stage == TRAIN:
            doubtful = False  # it is the only one of its step, and evaluations of the step follow it
        elif window.index != following:
            doubtful = True
        following = window.index + 1
        if doubtful and window.stage == EVAL:
            continue
        yield (step, STAGES.index(window.stage), seen[window.stage]), window
        seen[window.stage] += 1
