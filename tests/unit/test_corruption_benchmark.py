"""The corruption benchmark: the usual alarms, what counts as found and as a false alarm, its grid, and a small run."""

from __future__ import annotations

import json
import math
import random
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest
import torch
from benchmarks.corruption import page, two_ranks
from benchmarks.corruption.__main__ import as_text, main, tasks_of
from benchmarks.corruption.alarms import LOSS, NORM, WARM, first_alarm, scores, threshold
from benchmarks.corruption.grid import CHANCES, DECODER, DEFECTIVE, HALF, IMAGES, PATTERNS, PLACES, WHOLE
from benchmarks.corruption.rank_checks import RANK_CHECKS, RULES
from benchmarks.corruption.result_store import ResultStore
from benchmarks.corruption.screening import BY_REFERENCE, ITSELF
from benchmarks.corruption.tally import Tally, tallies

from traincheck.invariants.book import read_book
from traincheck.invariants.packs import SHIPPED
from traincheck.sdc.faults.fault import BACKWARD, FORWARD, INTERMITTENT
from traincheck.sdc.workload.workload import load_workload


def falling(seed: int = 0, steps: int = 60) -> list[float]:
    draws = random.Random(seed)
    return [2 * math.exp(-step / 5) + 0.3 + draws.gauss(0, 0.03) for step in range(steps)]


def changed(step: int, value: float) -> list[float]:
    values = falling()
    values[step - 1] = value
    return values


def test_non_finite_values_alarm_from_the_first_step() -> None:
    for value in (math.nan, math.inf, -math.inf):
        for step in (1, 5, 40):
            assert first_alarm(changed(step, value), 1e9) == step


def test_outliers_alarm() -> None:
    limit = threshold(falling(seed) for seed in range(1, 20))
    assert 0 < limit < 30
    assert first_alarm(changed(40, 9.0), limit) == 40
    assert first_alarm(changed(40, falling()[39] + 0.001), limit) is None
    assert first_alarm(changed(WARM, 9.0), limit) is None  # too early to know
    assert first_alarm(changed(40, -9.0), limit) is None  # a loss that is lower is no alarm


def test_no_clean_run_is_above_the_threshold() -> None:
    clean = [falling(seed) for seed in range(30)]
    limit = threshold(clean)
    assert [first_alarm(values, limit) for values in clean] == [None] * 30
    assert any(first_alarm(values, limit - 0.11) for values in clean), "a lower one would do"


def test_non_finite_values_do_not_affect_the_window() -> None:
    values = changed(30, math.nan)
    assert all(math.isfinite(score) for score in scores(values)[30:])
    assert scores([1.0] * 30)[-1] == 0  # no spread at all


def test_found_delay_and_false_alarms() -> None:
    tally = Tally()
    tally.add(5, 5)
    tally.add(5, 9)
    tally.add(5, None)
    tally.add(5, 4)  # before the first stroke: it cannot be for it
    tally.add(None, None)
    tally.add(None, 7)  # the fault never struck
    tally.add(None, None, clean=True)
    tally.add(None, 3, clean=True)
    assert tally.rate == 0.5
    counts = {"struck": 4, "found": 2, "delay": {"median": 2.0, "most": 4}, "never_struck": 2, "clean": 2}
    assert tally.data() == {**counts, "false_alarms": 3}
    assert Tally().rate is None and Tally().data()["delay"] is None


def test_tallies_group_by_a_field() -> None:
    rows: list[dict[str, Any]] = [
        {"clean": False, "first": 2, "bit": 2, "alarms": {"a": 3, "b": None}},
        {"clean": False, "first": 2, "bit": 30, "alarms": {"a": 2}},
        {"clean": True, "first": None, "alarms": {"a": None}},
    ]
    tallied = tallies(rows, "bit")
    assert {key: (tally.detected, tally.struck, tally.clean) for key, tally in tallied.items()} == {
        ("a", 2): (1, 1, 0),
        ("b", 2): (0, 1, 0),
        ("a", 30): (1, 1, 0),
        ("a", None): (0, 0, 1),
    }
    assert tallies(rows)["a", None].data()["clean"] == 1


@pytest.mark.parametrize("workload", [DECODER, IMAGES])
def test_location_counts_match_the_grid(workload: str) -> None:
    model = load_workload(workload, 0, torch.device("cpu")).build_model()
    linear = [module for module in model.modules() if isinstance(module, torch.nn.Linear)]
    calls = len(linear) if PATTERNS[FORWARD][workload] == "Linear" else len(list(model.modules()))
    parameters = dict(model.named_parameters())
    weights = sum(name.endswith("weight") for name in parameters)
    assert [counts[workload] for counts in PLACES.values()] == [calls, calls, weights, weights, len(parameters)]
    assert PATTERNS[FORWARD][workload] == PATTERNS[BACKWARD][workload]


def test_an_intermittent_defect_has_one_location() -> None:
    model = load_workload(DECODER, 0, torch.device("cpu")).build_model()
    for wrapped in (model, torch.nn.ModuleDict({"module": model})):  # as DistributedDataParallel names modules
        for site, pattern in DEFECTIVE.items():
            named = wrapped.named_modules() if site in (FORWARD, BACKWARD) else wrapped.named_parameters()
            assert len([name for name, _ in named if fnmatchcase(name, pattern)]) == 1
    points = [point for point in WHOLE.points(DECODER) if point.kind == INTERMITTENT]
    assert len(points) == 2 * len(CHANCES) * len(DEFECTIVE)
    assert all(point.fault is not None and point.fault.chance == point.rate for point in points)
    assert all("bit" not in point.data() for point in points)


def test_as_many_clean_runs_as_faulty_ones() -> None:
    for grid in (WHOLE, HALF, *(check.grid for check in RANK_CHECKS.values())):
        faulty, clean = list(grid.points(DECODER)), list(grid.clean(DECODER))
        assert len(faulty) == len(clean) == len(set(clean)) and len(set(faulty)) == len(faulty)
        assert all(point.fault for point in faulty) and not any(point.fault for point in clean)
        assert not {point.seed for point in faulty} & {point.seed for point in clean}


def test_rules_of_replicas_are_those_of_the_pack() -> None:
    sentences = [rule.sentence for rule in read_book(SHIPPED / "distributed.jsonl").invariants]
    assert sum(sentence in RULES for sentence in sentences) == len(RULES)


def test_each_rank_reports_its_part() -> None:
    finding = {"step": 4, "diagnosis": "", "title": "", "severity": "error", "compared": 2}
    own = {**finding, "step": 2, "compared": 0}
    result = two_ranks.both(
        {"strokes": 0, "first": None, "findings": [finding, own], "weights": ["1", "2"], "not_observed": []},
        {"strokes": 3, "first": 4, "findings": [], "weights": ["1", "3"], "not_observed": ["x"]},
    )
    assert (result["strokes"], result["first"], result["apart"]) == (3, 4, True)
    assert two_ranks.alarms("replicas", result)["replicas"] == 4  # what one rank finds by itself is another detector


def test_the_result_store_resumes_after_a_kill(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    ResultStore(file, go_on=False).add("a", {"seed": 1}, {"first": math.nan})
    file.write_text(file.read_text() + '{"group": "a", "of"')
    store = ResultStore(file, go_on=True)
    assert store.get("a", {"seed": 1}) is not None and store.get("a", {"seed": 2}) is None
    assert ResultStore(file, go_on=False).get("a", {"seed": 1}) is None


def test_one_kind_of_fault_can_be_measured(capsys: pytest.CaptureFixture[str]) -> None:
    of_kind = tasks_of("screening", False, INTERMITTENT)
    assert of_kind and set(of_kind) < set(tasks_of("screening", False))
    assert {point.kind for _, point in of_kind} == {INTERMITTENT} and all(point.fault for _, point in of_kind)
    with pytest.raises(SystemExit):
        main(["--kind", INTERMITTENT])  # the thresholds of the usual alarms need clean runs
    assert "expected --only" in capsys.readouterr().err


@pytest.mark.usefixtures("settled_again")
def test_a_small_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--quick", "--only", "alarms,screening", "--jobs", "1", "--runs", str(tmp_path)]
    assert main(words) == 0
    stdout = capsys.readouterr().out
    for name, runs in ((LOSS, 2), (NORM, 2), (BY_REFERENCE, 1), (ITSELF, 1)):
        assert f"of {runs} found" in stdout.split(f"{name}: ")[1]
    assert f"{BY_REFERENCE}: 1 of 1 found" in stdout and f"{ITSELF}: 1 of 1 found" in stdout
    assert stdout.count("  0 false alarms") == 4
    # All is kept, so that a second start has nothing to do.
    before = (tmp_path / "quick.jsonl").read_text()
    assert main([*words, "--go-on"]) == 0
    assert capsys.readouterr().out == stdout and (tmp_path / "quick.jsonl").read_text() == before


def test_the_page_is_that_of_the_results() -> None:
    results = Path(page.__file__).parents[1] / "results" / "corruption.json"
    text = results.read_text()
    result = json.loads(text)
    assert as_text(result) == text
    assert page.PAGE.read_text() == page.text(result)
    assert sum(detector["false_alarms"] for detector in result["detectors"].values()) == sum(
        alarm is not None for row in result["runs"] if row["first"] is None for alarm in row["alarms"].values()
    )
