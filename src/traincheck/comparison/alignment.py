"""Which operation of one run is which of another: by phase, module and name, in their order.

Runs may differ in some operations, so the two sequences are aligned as texts are by `diff`, not by position.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from difflib import SequenceMatcher

from traincheck.vocab.operations import ACCUMULATED, AFTER, BEFORE, GRADIENT, INPUT, UPDATE, Operation

Pair = tuple[int, int]

Rename = Callable[[str], str]


def unchanged(name: str) -> str:
    """The renaming of names that stay."""
    return name


def aligned(a: Sequence[Operation], b: Sequence[Operation], rename: Rename = unchanged) -> list[Pair]:
    """The pairs of indices of operations that are the same; `rename` gives names of `b` those of `a`.

    Variables are aligned by name, wherever they are used first. The pairs are in the order of `a`.
    """
    variables = dict(_variables(a, unchanged))
    pairs = [(variables[key], index) for key, index in _variables(b, rename) if key in variables]
    own = [index for index, operation in enumerate(a) if not _variable(operation, unchanged)]
    other = [index for index, operation in enumerate(b) if not _variable(operation, rename)]
    keys = [_key(a[i], unchanged) for i in own], [_key(b[i], rename) for i in other]
    return sorted([*pairs, *((own[i], other[j]) for i, j in _matched(*keys))])


def _matched(a: Sequence[object], b: Sequence[object]) -> Iterator[Pair]:
    """The pairs of indices of equal elements of two sequences, in their order.

    The matcher takes minutes for thousands of equal keys, so it only gets what is between equal begins and ends.
    """
    shortest = min(len(a), len(b))
    begin = next((i for i in range(shortest) if a[i] != b[i]), shortest)
    end = next((i for i in range(shortest - begin) if a[-1 - i] != b[-1 - i]), shortest - begin)
    yield from ((i, i) for i in range(begin))
    matcher = SequenceMatcher(None, a[begin : len(a) - end], b[begin : len(b) - end], autojunk=False)
    for block in matcher.get_matching_blocks():
        yield from ((begin + block.a + i, begin + block.b + i) for i in range(block.size))
    yield from ((len(a) - end + i, len(b) - end + i) for i in range(end))


def _variables(
    operations: Sequence[Operation], rename: Rename
) -> Iterator[tuple[tuple[tuple[str, str, str], int], int]]:
    """A key for each value of a variable, and its index. A variable may have several values in a step."""
    counts: Counter[tuple[str, str, str]] = Counter()
    for index, operation in enumerate(operations):
        key = _variable(operation, rename)
        if key is not None:
            yield (key, counts[key]), index
            counts[key] += 1


def _key(operation: Operation, rename: Rename) -> tuple[str, str, str]:
    """What an operation has in common with that of the other run. Inputs have no name, but a type."""
    place = operation.settings if operation.name == INPUT else rename(operation.module)
    return operation.phase, operation.name, place


def is_of_variable(operation: Operation) -> bool:
    """Whether an operation is a value of a variable: a parameter, a buffer, or a gradient."""
    if operation.name == INPUT:
        return False
    return operation.phase in (BEFORE, GRADIENT, UPDATE, AFTER) or operation.name == ACCUMULATED


def _variable(operation: Operation, rename: Rename) -> tuple[str, str, str] | None:
    """A key of the value of a variable; None for other operations."""
    if not is_of_variable(operation):
        return None
    return operation.phase, operation.name, rename(operation.module)
