"""Evidence: how the parameters around a call stood, in words, for the finding about it."""

from __future__ import annotations

from collections.abc import Collection

from traincheck.vocab.events import RESULT, Call, Change, Window
from traincheck.vocab.facts import value_of

MOST_LINES = 3
MOST_NAMES = 3

_HELD = {"this": "held by this optimizer", "other": "held by another optimizer", "none": "held by no optimizer"}


def concerned(call: Call, window: Window) -> list[str]:
    """The parameters observed around a call: those that its receiver holds, or all where it holds none."""
    around = [change for change in window.changes_of.get(call.seq, ()) if change.kind == "parameter"]
    held = [change.variable for change in around if change.owner == call.receiver]
    return held or [change.variable for change in around]


def told(call: Call, window: Window, only: Collection[str] = ()) -> tuple[str, ...]:
    """One sentence for each kind of parameter around the call: who holds it, whether it is trainable, its gradient.

    `only` names the parameters to tell of, all if it is empty.
    """
    groups: dict[tuple[str, ...], list[str]] = {}
    for change in window.changes_of.get(call.seq, ()):
        if change.kind == "parameter" and (not only or change.variable in only):
            groups.setdefault(_standing(change), []).append(change.variable)
    lines = [f"{_named(names)}: {', '.join(standing)}" for standing, names in groups.items()]
    return tuple(lines[:MOST_LINES])


def given_back(call: Call) -> tuple[str, ...]:
    """The whole numbers that a call was given, and what it returned: `max_new_tokens of 12: result int64 (2, 44)`.

    Of a constructor that is given a number of layers: how many modules of each class it built.
    """
    sizes = [f"{name} of {value}" for name, value in call.args if type(value) is int]
    layers = value_of(call.result, "layers")
    results = [one for one in call.tensors if one.role == RESULT or one.role.startswith(f"{RESULT}[")]
    made = [f"{one.role} {one.dtype} ({', '.join(map(str, one.shape))})" for one in results[:MOST_LINES]]
    if isinstance(layers, str):
        made = [f"of its classes of modules there are {layers.replace('+', ', ')}"]
    if not made:
        return ()
    return (f"given {', '.join(sizes)}: {', '.join(made)}" if sizes else ", ".join(made),)


def clipped(call: Call) -> tuple[str, ...]:
    """The gradients that a function which clips left as they were, while it scaled others."""
    left_out = value_of(call.result, "left_out")
    return (f"it left as they were: {left_out}",) if left_out else ()


def _standing(change: Change) -> tuple[str, ...]:
    context = change.context
    found = [_HELD.get(str(value_of(context, "held")), "")]
    if value_of(context, "owned") is False:
        found.append("part of no module")
    if value_of(context, "requires_grad") is False:
        found.append("requires_grad False")
    gradient = value_of(context, "grad")
    if gradient is not None:
        none = "no gradient"
        found.append({"none": none, "unused": none, "zero": "gradient zero"}.get(str(gradient), "has a gradient"))
    if change.attribute == "data":
        found.append("changed" if change.changed else "not changed")
    return tuple(word for word in found if word)


def _named(names: list[str]) -> str:
    if len(names) <= MOST_NAMES:
        return ", ".join(names)
    return f"{', '.join(names[:MOST_NAMES])} and {len(names) - MOST_NAMES} more"
