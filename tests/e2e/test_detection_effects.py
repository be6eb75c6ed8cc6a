"""Each case of the detection benchmark has the effect that it claims, shown without TrainCheck: no case is empty."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor

import pytest
from benchmarks.detection.cases import BUGGY, CLEAN, Case, read_cases
from benchmarks.detection.effects import measured
from benchmarks.detection.warm import warm_pool

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def pool() -> Iterator[ProcessPoolExecutor]:
    with warm_pool(1) as warm:
        yield warm


EVERY = 4
"""Cases of which one is tried for every change."""

CASES = [
    pytest.param(case, id=case.id, marks=pytest.mark.long if number % EVERY else ())
    for number, case in enumerate(read_cases())
]


@pytest.mark.parametrize("case", CASES)
def test_the_effect_is_there_and_only_in_the_buggy_program(case: Case, pool: ProcessPoolExecutor) -> None:
    assert pool.submit(measured, case, BUGGY).result() == case.first_bad_step
    assert pool.submit(measured, case, CLEAN).result() is None
