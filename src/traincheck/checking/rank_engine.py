"""Judges the rules about several ranks, from the windows that the ranks publish."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from traincheck import plugins
from traincheck.checking.digests import Classes, RankValues
from traincheck.checking.engine import Engine, Outcome, demand_of
from traincheck.relations.base import compares_ranks
from traincheck.vocab.demand import Demand
from traincheck.vocab.events import Window
from traincheck.vocab.finding import Violation
from traincheck.vocab.invariant import Invariant
from traincheck.vocab.occasion import RANKS
from traincheck.vocab.ranks import named_ranks


@dataclass(frozen=True)
class RankComparison:
    """The outcome of comparing the ranks of a job, and what could not be compared."""

    outcome: Outcome
    not_compared: tuple[str, ...] = ()
    job: str = ""


def comparable(rules: Iterable[Invariant]) -> list[Invariant]:
    """The rules about several ranks together."""
    of_ranks = [rule for rule in rules if rule.subject.grain == RANKS]
    classes = plugins.load("traincheck.relations", {rule.relation for rule in of_ranks})
    return [rule for rule in of_ranks if rule.relation in classes and compares_ranks(classes[rule.relation])]


def published_demand(rules: Iterable[Invariant]) -> Demand:
    """What each rank must publish so that these rules can be judged, see `lean`."""
    return demand_of(comparable(rules))


class RankEngine:
    """Feeds the windows of the ranks of a job, step by step, to the relations of the deployed invariants.

    There is an engine for each of several sets of rules; the windows of the ranks are combined once. `values` returns
    the values of ranks whose digests differ, see `Classes`.
    """

    def __init__(self, deployed: Sequence[Sequence[Invariant]], values: RankValues) -> None:
        self.engines = [Engine(comparable(rules)) for rules in deployed]
        self.classes = Classes(values)

    def mute(self, muted: Mapping[str, str]) -> None:
        """Suspend these rules (by id, with the reason) from now on, and no others that a user muted."""
        for engine in self.engines:
            engine.mute(muted)

    @property
    def steps(self) -> int:
        """The last step that was compared."""
        return max((engine.outcome.steps for engine in self.engines), default=0)

    def feed(self, windows: Sequence[Window]) -> list[list[Violation]]:
        """Judge lean windows of the same part of the run; the violations, for each set of rules."""
        together = self.classes.together(windows)
        if not together:
            return [[] for _ in self.engines]
        violations = [engine.feed_ranks(together) for engine in self.engines]
        if not any(violations):
            self.classes.accept_differences()
        return violations


def not_compared(
    job: str, ranks: Iterable[int], last_steps: dict[int, int], ended: Iterable[int], step: int
) -> tuple[str, ...]:
    """The parts of a job of these ranks that could not be compared, with the reason.

    `last_steps` are the last published steps, by rank; ranks in `ended` publish nothing more. `step` is the last step
    that was compared.
    """
    named = f" of job {job}" if job else ""
    missing = sorted(set(ranks) - set(last_steps))
    reasons = [f"{named_ranks(missing)}{named} left no recording"] if missing else []
    furthest = max(last_steps.values(), default=0)
    short = sorted(rank for rank in ended if last_steps[rank] < furthest)
    if short and len(last_steps) > 1:
        reasons.append(
            f"ranks{named} were compared up to step {step}: {named_ranks(short)} recorded no more, others went on"
        )
    return tuple(reasons)
