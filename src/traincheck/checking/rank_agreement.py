"""Agreements: which ranks hold the same as which others, in the step of a finding and in those around it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from traincheck.checking.digests import values_of
from traincheck.checking.rank_states import QUANTITIES
from traincheck.vocab.events import TRAIN, Window
from traincheck.vocab.finding import Finding
from traincheck.vocab.finding_details import FAINT, UNKNOWN, WRONG, Agreement, Aspect, History, Row, State, Strip
from traincheck.vocab.invariant import Invariant
from traincheck.vocab.ranks import rank_numbers, ranks_that_differ

MOST_LABELS = 24
"""Rows and columns of a matrix; ranks that hold the same in everything share one where there are more."""

BESIDE = Aspect("beside the others", (State("as most", FAINT), State("differs", WRONG)))

MOST_VALUES = 512
"""Values of a rank in a step that are compared: of a large model enough to tell who agrees with whom."""

_Held = dict[tuple[str, str], int]
"""What a rank holds in a step: by thing and variable, a digest of the content."""


def held(windows: Iterable[Window], finding: Finding, rule: Invariant | None) -> dict[int, _Held]:
    """By training step, what a rank holds of that which a finding is about: the thing that its rule compares, or where
    that is not known its variables. Of calls, say, a rank holds nothing."""
    found: dict[int, _Held] = {}
    wanted = set(finding.variables)
    for window in windows:
        if window.stage != TRAIN or window.step < 1:
            continue
        told = {
            (what, variable): hash(repr(content))
            for what, variable, content in values_of(window)
            if (rule is None or what == rule.subject.api) and (variable in wanted or (rule is not None and not wanted))
        }
        found.setdefault(window.step, {}).update(sorted(told.items())[:MOST_VALUES])  # the same on all ranks
    return found


def agreement(by_rank: Mapping[int, Mapping[int, _Held]], step: int) -> Agreement | None:
    """Which ranks hold the same in `step`, where at least two of them tell what they hold; None where they do not."""
    told = {rank: of[step] for rank, of in sorted(by_rank.items()) if of.get(step)}
    if len(told) < 2:
        return None
    groups: dict[object, list[int]] = {}
    for rank, of_rank in told.items():
        alone = len(told) <= MOST_LABELS
        groups.setdefault(rank if alone else tuple(sorted(of_rank.items())), []).append(rank)
    leaders = [(rank_numbers(ranks), told[ranks[0]]) for ranks in list(groups.values())[:MOST_LABELS]]
    keys = {key for _, of_rank in leaders for key in of_rank}
    things = sorted({QUANTITIES.get(what, what.replace(".", " ").replace("_", " ")) for what, _ in keys})
    alike = tuple(
        tuple(sum(mine.get(key) == theirs.get(key) for key in keys) for _, theirs in leaders) for _, mine in leaders
    )
    return Agreement(step, " and ".join(things), tuple(label for label, _ in leaders), len(keys), alike)


def of_ranks(by_rank: Mapping[int, Mapping[int, _Held]], mark: int) -> History | None:
    """In which of the steps each rank held the same as most of the others; None where no step tells."""
    steps = {step for of in by_rank.values() for step, values in of.items() if values}
    if len(by_rank) < 2 or not steps:
        return None
    states: dict[int, list[int]] = {rank: [] for rank in sorted(by_rank)}
    every = tuple(range(min(steps), max(steps) + 1))
    for step in every:
        told = [(rank, tuple(sorted(of[step].items()))) for rank, of in sorted(by_rank.items()) if of.get(step)]
        differ = set(ranks_that_differ(told).ranks) if len({values for _, values in told}) > 1 else set()
        known = {rank for rank, _ in told} if len(told) > 1 else set()
        for rank, strip in states.items():
            strip.append(UNKNOWN if rank not in known else int(rank in differ))
    rows = [(f"rank {rank}", Strip(tuple(strip))) for rank, strip in states.items()]
    if len(rows) > MOST_LABELS:
        alike: dict[Strip, list[int]] = {}
        for rank, strip in states.items():
            alike.setdefault(Strip(tuple(strip)), []).append(rank)
        rows = [(f"ranks {rank_numbers(ranks)}", strip) for strip, ranks in alike.items()]
    told_rows = tuple(Row((name,), (strip,)) for name, strip in rows[:MOST_LABELS])
    return History("Ranks", every, mark, (BESIDE,), told_rows, max(len(rows) - MOST_LABELS, 0))
