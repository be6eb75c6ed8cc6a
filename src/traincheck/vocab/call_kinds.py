"""Kinds of calls: what calls in different programs have in common although each program has its own names.

A kind can be demanded like an API: sources then observe all calls of that kind. A kind is no level of an API, so only
rules that were made for it refer to it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from traincheck.vocab.events import MODULE, PROJECT, Call

NORMALISATION = "normalisation.forward"
"""Calls of modules whose class is named after a norm and that have a weight for each element."""

LAYERED = "constructor(layers)"
"""Constructors of modules that take a number of layers."""


_INIT, _TENSOR = "torch.nn.init", "torch.Tensor"
_OF_INIT = (
    "kaiming_normal_ kaiming_uniform_ normal_ orthogonal_ sparse_ trunc_normal_ uniform_ xavier_normal_ xavier_uniform_"
)
_OF_TENSOR = "bernoulli_ cauchy_ exponential_ geometric_ log_normal_ normal_ random_ uniform_"
FILLS = frozenset(f"{_INIT}.{name}" for name in _OF_INIT.split()) | {f"{_TENSOR}.{n}" for n in _OF_TENSOR.split()}
"""All functions of torch that overwrite a tensor with random numbers. (Filling it with ones again changes nothing.)
They are one subject: a rule learned from `kaiming_normal_` applies to `trunc_normal_` as well."""

BY_LIBRARY = "by_library"
"""The fact that code of a library, and not of the project, made one of these calls."""


def taking(argument: str) -> str:
    """The kind of the project's functions that have an argument of this name."""
    return f"function({argument})"


def named(word: str) -> str:
    """The kind of the project's functions that have this word in their name."""
    return f"functions named {word}"


def words_of(name: str) -> tuple[str, ...]:
    """The words in the name of a function (dotted, `with_underscores` or `camelCase`) that describe its purpose."""
    words = _WORD.findall(name.rsplit(".", 1)[-1])
    return tuple(dict.fromkeys(word.lower() for word in words if len(word) >= MIN_LETTERS))


def kinds_of_function(name: str, arguments: Iterable[str]) -> tuple[str, ...]:
    """The kinds of a function of this name, with these arguments."""
    return (*map(taking, arguments), *map(named, words_of(name)))


def argument_of_kind(kind: str) -> str:
    """The argument that a kind is named after, empty for other kinds."""
    return kind[len("function(") : -1] if kind.startswith("function(") else ""


def kinds_of_module(class_name: str) -> tuple[str, ...]:
    """The kinds of a call of a module of this class."""
    return (NORMALISATION,) if "norm" in class_name.lower() else ()


def kinds_of(call: Call) -> tuple[str, ...]:
    """The kinds of a recorded call, as far as its recording shows them."""
    if call.kind == MODULE:
        return kinds_of_module(call.name.rsplit(".", 2)[-2])
    if call.kind != PROJECT:
        return ()
    names = [name for name, _ in call.args] + [tensor.role for tensor in call.tensors]
    if call.name.endswith(".__init__"):
        return (LAYERED,) if any(map(is_layer_count, names)) else ()
    return kinds_of_function(call.name, names)


MIN_LETTERS = 4
"""Shorter words (`get`, `num`, `of`) say little about a function."""

_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")
_LAYER_COUNT = re.compile(r"(n|num|number_of)_?((hidden|encoder|decoder)_?)?(layers?|blocks?)|layers|blocks")


def is_layer_count(argument: str) -> bool:
    """Whether an argument is named like a number of layers: `num_layers`, `n_layer`, `layers`."""
    return _LAYER_COUNT.fullmatch(argument.lower()) is not None
