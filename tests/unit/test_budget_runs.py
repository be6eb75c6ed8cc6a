"""The tables of whole runs with `--budget 1%`, see benchmarks/overhead/budget_runs.py."""

from __future__ import annotations

from benchmarks.overhead.budget_runs import FEWEST, LENGTHS, STEPS, steps_of, text

RATIO = {"median": 1.004, "least": 0.999, "most": 1.012}


def test_runs_have_2000_steps_or_take_40_seconds() -> None:
    assert [steps_of(seconds) for seconds in (0.001, 0.02, 0.1, 1.0)] == [STEPS, STEPS, 400, FEWEST]


def test_results_without_these_runs_have_no_tables() -> None:
    assert text({"cnn": {"plain_step_ms": 6.9}}) == ""


def test_a_row_for_each_workload() -> None:
    whole = {"steps": 2000, "ratio": RATIO, "own_meter": 1.003}
    page = text({"cnn": {"one_percent": whole, "lengths": {str(steps): RATIO for steps in LENGTHS}}, "gpt": {}})
    assert "| cnn | 2,000 | 1.004x (0.999-1.012) | 1.003x |\n" in page
    assert "| workload | 40 steps | 400 steps | 4,000 steps |\n|---|---|---|---|\n| cnn | 1.004x" in page
    assert "gpt" not in page
