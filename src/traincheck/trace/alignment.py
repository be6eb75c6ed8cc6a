"""Match the windows of several ranks that cover the same part of the run.

Note [In step]
Windows are matched by their position in the run: training step, stage, occurrence. A rank may train alone for a while
(for example, to pretrain what all ranks share). Its step numbers are then ahead of the others'. Collective calls of all
ranks reveal this. A rank is alone if it makes no such call in a step in which others do, and does not catch up in the
next step. Its steps are skipped up to the one in which it joins the others. If windows differ only in which of them
contains a call (behind an evaluation of one rank alone), they are skipped until the counts agree again.

Note [Missing windows]
Windows can be missing: dropped, or in steps that were not observed, more of them on some ranks than on others. Their
calls are unknown. The number of calls before a window behind a gap therefore proves nothing. A rank counts as alone
only if two steps are known completely. If a rank that was alone joins the others behind a gap, its step is unknown, and
the comparison ends. Different counts are trusted only if the step, and everything up to the next one, is known.
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from traincheck import plugins
from traincheck.vocab.collectives import COLLECTIVES, group_of
from traincheck.vocab.events import EVAL, STAGES, TRAIN, Window

_NUMBER_OF_STAGE = {stage: number for number, stage in enumerate(STAGES)}

Position = tuple[int, int, int]
"""Step, index of the stage in `STAGES`, occurrence of the stage in the step."""


def aligned(windows_of: Sequence[Iterable[Window]]) -> Iterator[tuple[Window, ...]]:
    """Yield the windows of all ranks that have the same position in the run, one of each rank, in the order of ranks.

    `windows_of` holds the windows of one process of each rank. Two windows have the same position if they are the same
    occurrence of the same stage in the same training step, see Note [In step]; clocks are not used. A window without a
    partner on every other rank is skipped. Evaluations behind dropped windows are skipped, too: the number of earlier
    evaluations is unknown. At most two steps of each rank are held in memory, because positions within a process are in
    order: a step is trained, then evaluated, and its number never falls.

    Known limitations: evaluations of a step are distinguished by their number. If a rank evaluates alone before all
    ranks do, in the same step, its first evaluation is matched with the others' first.
    """
    ranks = [_Rank(windows) for windows in windows_of]
    while ranks and all(rank.head for rank in ranks):
        if len({rank.state for rank in ranks}) == 1:  # always, in most jobs
            yield tuple([rank.take() for rank in ranks])
            continue
        heads = [rank.position for rank in ranks]
        behind = [rank for rank in ranks if rank.position < max(heads)]
        if behind:
            for rank in behind:
                rank.drop()
            continue
        lone = _alone(ranks)
        if lone:
            together = next(rank for rank in ranks if rank not in lone)
            for rank in lone:
                rank.skip_to_others(together.position[0], together.together)
            continue
        if len({rank.owed for rank in ranks}) > 1 and not any(rank.missed for rank in ranks):
            for rank in ranks:  # in step again from the next ones on
                rank.take()
        elif _elsewhere(ranks):
            for rank in ranks:
                rank.drop()
        else:
            yield tuple(rank.take() for rank in ranks)


@functools.cache
def _sources_to_align() -> frozenset[str]:
    """Return the sources without which windows of several ranks cannot be matched."""
    declarations = plugins.load(plugins.SOURCE_GROUP, plugins.SOURCES)
    return frozenset(
        name for name, declaration in declarations.items() if declaration.required or declaration.aligns_ranks
    )


class _Head(NamedTuple):
    """A window with its position in its process, and the number of collective calls of all ranks in it."""

    position: Position
    window: Window
    together: int
    gap: bool  # windows are missing before it
    is_doubtful: bool  # evaluations before it may be missing, so its occurrence is unknown


class _Rank:
    """The windows of one rank.

    `ahead` is the number of steps by which it is ahead of the others. `owed` counts collective calls of all ranks in
    the windows that were skipped since the ranks were last in step.
    """

    def __init__(self, windows: Iterable[Window]) -> None:
        self._stream = _heads(windows)
        self._heads: deque[_Head] = deque()
        self._gaps = False  # whether any windows are missing
        self._lost = False
        self._missed = False
        self.ahead = 0
        self.owed = 0

    @property
    def head(self) -> _Head | None:
        """The next window, or None."""
        if self._lost:
            return None
        while self._heads or self._read():
            if not self._heads[0].is_doubtful:
                return self._heads[0]
            self.drop()  # its calls count, wherever the other ranks make them
        return None

    @property
    def missed(self) -> bool:
        """Whether windows are missing since the last one taken."""
        return self._missed or self._next.gap

    @property
    def position(self) -> Position:
        """The position of the next window, in the step numbers of the other ranks."""
        step, stage, occurrence = self._next.position
        return step - self.ahead, stage, occurrence

    @property
    def state(self) -> tuple[Position, int, int]:
        """Position, `together` and `owed`. Ranks that are equal in these are in step."""
        head = self._heads[0]
        position = head.position if not self.ahead else self.position
        return position, head.together, self.owed

    @property
    def _next(self) -> _Head:
        head = self.head
        if head is None:
            raise LookupError("a rank has no more windows")
        return head

    @property
    def together(self) -> int:
        """The number of collective calls of all ranks in the next window."""
        return self._next.together

    def within(self, steps: int) -> tuple[int, bool]:
        """Return the number of collective calls in the next `steps` steps, and whether all windows are present."""
        last = self._next.position[0] + steps - 1
        while self._heads[-1].position[0] <= last:
            if not self._read():
                break
        inside = [head for head in self._heads if head.position[0] <= last]
        complete = not any(head.gap for head in list(self._heads)[1 : len(inside) + 1])
        if len(inside) == len(self._heads):  # it is over: where windows are missing anyway, the last may be, too
            complete = complete and not self._gaps
        return self.owed + sum(head.together for head in inside), complete

    def _read(self) -> bool:
        """Read another window; return whether there is one."""
        head = next(self._stream, None)
        if head is not None:
            self._heads.append(head)
            self._gaps = self._gaps or head.gap
        return head is not None

    def drop(self) -> None:
        """Skip the next window."""
        head = self._heads.popleft()
        self.owed += head.together
        self._missed = self._missed or head.gap

    def take(self) -> Window:
        """Return the next window; from the following one on, the ranks are in step."""
        self.owed, self._missed = 0, False
        return self._heads.popleft().window

    def skip_to_others(self, step: int, calls: int) -> None:
        """Skip the windows up to the one that joins the others, which are in `step`, with `calls` collective calls.

        A window with more calls also contains the start of this rank's next step: it joins the others' first step in
        set-up.
        """
        while self.head is not None and not self.together:
            self.drop()
            self._lost = self.head is not None and self._next.gap
        if self.head is not None:
            self.ahead = self._next.position[0] - (step if self.together == calls else max(step, 1))


def _alone(ranks: Sequence[_Rank]) -> list[_Rank]:
    """Return the ranks that train alone in their next windows, see Note [In step]."""
    lone = [rank for rank in ranks if not rank.together]
    if not lone or len(lone) == len(ranks):
        return []
    made = {id(rank): rank.within(2) for rank in ranks}
    if not all(complete for _, complete in made.values()):
        return []
    most = max(count for count, _ in made.values())
    return [rank for rank in lone if made[id(rank)][0] < most]


def _elsewhere(ranks: Sequence[_Rank]) -> bool:
    """Whether the next windows differ only in which of them contains a call, as far as is known."""
    if len({rank.together for rank in ranks}) == 1:
        return False
    one_step, two_steps = ([rank.within(steps) for rank in ranks] for steps in (1, 2))
    if len({count for count, _ in two_steps}) == 1:
        return True
    if all(complete for _, complete in two_steps):
        return False
    return len({count for count, _ in one_step}) == 1 or not all(complete for _, complete in one_step)


def _heads(windows: Iterable[Window]) -> Iterator[_Head]:
    """Yield the windows of one process with their positions."""
    seen: dict[str, int] = {}
    step = following = counted = 0
    doubtful = False
    for window in windows:
        stage, index = window.stage, window.index
        if window.off and not _sources_to_align().isdisjoint(window.off):
            continue  # without recorded collectives, it cannot be matched with windows of other ranks
        if window.step != step:
            step = window.step
            seen.clear()
        if stage == TRAIN:
            doubtful = False  # it is the only one of its step, and evaluations of the step follow it
        elif index != following:
            doubtful = True
        following = index + 1
        occurrence = seen.get(stage, 0)
        seen[stage] = occurrence + 1
        together = len([call for call in window.calls if call.levels[0] in COLLECTIVES and not group_of(call)])
        is_doubtful = doubtful and stage == EVAL
        yield _Head((step, _NUMBER_OF_STAGE[stage], occurrence), window, together, index != counted, is_doubtful)
        counted = following
