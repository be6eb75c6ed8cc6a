"""Compare the random states in which the workers of a data loader start their batches.

Compared are the k-th states of all workers, and the first state of each worker in one pass with that in the next.
Workers in equal states draw the same numbers, for example to augment images. If a worker did not leave its state in a
pass, nobody drew from it, so an equal state in the next pass says nothing. (Persistent workers continue from it.)
"""

from __future__ import annotations

from collections.abc import Iterator

from traincheck.relations.base import ended
from traincheck.relations.comparison import common
from traincheck.relations.parts import ITER, NEXT
from traincheck.vocab.demand import Demand
from traincheck.vocab.events import Call, Window
from traincheck.vocab.facts import FactValue
from traincheck.vocab.occasion import Occasion, Property, Subject
from traincheck.vocab.properties import DISTINCT, EQUAL, WORKER_STATES

RENEWED = "another in each pass"
WORKER = "worker"

_Round = dict[str, FactValue]
"""A state by the name of the worker."""


class WorkerSeeds:
    """Follows the windows of one process. Keeps the first states of the previous pass, and which workers drew from
    them.
    """

    grain = "workers"

    def __init__(self) -> None:
        self._first: dict[tuple[str, str], _Round] = {}  # of the pass that goes on, by loader and attribute
        self._before: dict[tuple[str, str], _Round] = {}
        self._drew: dict[tuple[str, str], set[str]] = {}  # workers that left their first state in the pass that goes on
        self._drew_before: dict[tuple[str, str], set[str]] = {}

    def occasions(self, window: Window) -> Iterator[Occasion]:
        """Yield one occasion for each call in which sources read states."""
        for call in window.calls:
            if not ended(call):
                continue
            if call.name == ITER:
                self._begin(call.receiver)
            elif call.name == NEXT:
                results = self._judge(call, window)
                held = frozenset(prop for prop, holds in results if holds)
                failed = frozenset(prop for prop, holds in results if not holds)
                if results:  # of a property that held in one round and failed in another, the failure counts
                    subject, context = Subject(NEXT, self.grain), common((call,), window.stage)
                    yield Occasion(subject, context, held - failed, failed, call.seq)

    def _begin(self, loader: str) -> None:
        """Start a new pass: the first states so far become those of the previous pass."""
        for key in [key for key in self._first if key[0] == loader]:
            self._before[key] = self._first.pop(key)
            self._drew_before[key] = self._drew.pop(key, set())

    def _judge(self, call: Call, window: Window) -> list[tuple[Property, bool]]:
        states_of: dict[str, dict[str, list[FactValue]]] = {}
        for reading in window.readings_of.get(call.seq, ()):
            if reading.kind == WORKER:
                states_of.setdefault(reading.attribute, {}).setdefault(reading.variable, []).append(reading.value)
        results = []
        for attribute, by_worker in states_of.items():
            results += self._over_passes(
                call.receiver, attribute, {name: states_of[0] for name, states_of in by_worker.items()}
            )
            self._note(call.receiver, attribute, by_worker)
            for states in zip(*by_worker.values(), strict=False):
                if len(states) > 1:
                    different = len(set(states))
                    results.append((Property(WORKER_STATES, attribute, DISTINCT), different == len(states)))
                    results.append((Property(WORKER_STATES, attribute, EQUAL), different == 1))
        return results

    def _note(self, loader: str, attribute: str, by_worker: dict[str, list[FactValue]]) -> None:
        """Record which workers have left the state in which they began the pass."""
        first = self._first[loader, attribute]
        drew = self._drew.setdefault((loader, attribute), set())
        drew.update(name for name, states in by_worker.items() if any(state != first.get(name) for state in states))

    def _over_passes(self, loader: str, attribute: str, states: _Round) -> list[tuple[Property, bool]]:
        key = (loader, attribute)
        if key in self._first:
            return []
        self._first[key] = states
        before = self._before.get(key, {})
        drew = self._drew_before.get(key, set())
        changed = [states[name] != old for name, old in before.items() if name in states]
        if not drew and not all(changed):
            return []
        return [(Property(WORKER_STATES, attribute, RENEWED), all(changed))] if changed else []

    @staticmethod
    def needs(prop: Property) -> Demand:
        return Demand.of_calls(NEXT, ITER) | Demand.of_readings(f"{WORKER}.{prop.object}")

    @staticmethod
    def describe(prop: Property) -> str:
        state = f"the state of {prop.object}"
        if prop.detail == RENEWED:
            return f"with DataLoader.__next__, {state} in a worker is another in each pass over the data"
        comparison = "different in all workers" if prop.detail == DISTINCT else "the same in all workers"
        return f"with DataLoader.__next__, {state} is {comparison} of a data loader"
