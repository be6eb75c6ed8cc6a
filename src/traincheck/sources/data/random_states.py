"""Fingerprints the random streams of a process without drawing from them."""

from __future__ import annotations

import random
import sys
from array import array
from collections.abc import Callable, Iterable, Iterator
from types import FunctionType, MethodType, ModuleType
from typing import Any

import torch
import xxhash

from traincheck.sources.recording.frames import captured_values
from traincheck.sources.tensors.reading import fingerprints, hidden_from_modes

PYTHON, NUMPY, TORCH = "python", "numpy", "torch"
STREAMS = (PYTHON, NUMPY, TORCH)
"""The streams of every process: `random`, the global stream of numpy (where imported), and torch on the CPU."""

DEPTH = 3
"""How deep to search for generators: a subset of a data set with a chain of transforms, one of which holds one."""
MAX_OBJECTS, MAX_ENTRIES = 200, 32
"""Objects to search, and entries of a list or dict: larger containers hold data, not transforms."""


def stream_fingerprint(stream: str) -> int | None:
    """Return the fingerprint of one of `STREAMS`, None where the process does not have it."""
    if stream == PYTHON:
        return _of_python(random.getstate())
    if stream == TORCH:
        return _of_torch(torch.default_generator)
    numpy_random = sys.modules.get("numpy.random")
    return None if numpy_random is None else _digest(numpy_random.get_state(legacy=False))


def fingerprint(generator: Any) -> int | None:
    """Return the fingerprint of a generator from `generators_in`, None where its state is unreadable."""
    try:
        if isinstance(generator, torch.Generator):
            return _of_torch(generator)
        if isinstance(generator, random.Random):
            return _of_python(generator.getstate())
        if hasattr(generator, "get_state"):  # numpy's RandomState
            return _digest(generator.get_state(legacy=False))
        return _digest(getattr(generator, "bit_generator", generator).state)
    except Exception:  # a system generator, or a class of the user
        return None


def combined(values: Iterable[int]) -> int:
    """Combine several fingerprints into one."""
    return xxhash.xxh3_64_intdigest(array("Q", values).tobytes())


def _of_python(state: tuple[Any, ...]) -> int:
    if len(state) == 3 and isinstance(state[1], tuple):
        return xxhash.xxh3_64_intdigest(array("Q", state[1]).tobytes() + repr((state[0], state[2])).encode())
    return xxhash.xxh3_64_intdigest(repr(state).encode())


def _of_torch(generator: torch.Generator) -> int | None:
    if generator.device.type != "cpu":
        return None  # a worker must not touch an accelerator
    with hidden_from_modes():
        return fingerprints([generator.get_state()])[0]


def _digest(state: Any) -> int:
    """Return the digest of a numpy state: numbers, text and arrays in nested dicts."""
    hasher = xxhash.xxh3_64()

    def add(value: Any) -> None:
        if isinstance(value, dict):
            for name in sorted(value):
                hasher.update(str(name).encode())
                add(value[name])
        elif hasattr(value, "tobytes"):
            hasher.update(value.tobytes())
        else:
            hasher.update(repr(value).encode())

    add(state)
    return int(hasher.intdigest())


# -- generators held by objects of the program ----------------------------------------------------------------------


def generators_in(*roots: Any) -> list[Any]:
    """Return the random generators that objects hold, in the order of their attributes, each once.

    The search covers attributes, nested objects (a wrapped data set, a chain of transforms), and names that
    `__getitem__`, `__iter__`, `__call__` and plain functions take from their module or closure. It runs no code of the
    program. Known limitations: it misses local variables (of an `__iter__` that makes its own generator), objects
    deeper than `DEPTH`, and large containers.
    """
    generators: dict[int, Any] = {}
    seen: set[int] = set()
    is_generator = _generator_test()
    level = list(roots)
    for _ in range(DEPTH + 1):
        below: list[Any] = []
        for holder in level:
            if len(seen) >= MAX_OBJECTS:
                return list(generators.values())
            if id(holder) not in seen:
                seen.add(id(holder))
                for value in _referenced_by(holder):
                    if is_generator(value):
                        generators.setdefault(id(value), value)
                    elif _may_refer(value):
                        below.append(value)
        level = below
    return list(generators.values())


def _generator_test() -> Callable[[Any], bool]:
    kinds: tuple[type, ...] = (random.Random, torch.Generator)
    numpy_random: Any = sys.modules.get("numpy.random")
    if numpy_random is not None:
        kinds += (numpy_random.Generator, numpy_random.RandomState, numpy_random.BitGenerator)
    return lambda value: isinstance(value, kinds)


_PLAIN = (str, bytes, bytearray, int, float, complex, bool, type(None), type, ModuleType, torch.Tensor, array)
_METHODS = ("__getitem__", "__getitems__", "__iter__", "__next__", "__call__")


def _may_refer(value: Any) -> bool:
    return not isinstance(value, _PLAIN)


def _referenced_by(holder: Any) -> Iterator[Any]:
    """Yield the objects that a holder refers to, as far as possible without running code of the program."""
    if isinstance(holder, MethodType):
        yield holder.__self__
        holder = holder.__func__
    if isinstance(holder, FunctionType):
        yield from _referenced_by_function(holder)
    elif isinstance(holder, (list, tuple, dict)):
        if len(holder) <= MAX_ENTRIES:
            yield from holder.values() if isinstance(holder, dict) else holder
    else:
        try:
            attributes = object.__getattribute__(holder, "__dict__")
        except AttributeError:
            attributes = {}
        yield from list(attributes.values())
        for name in _METHODS:
            method = next((vars(cls)[name] for cls in type(holder).__mro__ if name in vars(cls)), None)
            if isinstance(method, FunctionType) and not str(method.__module__).startswith("torch."):
                yield from _referenced_by_function(method)


def _referenced_by_function(function: FunctionType) -> Iterator[Any]:
    """Yield the closure of a function, and generators among the globals that it names (not via modules or classes)."""
    is_generator = _generator_test()
    yield from captured_values(function)
    for name in function.__code__.co_names:
        value = function.__globals__.get(name)
        if is_generator(value):
            yield value
