"""Operations of two runs are aligned in their order, whatever else the runs execute."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from traincheck.comparison.alignment import aligned
from traincheck.vocab.operations import FORWARD, Operation

names = st.lists(st.sampled_from("abc"), max_size=12)


def operations(names: Sequence[str]) -> list[Operation]:
    return [Operation(FORWARD, name) for name in names]


@given(names, names)
def test_pairs_are_equal_operations_in_order(a: list[str], b: list[str]) -> None:
    pairs = aligned(operations(a), operations(b))
    assert all(a[i] == b[j] for i, j in pairs)
    assert all(i < k and j < m for (i, j), (k, m) in itertools.pairwise(pairs))


@given(names, names, names, names)
def test_equal_begins_and_ends_are_aligned(begin: list[str], a: list[str], b: list[str], end: list[str]) -> None:
    pairs = set(aligned(operations([*begin, *a, *end]), operations([*begin, *b, *end])))
    assert {(i, i) for i in range(len(begin))} <= pairs
    assert len(pairs) >= len(begin) + len(end)
