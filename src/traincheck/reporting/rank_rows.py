"""Build the table of ranks, the same in every report format."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from traincheck.vocab.finding import RankState
from traincheck.vocab.ranks import MAX_NAMED, rank_numbers


@dataclass(frozen=True, slots=True)
class RankRow:
    """A row: the numbers of its ranks as text, and their common state."""

    ranks: str
    state: RankState


def rank_rows(states: Sequence[RankState]) -> tuple[RankRow, ...]:
    """Return a row for each rank. In jobs with more than `MAX_NAMED` ranks, equal ranks share a row."""
    sizes: dict[str, int] = {}
    for state in states:
        sizes[state.job] = sizes.get(state.job, 0) + 1
    rows: dict[tuple[RankState, int], list[RankState]] = {}
    for state in states:
        alone = state.rank if sizes[state.job] <= MAX_NAMED else -1
        rows.setdefault((replace(state, rank=-1), alone), []).append(state)
    return tuple(RankRow(rank_numbers(state.rank for state in group), group[0]) for group in rows.values())


def job_names(states: Sequence[RankState]) -> dict[str, str]:
    """Return a short name for each job, without the common prefix of all names. Empty for one job."""
    names = list(dict.fromkeys(state.job for state in states))
    if len(names) < 2:
        return {}
    words = [name.split("-") for name in names]
    same = 0
    while all(len(parts) > same + 1 and parts[same] == words[0][same] for parts in words):
        same += 1
    return {name: "-".join(parts[same:]) or "-" for name, parts in zip(names, words, strict=True)}
