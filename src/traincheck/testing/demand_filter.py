"""Selective: what would have been observed of a window if only a demand had been asked for."""

from __future__ import annotations

from dataclasses import replace

from traincheck.vocab.call_kinds import kinds_of
from traincheck.vocab.demand import CONTENTS, NUMBERS, ROWS, TENSORS, Demand
from traincheck.vocab.events import NO_CALL, Call, Change, Window

_FACTS = {NUMBERS: ("finite", "norm", "zero"), ROWS: ("rows_sum_to_one",), CONTENTS: ("changed",)}
"""What is told of tensors where it is asked for."""


def observed(window: Window, demand: Demand) -> Window:
    """`window` with the calls, changes and readings that `demand` asks for; what is left keeps its position.

    A call is kept where it is asked for, or where something is to be observed around it.
    """
    if demand.everything:
        return window
    kept = {call.seq for call in window.calls if _wanted(call, demand)}
    # Readings are taken in calls that other things ask for; without these they hang on no call.
    return replace(
        window,
        calls=tuple(_stripped(_moved(call, window, kept), demand) for call in window.calls if call.seq in kept),
        changes=tuple(
            _noticed(change, window, demand, kept) for change in window.changes if _looked_for(change, demand)
        ),
        readings=tuple(
            reading if reading.call in kept else reading._replace(call=NO_CALL)
            for reading in window.readings
            if demand.wants_reading(reading.kind, reading.attribute)
        ),
    )


def _wanted(call: Call, demand: Demand) -> bool:
    names = _names(call)
    return demand.wants_call(names) or any(api in names for api, _ in demand.states)


def _names(call: Call) -> tuple[str, ...]:
    """All that a call can be demanded under."""
    return (*call.levels, *kinds_of(call))


def _moved(call: Call, window: Window, kept: set[int]) -> Call:
    """The call under the nearest call around it that is left."""
    around = next((other.seq for other in window.ancestors(call) if other.seq in kept), NO_CALL)
    return call if around == call.parent else call._replace(parent=around)


def _looked_for(change: Change, demand: Demand) -> bool:
    return any(what == f"{change.kind}.{change.attribute}" for _, what in demand.states)


def _noticed(change: Change, window: Window, demand: Demand, kept: set[int]) -> Change:
    """A change that is not looked for around its own call is noticed by the next one around which it is."""
    call = window.by_seq.get(change.call)
    if call is not None and call.seq in kept and demand.wants_state(call.levels, f"{change.kind}.{change.attribute}"):
        return change
    return change._replace(call=NO_CALL)


def _stripped(call: Call, demand: Demand) -> Call:
    """The call without what nobody asked for of its tensors. (Arguments are few, and some are told in any case.)"""
    if not call.tensors:
        return call
    names = _names(call)
    read = {what for what in _FACTS if demand.wants_state(names, what)}
    if not read and not demand.wants_state(names, TENSORS):
        return call._replace(tensors=())
    told = {name for what in read for name in _FACTS[what]}
    return call._replace(
        tensors=tuple(
            one._replace(
                fingerprint=one.fingerprint if CONTENTS in read else None,
                facts=tuple(fact for fact in one.facts if fact[0] in told),
            )
            for one in call.tensors
        )
    )
