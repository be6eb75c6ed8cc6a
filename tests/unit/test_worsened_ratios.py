"""A ratio is worse only if each round was slower than each published one."""

from __future__ import annotations

from typing import Any

import pytest
from benchmarks.overhead.worsened import table, worsened
from rich.console import Console


def ratio(least: float, median: float, most: float) -> dict[str, float]:
    return {"least": least, "median": median, "most": most}


def workload(run: dict[str, float]) -> dict[str, Any]:
    even = ratio(0.98, 1.0, 1.02)
    where = {"run": {"sources_ms": {"optimizers": 0.75, "modules": 0.25}}}
    return {"plain_step_ms": 4.0, "collect_ratio": even, "run_ratio": run, "unwatched_ratio": even, "where": where}


@pytest.mark.parametrize(
    ("measured", "is_worse"),
    [
        (ratio(1.31, 1.35, 1.4), True),
        (ratio(1.29, 1.35, 1.4), False),
        (ratio(1.0, 1.01, 1.02), False),
    ],
)
def test_a_ratio_is_worse_outside_the_published_interval(measured: dict[str, float], is_worse: bool) -> None:
    published = {"cnn": workload(ratio(1.1, 1.2, 1.3))}
    lines = worsened({"cnn": workload(measured)}, published)
    assert len(lines) == is_worse
    assert all(line.startswith("cnn run: 1.35x (1.31-1.40), published 1.20x") for line in lines)


def test_a_new_workload_is_not_worse() -> None:
    assert worsened({"lstm": workload(ratio(2.0, 2.0, 2.0))}, {}) == []


def test_the_table_shows_wall_clock_beside_the_own_meter() -> None:
    console = Console(width=120)
    with console.capture() as printed:
        console.print(table({"cnn": workload(ratio(1.1, 1.2, 1.3))}, {}))
    row = next(line for line in printed.get().splitlines() if " run " in line)
    assert "1.20x (1.10-1.30)" in row
    assert "1.25x" in row, "a millisecond of TrainCheck on four of the program"
