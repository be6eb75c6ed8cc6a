"""Each case of the detection benchmark has the effect that it claims, shown without TrainCheck: no case is empty."""

from __future__ import annotations

import pytest
from benchmarks.detection.cases import BUGGY, CLEAN, Case, read_cases
from benchmarks.detection.effects import measured

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("case", read_cases(), ids=lambda case: case.id)
def test_the_effect_is_there_and_only_in_the_buggy_program(case: Case) -> None:
    assert measured(case, BUGGY) == case.first_bad_step
    assert measured(case, CLEAN) is None
