"""Describes the parameters, arguments and results of a call as evidence for a finding."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Sequence

from traincheck.vocab.events import RESULT, Call, Change, Window
from traincheck.vocab.facts import value_of
from traincheck.vocab.occasion import Occasion
from traincheck.vocab.properties import ElementSet

MAX_LINES = 3
MAX_NAMES = 3

_WORD = re.compile(r"\W")

_HELD = {"this": "held by this optimizer", "other": "held by another optimizer", "none": "held by no optimizer"}


def parameters_around(call: Call, window: Window) -> list[str]:
    """The parameters observed around a call: those that its receiver holds, or all if it holds none."""
    around = [change for change in window.changes_of.get(call.seq, ()) if change.kind == "parameter"]
    held = [change.variable for change in around if change.owner == call.receiver]
    return held or [change.variable for change in around]


def parameter_states(call: Call, window: Window, only: Collection[str] = ()) -> tuple[str, ...]:
    """One sentence for each group of parameters around the call: who holds them, trainable or not, their gradients.

    `only` limits it to these parameters; an empty one does not.
    """
    groups: dict[tuple[str, ...], list[str]] = {}
    for change in window.changes_of.get(call.seq, ()):
        if change.kind == "parameter" and (not only or change.variable in only):
            groups.setdefault(_state(change), []).append(change.variable)
    lines = [f"{_named(names)}: {', '.join(state)}" for state, names in groups.items()]
    return tuple(lines[:MAX_LINES])


def arguments_and_result(call: Call) -> tuple[str, ...]:
    """The integer arguments of a call and its result: `max_new_tokens of 12: result int64 (2, 44)`.

    For a constructor with a number of layers: how many modules of each class it built.
    """
    sizes = [f"{name} of {value}" for name, value in call.args if type(value) is int]
    layers = value_of(call.result, "layers")
    results = [tensor for tensor in call.tensors if tensor.role == RESULT or tensor.role.startswith(f"{RESULT}[")]
    values = [f"{tensor.role} {tensor.dtype} ({', '.join(map(str, tensor.shape))})" for tensor in results[:MAX_LINES]]
    if isinstance(layers, str):
        values = [f"its modules by class are {layers.replace('+', ', ')}"]
    if not values:
        return ()
    return (f"given {', '.join(sizes)}: {', '.join(values)}" if sizes else ", ".join(values),)


def unclipped_gradients(call: Call) -> tuple[str, ...]:
    """The gradients that a clipping function left unchanged while it scaled others."""
    left_out = value_of(call.result, "left_out")
    return (f"it left unchanged: {left_out}",) if left_out else ()


def differing_elements(known: ElementSet, occasions: Sequence[Occasion]) -> tuple[str, ...]:
    """What the occasions have and no good run had, each with what it resembles most; then what they lack.

    On an occasion that is only judged in a closed world, more elements are no violation.
    """
    present = {prop.detail for occasion in occasions if occasion.failed is not None for prop in occasion.held}
    allowed = {prop.detail for prop in known.allowed}
    lacking = [occasion for occasion in occasions if occasion.failed is None]
    missing = {prop.detail for occasion in lacking for prop in known.required - occasion.held}
    lines = []
    for new in sorted(present - allowed):
        similar = _most_similar(new, sorted(missing)) or _most_similar(new, sorted(allowed - present))
        similar = similar or _most_similar(new, sorted(allowed))
        lines.append(f"here {new}; in good runs {similar or 'nothing like it'}")
        missing.discard(similar)
    lines += [f"not here: {line}" for line in sorted(missing)]
    return tuple(lines[:MAX_LINES])


def _most_similar(new: str, lines: Sequence[str]) -> str:
    """The line of the same operation, or with the same inputs, that resembles `new` most; empty if there is none."""
    operation, inputs = _first_word(new), new.partition(" <- ")[2]
    candidates = [line for line in lines if _first_word(line) == operation]
    candidates = candidates or [line for line in lines if inputs and line.partition(" <- ")[2] == inputs]
    return next(iter(difflib.get_close_matches(new, candidates, 1, cutoff=0.0)), "")


def _first_word(line: str) -> str:
    return _WORD.split(line, maxsplit=1)[0]


def _state(change: Change) -> tuple[str, ...]:
    context = change.context
    words = [_HELD.get(str(value_of(context, "held")), "")]
    if value_of(context, "owned") is False:
        words.append("part of no module")
    if value_of(context, "requires_grad") is False:
        words.append("requires_grad False")
    gradient = value_of(context, "grad")
    if gradient is not None:
        missing = "no gradient"
        states = {"none": missing, "unused": missing, "zero": "gradient zero"}
        words.append(states.get(str(gradient), "has a gradient"))
    if change.attribute == "data":
        words.append("changed" if change.changed else "not changed")
    return tuple(word for word in words if word)


def _named(names: list[str]) -> str:
    if len(names) <= MAX_NAMES:
        return ", ".join(names)
    return f"{', '.join(names[:MAX_NAMES])} and {len(names) - MAX_NAMES} more"
