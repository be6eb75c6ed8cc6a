"""`traincheck sdc study --tensor-parallel`: two hosts of two ranks, and a fault on one rank."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from traincheck.sdc.workload.workload import load_workload

STUDY = (sys.executable, "-m", "traincheck", "sdc", "study", "--tensor-parallel", "2", "-o", "study.json")
LAUNCHED = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "4", *STUDY[1:])


def study(home: Path, *words: str, command: tuple[str, ...] = STUDY, expect: int = 0) -> dict[str, Any]:
    done = subprocess.run([*command, *words], cwd=home, capture_output=True, text=True, timeout=300)
    assert done.returncode == expect, done.stdout + done.stderr
    return json.loads((home / "study.json").read_text())


def different(level: dict[str, Any], table: str, name: str) -> dict[tuple[str, str], list[int]]:
    """The ranks of the rows in which something differs."""
    return {(row[name], row["direction"]): row["ranks"] for row in level[table] if row["different"]}


@pytest.mark.slow
def test_healthy_hosts_agree_and_match_one_worker(tmp_path: Path) -> None:
    result = study(tmp_path, "--workload", "decoder-tiny-fp64", "--steps", "3")
    assert result["tensor_parallel"] == 2
    for level in result["levels"].values():
        assert not any(row["different"] for row in level["by_kind"])
        assert all(row["loss"] == row["suspect_loss"] for row in level["series"])
    kinds = {(row["kind"], row["direction"]) for row in result["levels"]["submodule"]["by_kind"]}
    assert {("attention", "backward"), ("feed-forward", "update"), ("reduction", "forward")} <= kinds
    assert result["levels"]["step"]["worst_noise_to_signal"] == 0
    assert all(row["parameter_distance"] == 0 for row in result["levels"]["period"]["series"])

    workload = load_workload("decoder-tiny-fp64", 0, torch.device("cpu"))
    model = workload.build_model()
    optimizer = workload.build_optimizer(model)
    for step, entry in enumerate(result["levels"]["period"]["series"], 1):
        optimizer.zero_grad()
        loss = workload.loss(model, workload.batch(step))
        loss.backward()
        optimizer.step()
        assert entry["loss"] == pytest.approx(loss.item(), abs=1e-10)


@pytest.mark.slow
def test_a_fault_before_the_reduction_is_reported_for_its_rank_and_submodule_only(tmp_path: Path) -> None:
    fault = "bitflip@forward:layers.1.attention,bit=20,elements=4,rank=1"
    result = study(tmp_path, "--level", "1", "--level", "2", "--steps", "2", "--fault", fault, expect=3)
    submodule, step = (result["levels"][level] for level in ("submodule", "step"))
    assert submodule["injected"] == [{"fault": fault, "times": 2, "times_by_rank": [0, 2]}]
    assert different(submodule, "by_kind", "kind") == {("attention", "forward"): [1]}
    assert different(submodule, "by_module", "module") == {("layers.1.attention", "forward"): [1]}
    (hit,) = [row for row in submodule["by_kind"] if row["different"]]
    assert hit["different"] == 8 and all(row["loss"] == row["suspect_loss"] for row in submodule["series"])
    # Its error goes over the reduction into all that follows, and back to all that came before.
    spread = different(step, "by_kind", "kind")
    kinds = ("embedding", "norm", "attention", "feed-forward", "head")
    assert {kind: spread[kind, "gradient"] for kind in kinds} == {kind: [0, 1] for kind in kinds}
    assert all(row["series"][0]["noise_to_signal"] > 0 for row in step["by_rank"])


@pytest.mark.slow
def test_a_fault_in_the_reduction_is_reported_for_the_reduction(tmp_path: Path) -> None:
    fault = "bitflip@communication:all_reduce,bit=20,chance=0.5,rank=0"
    result = study(tmp_path, "--level", "1", "--steps", "2", "--fault", fault, command=LAUNCHED)
    spread = different(result["levels"]["submodule"], "by_kind", "kind")
    assert spread and set(spread) <= {("reduction", "forward"), ("reduction", "backward")}
    assert all(ranks == [0] for ranks in spread.values())
    assert sum(result["levels"]["submodule"]["injected"][0]["times_by_rank"]) > 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--tensor-parallel", "4"), "2 heads of keys and values): 2; or a larger --workload"),
        (("--tensor-parallel", "0"), "--tensor-parallel was given 0; expected a number, 1 or more"),
        (
            ("--fault", "intermittent@forward,rank=2"),
            "rank= of --fault was given 2; expected a rank of the suspect host, 0 to 1",
        ),
    ],
)
def test_impossible_options_are_refused_before_anything_is_started(
    tmp_path: Path, words: tuple[str, ...], message: str
) -> None:
    command = [sys.executable, "-X", "importtime", *STUDY[1:], *words]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 2 and message in done.stderr and "| torch\n" not in done.stderr, done.stderr
    assert not (tmp_path / "study.json").exists()
