"""Reduces a window that was recorded in full to what the sources would have observed under a smaller demand."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import replace

from traincheck.vocab.call_kinds import kinds_of
from traincheck.vocab.demand import CONTENTS, NUMBERS, ROWS, TENSORS, Demand, ValueKind
from traincheck.vocab.events import NO_CALL, Call, Change, Window

_FACTS: dict[ValueKind, tuple[str, ...]] = {
    NUMBERS: ("finite", "norm", "zero"),
    ROWS: ("rows_sum_to_one",),
    CONTENTS: ("changed",),
}
"""The facts of a tensor for which each kind of value is read."""


def observed(window: Window, demand: Demand) -> Window:
    """`window` with the calls, changes and readings in `demand`; each event keeps its position.

    A call is kept if it is recorded, or if something is observed around it.
    """
    if demand.everything:
        return window
    apis = demand.named_apis()
    attributes = {attribute for _, attribute in demand.state_changes}
    kept = {call.seq for call in window.calls if not apis.isdisjoint(_names(call))}
    # Readings are taken in calls that are recorded for other rules; without these, readings belong to no call.
    return replace(
        window,
        calls=tuple(_without_values(_moved(call, window, kept), demand) for call in window.calls if call.seq in kept),
        changes=tuple(
            _reassigned(change, window, demand, kept)
            for change in window.changes
            if f"{change.kind}.{change.attribute}" in attributes
        ),
        readings=tuple(
            reading if reading.call in kept else reading._replace(call=NO_CALL)
            for reading in window.readings
            if demand.takes_reading(reading.kind, reading.attribute)
        ),
    )


def _names(call: Call) -> tuple[str, ...]:
    """All names under which a call can be demanded."""
    return (*call.levels, *kinds_of(call))


def _moved(call: Call, window: Window, kept: Set[int]) -> Call:
    """The call as a child of the nearest call around it that is kept."""
    parent = next((outer.seq for outer in window.ancestors(call) if outer.seq in kept), NO_CALL)
    return call if parent == call.parent else call._replace(parent=parent)


def _reassigned(change: Change, window: Window, demand: Demand, kept: Set[int]) -> Change:
    """A change belongs to no call if its attribute is not observed around its own call: a later comparison finds it."""
    call = window.by_seq.get(change.call)
    attribute = f"{change.kind}.{change.attribute}"
    if call is not None and call.seq in kept and demand.observes_state(call.levels, attribute):
        return change
    return change._replace(call=NO_CALL)


def _without_values(call: Call, demand: Demand) -> Call:
    """The call without values of its tensors that are not read. (Arguments stay: some are recorded in any case.)"""
    if not call.tensors:
        return call
    names = _names(call)
    kinds = {kind for kind in _FACTS if demand.reads_values(names, kind)}
    if not kinds and not demand.reads_values(names, TENSORS):
        return call._replace(tensors=())
    facts = {name for kind in kinds for name in _FACTS[kind]}
    return call._replace(
        tensors=tuple(
            tensor._replace(
                fingerprint=tensor.fingerprint if CONTENTS in kinds else None,
                facts=tuple(fact for fact in tensor.facts if fact[0] in facts),
            )
            for tensor in call.tensors
        )
    )
