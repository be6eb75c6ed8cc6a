"""The closed vocabulary of facts, which describe the circumstances of an occasion."""

from __future__ import annotations

from typing import TypeAlias

FactValue: TypeAlias = str | int | float | bool | None
Facts: TypeAlias = tuple[tuple[str, FactValue], ...]
"""Sorted (name, value) pairs; hashable, so that equal circumstances are one key."""

FACTS: dict[str, str] = {
    "stage": "what the run was doing: setup, train, eval or end",
    "grad_mode": "on, off (no_grad) or inference",
    "autocast": "off, or the dtype that autocast casts to",
    "training": "the training flag of the module that was called, or of the innermost one that a function is called in",
    "outermost": "True when a module was called from outside any other module",
    "parametric": "True when an outermost module has parameters (a model, not a loss)",
    "closure": "True when an optimizer step was given a closure",
    "grads": "gradients that the optimizer holds: none, zero, some, mixed; unused where it had nothing to learn from",
    "exceeds": "True when the gradient norm was above the limit given to clipping",
    "lr": "learning rate: negative, zero, negligible (lost in rounding), positive; none without an optimizer",
    "lost": "True when an update is too small to change anything (lost in rounding, or a learning rate of zero)",
    "requires_grad": "whether the variable requires a gradient",
    "held": "which optimizer holds the variable: this (the receiver), other or none",
    "owned": "whether a module of the program owns the variable",
    "grad": "gradient of the variable before the call: none, zero or some; unused where nothing was computed with it",
    "before": "state of the variable's attribute before the call: none, zero or some",
    "precision": "full (float32, float64) or low (float16, bfloat16 and below)",
    "scalar": "True for a variable of one element",
    "set_to_none": "argument of zero_grad",
    "half": "True for a backward of what was computed under float16 autocast",
    "create_graph": "argument of backward",
    "retain_graph": "argument of backward",
    "first_batch": "True for the first batch of a pass over a data loader",
    "last_batch": "True when a data loader was exhausted",
    "within": "context managers active around the call (no_sync, sdpa_kernel ...), joined by +; empty for none",
    "kind": "what a variable is: parameter, buffer, optimizer_state, hyperparameter, module, loader ...",
    "inputs_dtype": "the floating point type of what went into the call, the widest of several; none for none",
    "tied": "whether several names stand for the variable",
    "same_name": "of a pair: whether both have the same name",
    "same_rank": "of a pair: whether both are of the same rank",
    "same_before": "of a pair over ranks: whether both had the same value before the update",
    "same_grad": "of a pair over ranks: whether the update used the same gradient, other than zero, on both",
    "all_same": "of a pair over ranks: whether both hold parameters of the same names and values before the update",
    "copies": "of a pair over ranks: whether both had the same value after an earlier update, or all_same is true",
    "data_parallel": "True for a gradient that a wrapper (DistributedDataParallel), or the program by itself, is to "
    "average over all ranks",
    "replicated": "of a variable on a mesh of ranks: whether it is whole on each of them (no shard of it)",
    "fresh": "whether what is saved was taken from the live state as it is now (and is no older or averaged copy)",
    "gathered": "True for a batch of a model whose parameters FSDP gathers from all ranks for its calls",
    "splits": "of an exchange among all ranks: whether the call gave the sizes to send and to receive",
    "updated": "of a pass over a data loader: whether parameters were updated in it",
    "by_library": "True where a library's own code, and not the project's, fills memory with random numbers",
    "attributes": "marks that frameworks set on a parameter (tensor_model_parallel ...), joined by +; empty for none",
}
"""Every fact that a context may hold. It never holds process and object ids, addresses, byte counts or clocks."""

JOINED = frozenset(("within", "attributes"))
"""Facts whose value is several names joined by +. A condition may test whether one name is among them."""


def facts(**pairs: FactValue) -> Facts:
    """The given facts, sorted by name; the same facts are always the same tuple."""
    return tuple(sorted(pairs.items()))


def merged(base: Facts, **extra: FactValue) -> Facts:
    """`base` with `extra` added; a name in both takes the value in `extra`."""
    return tuple(sorted({**dict(base), **extra}.items()))


def value_of(context: Facts, name: str) -> FactValue:
    """The value of the fact `name`, None if the context lacks it."""
    for key, value in context:
        if key == name:
            return value
    return None


def names_in(value: FactValue) -> tuple[str, ...]:
    """The names in the value of a joined fact; none in a value that is empty or no text."""
    return tuple(value.split("+")) if isinstance(value, str) and value else ()
