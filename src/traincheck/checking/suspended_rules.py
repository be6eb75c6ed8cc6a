"""Decides which deployed rules are not judged for now, because a source observes nothing or a user muted them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from traincheck import plugins
from traincheck.relations.base import needed
from traincheck.vocab.availability import Absence, needed_source
from traincheck.vocab.demand import NOTHING, Demand
from traincheck.vocab.invariant import Invariant


class SuspendedRules:
    """Follows the windows of one process (or of the ranks of a job), see Note [Silence is not absence]."""

    def __init__(self, invariants: Iterable[Invariant], relations: Mapping[str, Any]) -> None:
        self._rules = tuple(invariants)
        self._relations = relations
        self._demands: dict[str, Demand] = {}
        self._by_sources: dict[frozenset[str], Mapping[str, str]] = {}
        self._muted: Mapping[str, str] = {}
        self.ids: frozenset[str] = frozenset()
        """The suspended rules, by id."""
        self.absences: list[Absence] = []
        """Sources that observed nothing, in the order in which that began."""
        self.reasons: dict[str, str] = {}
        """The reason for each suspended rule, by id."""

    def mute(self, muted: Mapping[str, str]) -> None:
        """Suspend these rules from now on, and no others that a user muted. `muted` has the reason for each, by id."""
        deployed = {rule.id for rule in self._rules}
        self._muted = {name: reason for name, reason in muted.items() if name in deployed}
        self._update()

    def next_window(self, off: Mapping[str, str], step: int) -> None:
        """The next window is of `step`, and these sources observed nothing in it, for these reasons."""
        absent = {absence.source for absence in self.absences if absence.until is None}
        if absent == off.keys():
            return
        back = absent - off.keys()
        self.absences = [
            Absence(absence.source, absence.why, absence.since, step)
            if absence.until is None and absence.source in back
            else absence
            for absence in self.absences
        ]
        self.absences += [Absence(name, reason, step) for name, reason in sorted(off.items()) if name not in absent]
        self._update()

    def _update(self) -> None:
        absent = {absence.source: absence for absence in self.absences if absence.until is None}
        suspended = self._resting_on(frozenset(absent))
        self.reasons = {name: str(absent[source]) for name, source in suspended.items()}
        self.reasons.update(
            (name, f"rule {name} was muted during the run: {reason}") for name, reason in self._muted.items()
        )
        self.ids = frozenset(self.reasons)

    def _resting_on(self, off: frozenset[str]) -> Mapping[str, str]:
        """The rules that need one of these sources, and which one."""
        cached = self._by_sources.get(off)
        if cached is None:
            declarations = plugins.load(plugins.SOURCE_GROUP, off)
            sources = ((rule.id, needed_source(off, self._demand(rule), declarations)) for rule in self._rules)
            cached = self._by_sources[off] = {name: source for name, source in sources if source}
        return cached

    def _demand(self, rule: Invariant) -> Demand:
        cached = self._demands.get(rule.id)
        if cached is None:
            relation = self._relations.get(rule.relation)
            demand: Demand = NOTHING if relation is None else needed(relation, rule.subject, rule.property)
            cached = self._demands[rule.id] = demand
        return cached
