"""Check that saved values equal the live ones, and that live values equal the loaded ones after a load.

Around a call that saves or loads, sources read the values of the program and those of the copy. The context omits the
stage and the mode of the call: a checkpoint has to be right whenever it is written.

Note [Several files]
A large model is saved in parts, one call for each. A variable that is missing from one part is not missing if another
part of the same save has it. Parts are calls at the same place, of which no two save the same variable.

Note [Loading in part]
A program that fine-tunes loads a part of its model on purpose, with `strict=False`. The same flag hides a checkpoint
whose names do not match the model (saved from a wrapped model, with a prefix), so that nothing is loaded. So
"everything is loaded" is an optional practice, and "something is loaded" is not. If the model has parameters, these are
counted: torch does not report every missing buffer (batch norms restart their count of batches if an old checkpoint
lacks it).

Known limitations: for copies in another precision or shape, only that difference is reported, not whether values agree.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from traincheck.relations.base import ended, outcome_of, short
from traincheck.relations.parts import StatelessPart, is_figure, phrase_for
from traincheck.vocab.demand import Demand
from traincheck.vocab.events import LIVE, LOADED, SAVED, Call, Reading, Window
from traincheck.vocab.facts import Facts, FactValue, merged, value_of
from traincheck.vocab.occasion import Occasion, Property, Subject
from traincheck.vocab.properties import IS_LOADED, IS_SAVED, LIVE_EQUALS_LOADED, SAVED_EQUALS_LIVE, TAKES_SOMETHING

PRESENT = "present"

_VERBS_BY_ROLE = {SAVED: (SAVED_EQUALS_LIVE, IS_SAVED), LOADED: (LIVE_EQUALS_LOADED, IS_LOADED)}
_OF_TENSORS = ("parameter", "buffer")


class _Copied(NamedTuple):
    """The values of one variable in one call, by (attribute, role)."""

    kind: str
    variable: str
    values: dict[tuple[str, str], FactValue]
    context: dict[str, FactValue]


class CheckpointMatch(StatelessPart):
    """Judges the calls that save or load."""

    def occasions(self, window: Window) -> Iterator[Occasion]:
        """Yield one occasion for all variables of a call with the same outcome, at every level of the call."""
        elsewhere = _saved_elsewhere(window)
        for seq, readings_of_call in window.readings_of.items():
            call = window.by_seq.get(seq)
            if call is None or not ended(call):
                continue
            if seq in elsewhere:
                readings_of_call = [reading for reading in readings_of_call if _missing(reading) not in elsewhere[seq]]
            for role in (SAVED, LOADED):
                if not any(reading.role == role for reading in readings_of_call):
                    continue
                within = value_of(call.context, "within")
                around: Facts = () if within is None else (("within", within),)
                if role == LOADED:
                    yield from _judge_anything_loaded(call, readings_of_call)
                for (kind, context, held, failed), variables in _by_outcome(readings_of_call, role).items():
                    told_context = merged(context, **dict(around))
                    for level in call.levels:
                        subject = Subject(level, f"{kind}.{role}")
                        yield Occasion(subject, told_context, held, failed, seq, tuple(variables))

    @staticmethod
    def speaks_of(subject: Subject) -> bool:
        return subject.grain.endswith((f".{SAVED}", f".{LOADED}"))

    @staticmethod
    def needs(subject: Subject, prop: Property) -> Demand:
        kind = subject.grain.rpartition(".")[0]
        if prop.verb == TAKES_SOMETHING:
            return Demand.of_calls(subject.api) | Demand.of_readings(
                *(f"{tensor_kind}.{PRESENT}" for tensor_kind in _OF_TENSORS)
            )
        if prop.verb in (IS_SAVED, IS_LOADED):
            attributes: tuple[str, ...] = (PRESENT,)
        else:  # dtype and shape show whether values can be compared
            attributes = ("data", "dtype", "shape") if prop.object == "data" else (prop.object,)
        return Demand.of_calls(subject.api) | Demand.of_readings(*(f"{kind}.{attribute}" for attribute in attributes))

    @staticmethod
    def is_optional_practice(prop: Property) -> bool:
        # Weights may be saved in another precision, and loaded in part, on purpose.
        return prop.verb == IS_LOADED or (prop.verb == SAVED_EQUALS_LIVE and prop.object == "dtype")

    @staticmethod
    def describe(subject: Subject, prop: Property) -> str:
        kind, _, role = subject.grain.rpartition(".")
        noun = kind.replace("_", " ")
        call = short(subject.api)
        if prop.verb == TAKES_SOMETHING:
            return f"a call of {call} finds something of the model in what it loads"
        if prop.verb in (IS_SAVED, IS_LOADED):
            return f"every {noun} of the model is among what a call of {call} {'saves' if role == SAVED else 'loads'}"
        if kind in _OF_TENSORS:
            quantity = f"{'value' if prop.object == 'data' else prop.object} of a {noun}"
        else:
            quantity = phrase_for(f"{kind}.{prop.object}")
        if role == SAVED:
            return f"the {quantity} that a call of {call} saves is that of the live one"
        return f"after a call of {call}, the {quantity} is that of the loaded one"


def _judge_anything_loaded(call: Call, readings_of_call: list[Reading]) -> Iterator[Occasion]:
    """Whether anything was loaded, see Note [Loading in part]."""
    presence = [reading for reading in readings_of_call if reading.role == LOADED and reading.attribute == PRESENT]
    listed = next(filter(None, ([member for member in presence if member.kind == kind] for kind in _OF_TENSORS)), [])
    if listed:
        held, failed = outcome_of(Property(TAKES_SOMETHING, "model"), any(reading.value is True for reading in listed))
        missing = () if held else tuple(reading.variable for reading in listed)
        note = f"none of {len(missing)} {listed[0].kind}s of the model was in what was loaded"
        for level in call.levels:
            yield Occasion(Subject(level, f"model.{LOADED}"), (), held, failed, call.seq, missing, note=note)


def _saved_elsewhere(window: Window) -> dict[int, set[str]]:
    """For each call that saved a part, the variables of the other parts, see Note [Several files]."""
    goes: dict[tuple[str, int], dict[int, set[str]]] = {}
    for seq, readings_of_call in window.readings_of.items():
        call = window.by_seq.get(seq)
        if call is None or not ended(call):
            continue
        saved = {r.variable for r in readings_of_call if r.role == SAVED and r.attribute == PRESENT and r.value is True}
        if saved:
            goes.setdefault((call.levels[-1], call.parent), {})[seq] = saved
    elsewhere: dict[int, set[str]] = {}
    for parts in goes.values():
        whole = set().union(*parts.values())
        if len(parts) > 1 and len(whole) == sum(map(len, parts.values())):
            elsewhere.update((seq, whole - part) for seq, part in parts.items())
    return elsewhere


def _missing(reading: Reading) -> str:
    """The variable that is missing from a save according to this reading; empty for any other reading."""
    missing = reading.role == SAVED and reading.attribute == PRESENT and reading.value is False
    return reading.variable if missing else ""


_Outcome = tuple[str, Facts, frozenset[Property], frozenset[Property]]


def _by_outcome(readings_of_call: list[Reading], role: str) -> dict[_Outcome, list[str]]:
    """The variables of a call, by kind, context and the properties that held and failed for them."""
    groups: dict[_Outcome, list[str]] = {}
    for copied in _copied(readings_of_call, role):
        held, failed = _judged(copied, role)
        if held or failed:
            outcome = (copied.kind, tuple(sorted(copied.context.items())), frozenset(held), frozenset(failed))
            groups.setdefault(outcome, []).append(copied.variable)
    return groups


def _copied(readings_of_call: list[Reading], role: str) -> list[_Copied]:
    copies: dict[tuple[str, str], _Copied] = {}
    for reading in readings_of_call:
        if reading.role in (LIVE, role):
            key = (reading.kind, reading.variable)
            copied = copies.get(key)
            if copied is None:
                copied = copies[key] = _Copied(*key, {}, {})
            copied.values[reading.attribute, reading.role] = reading.value
            copied.context.update(reading.context)
    return list(copies.values())


def _judged(copied: _Copied, role: str) -> tuple[set[Property], set[Property]]:
    """The properties that held and failed for one variable. A value that only one side recorded is not judged."""
    equals, there = _VERBS_BY_ROLE[role]
    results: dict[Property, bool] = {}
    for (attribute, of), value in copied.values.items():
        if of != role:
            continue
        if attribute == PRESENT:
            results[Property(there, copied.kind)] = value is True
            continue
        live = copied.values.get((attribute, LIVE))
        if live is not None and value is not None and _comparable(copied, attribute, role):
            results[Property(equals, attribute)] = _agree(attribute, live, value)
    held = {prop for prop, holds in results.items() if holds}
    return held, results.keys() - held


def _comparable(copied: _Copied, attribute: str, role: str) -> bool:
    """Whether both sides should agree: a load may cast, and values in another dtype or shape have other bytes."""
    if copied.kind not in _OF_TENSORS:
        return is_figure(copied.values[attribute, role]) or is_figure(copied.values[attribute, LIVE])
    if attribute == "dtype":
        return role == SAVED
    values = copied.values
    same = all(
        values.get((form, LIVE)) == values.get((form, role))
        for form in ("dtype", "shape")
        if (form, LIVE) in values and (form, role) in values
    )
    return attribute != "data" or same


def _agree(attribute: str, live: FactValue, copy: FactValue) -> bool:
    if attribute == "keys":  # an optimizer may add entries that a copy of an older version lacks
        return set(str(copy).split("+")) <= set(str(live).split("+"))
    return live == copy
