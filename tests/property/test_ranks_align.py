"""Alignment never pairs windows of different parts of a run, and misses none that it can be sure of."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from traincheck.trace.alignment import aligned
from traincheck.vocab.events import Window

evaluations = st.lists(st.integers(0, 3), max_size=8)
"""How many evaluations follow each step, the setup first."""


def run_of(counts: list[int]) -> list[Window]:
    """All windows of a run."""
    told = [("setup", 0)] + [("eval", 0)] * sum(counts[:1])
    for step, count in enumerate(counts[1:], 1):
        told += [("train", step)] + [("eval", step)] * count
    told.append(("end", max(len(counts) - 1, 0)))
    return [Window(index, step, stage) for index, (stage, step) in enumerate(told)]


@given(evaluations, st.lists(st.sets(st.integers(0, 30)), min_size=1, max_size=3))
def test_windows_that_were_dropped_cost_no_more_than_their_partners(counts: list[int], dropped: list[set[int]]) -> None:
    whole = run_of(counts)
    ranks = [[window for window in whole if window.index not in lost] for lost in dropped]
    found = list(aligned(ranks))
    for windows in found:
        assert len({window.index for window in windows}) == 1  # the same part of the run on every rank
    kept = [window for window in whole if not any(window.index in lost for lost in dropped)]
    sure = [window.index for window in kept if window.stage != "eval"]
    assert [windows[0].index for windows in found if windows[0].stage != "eval"] == sure
    assert [windows[0].index for windows in found] == sorted(windows[0].index for windows in found)
    if not any(lost & {window.index for window in whole} for lost in dropped):
        assert [windows[0] for windows in found] == whole


@given(st.lists(evaluations, min_size=1, max_size=3))
def test_ranks_that_evaluate_differently_share_what_all_have(runs: list[list[int]]) -> None:
    ranks = [run_of(counts) for counts in runs]

    def places(windows: list[Window]) -> list[tuple[str, int, int]]:
        seen: Counter[tuple[str, int]] = Counter()
        found = []
        for window in windows:
            key = window.stage, window.step
            found.append((*key, seen[key]))
            seen[key] += 1
        return found

    shared = set.intersection(*(set(places(windows)) for windows in ranks))
    found = list(aligned(ranks))
    assert places([windows[0] for windows in found]) == [place for place in places(ranks[0]) if place in shared]
    for number, windows in enumerate(ranks):
        chosen = [each[number] for each in found]
        assert [place for place in places(windows) if place in shared] == places(chosen)
