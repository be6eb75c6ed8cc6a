"""Alignment never pairs windows of different parts of a run, and misses none that it can be sure of."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from traincheck.trace.alignment import aligned
from traincheck.vocab.events import Window

evaluations = st.lists(st.integers(0, 3), max_size=8)
"""The number of evaluations after each step, starting with the setup."""


def run_of(counts: list[int]) -> list[Window]:
    """All windows of a run."""
    stages = [("setup", 0)] + [("eval", 0)] * sum(counts[:1])
    for step, count in enumerate(counts[1:], 1):
        stages += [("train", step)] + [("eval", step)] * count
    stages.append(("end", max(len(counts) - 1, 0)))
    return [Window(index, step, stage) for index, (stage, step) in enumerate(stages)]


@given(evaluations, st.lists(st.sets(st.integers(0, 30)), min_size=1, max_size=3))
def test_windows_that_were_dropped_cost_no_more_than_their_partners(counts: list[int], dropped: list[set[int]]) -> None:
    whole = run_of(counts)
    ranks = [[window for window in whole if window.index not in lost] for lost in dropped]
    pairs = list(aligned(ranks))
    for windows in pairs:
        assert len({window.index for window in windows}) == 1  # the same part of the run on every rank
    kept = [window for window in whole if not any(window.index in lost for lost in dropped)]
    sure = [window.index for window in kept if window.stage != "eval"]
    assert [windows[0].index for windows in pairs if windows[0].stage != "eval"] == sure
    assert [windows[0].index for windows in pairs] == sorted(windows[0].index for windows in pairs)
    if not any(lost & {window.index for window in whole} for lost in dropped):
        assert [windows[0] for windows in pairs] == whole


@given(st.lists(evaluations, min_size=1, max_size=3))
def test_ranks_with_different_evaluations_align_common_steps(runs: list[list[int]]) -> None:
    ranks = [run_of(counts) for counts in runs]

    def places(windows: list[Window]) -> list[tuple[str, int, int]]:
        seen: Counter[tuple[str, int]] = Counter()
        partners = []
        for window in windows:
            key = window.stage, window.step
            partners.append((*key, seen[key]))
            seen[key] += 1
        return partners

    shared = set.intersection(*(set(places(windows)) for windows in ranks))
    partners = list(aligned(ranks))
    assert places([windows[0] for windows in partners]) == [
        position for position in places(ranks[0]) if position in shared
    ]
    for number, windows in enumerate(ranks):
        chosen = [group[number] for group in partners]
        assert [position for position in places(windows) if position in shared] == places(chosen)
