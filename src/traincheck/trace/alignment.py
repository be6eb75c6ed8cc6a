"""Alignment: which windows of several ranks tell of the same part of the run.

Note [In step]
Windows are put side by side by their place in the run: training step, stage, occurrence. Where a rank trains alone for
a while (the first pretrains what all then share), its steps are ahead of the others'. What tells so are the calls that
all ranks make together: a rank that makes none in a step in which others do, nor makes up for it in the next one, is
alone, and its steps are left out up to the one in which it joins the others. Where windows differ only in which of them
a call fell into (behind an evaluation of one rank alone), they are left out until the counts agree again.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from traincheck.vocab.collectives import COLLECTIVES, group_of
from traincheck.vocab.events import EVAL, STAGES, TRAIN, Window

Place = tuple[int, int, int]
"""Step, number of the stage in the order of `STAGES`, occurrence of the stage in the step."""


def aligned(windows_of: Sequence[Iterable[Window]]) -> Iterator[tuple[Window, ...]]:
    """The windows of all ranks that have the same place in the run, in lock step: one of each rank, in their order.

    `windows_of` holds the windows of one process of each rank. Two windows have the same place when they are the same
    occurrence of the same stage in the same training step, see Note [In step]; clocks say nothing. A window that has no
    partner on each of the other ranks is left out, as are evaluations behind dropped windows: how many there were
    before is not known. Of each rank the windows of two steps are held at the most, for within a process places come in
    order: a step is trained, then evaluated, and its number never falls.

    Known limitations: evaluations of one step are told apart by their number. Where a rank evaluates alone before all
    ranks do, in the same step, its first is taken for the first of the others.
    """
    ranks = [_Rank(windows) for windows in windows_of]
    while ranks and all(rank.head for rank in ranks):
        heads = [rank.place for rank in ranks]
        behind = [rank for rank in ranks if rank.place < max(heads)]
        if behind:
            for rank in behind:
                rank.drop()
            continue
        lone = _alone(ranks)
        if lone:
            together = next(rank for rank in ranks if rank not in lone)
            for rank in lone:
                rank.skip_to_others(together.place[0], together.together)
            continue
        if len({rank.owed for rank in ranks}) > 1:
            for rank in ranks:  # in step again from the next ones on
                rank.take()
        elif _elsewhere(ranks):
            for rank in ranks:
                rank.drop()
        else:
            yield tuple(rank.take() for rank in ranks)


class _Head(NamedTuple):
    """A window with its place in its own process, and how many calls all ranks made together in it."""

    place: Place
    window: Window
    together: int


class _Rank:
    """The windows of one rank. `ahead` is by how many steps it is ahead of the others; `owed` counts the calls that all
    ranks made together in windows that were left out since it was in step with them."""

    def __init__(self, windows: Iterable[Window]) -> None:
        self._stream = _placed(windows)
        self._heads: deque[_Head] = deque()
        self.ahead = 0
        self.owed = 0

    @property
    def head(self) -> _Head | None:
        """The next window, None where there is none."""
        if not self._heads:
            self._heads.extend(_counted(next(self._stream, None)))
        return self._heads[0] if self._heads else None

    @property
    def place(self) -> Place:
        """The place of the next window among those of the others."""
        step, stage, occurrence = self._next.place
        return step - self.ahead, stage, occurrence

    @property
    def _next(self) -> _Head:
        head = self.head
        if head is None:
            raise LookupError("a rank has no more windows")
        return head

    @property
    def together(self) -> int:
        """How many calls all ranks made together in the next window."""
        return self._next.together

    def in_two_steps(self) -> int:
        """How many they made from here to the end of the following step."""
        last = self._next.place[0] + 1
        while self._heads[-1].place[0] <= last:
            found = _counted(next(self._stream, None))
            if not found:
                break
            self._heads.extend(found)
        return self.owed + sum(head.together for head in self._heads if head.place[0] <= last)

    def drop(self) -> None:
        """Leave the next window out."""
        self.owed += self._heads.popleft().together

    def take(self) -> Window:
        """The next window; from the one behind it on the ranks are in step."""
        self.owed = 0
        return self._heads.popleft().window

    def skip_to_others(self, step: int, calls: int) -> None:
        """Leave out the windows up to the one in which it joins the others, which are in `step`, with so many calls.

        One with more of them is where its own next step begins as well: it joins the first step of those in set-up.
        """
        while self.head is not None and not self.together:
            self.drop()
        if self.head is not None:
            self.ahead = self._next.place[0] - (step if self.together == calls else max(step, 1))


def _alone(ranks: Sequence[_Rank]) -> list[_Rank]:
    """The ranks that are by themselves in their next windows, see Note [In step]."""
    lone = [rank for rank in ranks if not rank.together]
    if not lone or len(lone) == len(ranks):
        return []
    most = max(rank.in_two_steps() for rank in ranks)
    return [rank for rank in lone if rank.in_two_steps() < most]


def _elsewhere(ranks: Sequence[_Rank]) -> bool:
    """Whether the next windows differ only in which of them a call fell into."""
    counts = {rank.together for rank in ranks}
    return len(counts) > 1 and len({rank.in_two_steps() for rank in ranks}) == 1


def _counted(placed: tuple[Place, Window] | None) -> list[_Head]:
    if placed is None:
        return []
    place, window = placed
    return [_Head(place, window, sum(call.name in COLLECTIVES and not group_of(call) for call in window.calls))]


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
