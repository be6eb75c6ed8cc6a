"""Resting: which deployed rules are not judged for now, as a source observes nothing or somebody muted them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from traincheck import plugins
from traincheck.relations.base import needed
from traincheck.vocab.availability import Absence, needed_source
from traincheck.vocab.demand import NOTHING, Demand
from traincheck.vocab.invariant import Invariant

_NOBODY: frozenset[str] = frozenset()


class Resting:
    """Follows the windows of one process (or of the ranks of a job), see Note [Silence is not absence]."""

    def __init__(self, invariants: Iterable[Invariant], relations: Mapping[str, Any]) -> None:
        self._rules = tuple(invariants)
        self._relations = relations
        self._demands: dict[str, Demand] = {}
        self._known: dict[frozenset[str], Mapping[str, str]] = {}
        self._muted: Mapping[str, str] = {}
        self.ids = _NOBODY
        """The rules that rest, by id."""
        self.absences: list[Absence] = []
        """Sources that observed nothing, in the order in which that began."""
        self.reasons: dict[str, str] = {}
        """Why each of them does."""

    def mute(self, muted: Mapping[str, str]) -> None:
        """From now on these rules are not judged, and no others are muted; `muted` has the reason for each, by id."""
        known = {rule.id for rule in self._rules}
        self._muted = {name: reason for name, reason in muted.items() if name in known}
        self._settle()

    def meet(self, off: Mapping[str, str], step: int) -> None:
        """The next window is of `step`, and these sources observed nothing in it."""
        going = {one.source for one in self.absences if one.until is None}
        if going == off.keys():
            return
        back = going - off.keys()
        self.absences = [
            Absence(one.source, one.why, one.since, step) if one.until is None and one.source in back else one
            for one in self.absences
        ]
        self.absences += [Absence(name, why, step) for name, why in sorted(off.items()) if name not in going]
        self._settle()

    def _settle(self) -> None:
        going = {one.source: one for one in self.absences if one.until is None}
        resting = self._touched_by(frozenset(going))
        self.reasons = {name: str(going[source]) for name, source in resting.items()}
        self.reasons.update((name, f"rule {name} was muted on the way: {why}") for name, why in self._muted.items())
        self.ids = frozenset(self.reasons)

    def _touched_by(self, off: frozenset[str]) -> Mapping[str, str]:
        """The rules that rest on one of these sources, and on which."""
        found = self._known.get(off)
        if found is None:
            declarations = plugins.load(plugins.SOURCE_GROUP, off)
            told = ((rule.id, needed_source(off, self._demand(rule), declarations)) for rule in self._rules)
            found = self._known[off] = {name: source for name, source in told if source}
        return found

    def _demand(self, rule: Invariant) -> Demand:
        found = self._demands.get(rule.id)
        if found is None:
            relation = self._relations.get(rule.relation)
            needs: Demand = NOTHING if relation is None else needed(relation, rule.subject, rule.property)
            found = self._demands[rule.id] = needs
        return found
