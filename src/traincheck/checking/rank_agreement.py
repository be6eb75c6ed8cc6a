"""Finds which ranks hold the same values, in the step of a finding and around it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from traincheck.checking.digests import values_of
from traincheck.checking.rank_states import QUANTITIES
from traincheck.vocab.events import TRAIN, Window
from traincheck.vocab.finding import Finding
from traincheck.vocab.finding_details import FAINT, UNKNOWN, WRONG, Agreement, Aspect, History, Row, State, Strip
from traincheck.vocab.invariant import Invariant
from traincheck.vocab.ranks import rank_numbers, ranks_that_differ

MAX_LABELS = 24
"""Maximum rows and columns of a matrix. With more ranks, ranks with equal values share a row."""

AGREEMENT = Aspect("agreement", (State("agrees", FAINT), State("differs", WRONG)))

MAX_VALUES = 512
"""Values of a rank in a step that are compared: enough to show which ranks of a large model agree."""

_Held = dict[tuple[str, str], int]
"""The digests of a rank's values in a step, by quantity and variable."""


def held(windows: Iterable[Window], finding: Finding, rule: Invariant | None) -> dict[int, _Held]:
    """Return by training step the rank's values for a finding: the quantity of its rule, or its variables.

    Empty for findings about other events, such as calls.
    """
    by_step: dict[int, _Held] = {}
    variables = set(finding.variables)
    for window in windows:
        if window.stage != TRAIN or window.step < 1:
            continue
        values = {
            (quantity, variable): hash(repr(content))
            for quantity, variable, content in values_of(window)
            if (rule is None or quantity == rule.subject.api)
            and (variable in variables or (rule is not None and not variables))
        }
        by_step.setdefault(window.step, {}).update(sorted(values.items())[:MAX_VALUES])  # the same on all ranks
    return by_step


def agreement(by_rank: Mapping[int, Mapping[int, _Held]], step: int) -> Agreement | None:
    """Return which ranks hold equal values in `step`, or None if fewer than two ranks recorded values."""
    by_rank_now = {rank: of[step] for rank, of in sorted(by_rank.items()) if of.get(step)}
    if len(by_rank_now) < 2:
        return None
    groups: dict[object, list[int]] = {}
    for rank, of_rank in by_rank_now.items():
        alone = len(by_rank_now) <= MAX_LABELS
        groups.setdefault(rank if alone else tuple(sorted(of_rank.items())), []).append(rank)
    leaders = [(rank_numbers(ranks), by_rank_now[ranks[0]]) for ranks in list(groups.values())[:MAX_LABELS]]
    keys = {key for _, of_rank in leaders for key in of_rank}
    quantities = sorted(
        {QUANTITIES.get(quantity, quantity.replace(".", " ").replace("_", " ")) for quantity, _ in keys}
    )
    shared = tuple(
        tuple(sum(mine.get(key) == theirs.get(key) for key in keys) for _, theirs in leaders) for _, mine in leaders
    )
    return Agreement(step, " and ".join(quantities), tuple(label for label, _ in leaders), len(keys), shared)


def of_ranks(by_rank: Mapping[int, Mapping[int, _Held]], mark: int) -> History | None:
    """Return in which steps each rank agreed with most others, or None if no step has values."""
    steps = {step for of in by_rank.values() for step, values in of.items() if values}
    if len(by_rank) < 2 or not steps:
        return None
    states: dict[int, list[int]] = {rank: [] for rank in sorted(by_rank)}
    every = tuple(range(min(steps), max(steps) + 1))
    for step in every:
        values_of_ranks = [
            (rank, tuple(sorted(of[step].items()))) for rank, of in sorted(by_rank.items()) if of.get(step)
        ]
        differ = (
            set(ranks_that_differ(values_of_ranks).ranks)
            if len({values for _, values in values_of_ranks}) > 1
            else set()
        )
        recorded = {rank for rank, _ in values_of_ranks} if len(values_of_ranks) > 1 else set()
        for rank, strip in states.items():
            strip.append(UNKNOWN if rank not in recorded else int(rank in differ))
    rows = [(f"rank {rank}", Strip(tuple(strip))) for rank, strip in states.items()]
    if len(rows) > MAX_LABELS:
        ranks_by_strip: dict[Strip, list[int]] = {}
        for rank, strip in states.items():
            ranks_by_strip.setdefault(Strip(tuple(strip)), []).append(rank)
        rows = [(f"ranks {rank_numbers(ranks)}", strip) for strip, ranks in ranks_by_strip.items()]
    shown_rows = tuple(Row((name,), (strip,)) for name, strip in rows[:MAX_LABELS])
    return History("Ranks", every, mark, (AGREEMENT,), shown_rows, max(len(rows) - MAX_LABELS, 0))
