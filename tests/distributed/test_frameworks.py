"""Four ranks on a mesh, each with DDP, FSDP2, tensor parallelism and marks of Megatron, started without a launcher.

What is a replica and what is a part is learned from good runs: nothing is set by hand.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

import warm_commands
from rank_jobs import PROGRAM, rank_starter, traincheck
from shared_artifacts import made_once
from traincheck.trace.folder import RunFolder
from traincheck.vocab.collectives import group_of
from traincheck.vocab.events import Change, Window
from traincheck.vocab.facts import value_of

MESH = Path(__file__).parent / "programs" / "mesh.py"


@pytest.fixture(scope="module")
def mesh(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a book of three good runs, and the recordings."""
    return made_once(tmp_path_factory, "mesh", learn)


def learn(folder: Path) -> None:
    (folder / "mesh.py").write_bytes(MESH.read_bytes())
    for seed in "123":
        traincheck(folder, "collect", "-o", f"good{seed}", "--", *rank_starter(folder, 4), "mesh.py", seed)
    traincheck(folder, "infer", "good1", "good2", "good3", "-o", "book.jsonl")


def run(mesh: Path, folder: str, *words: str, expect: int = 0) -> dict[str, Any]:
    command = ["run", "-b", "book.jsonl", "-o", folder, "--", *rank_starter(mesh, 4), "mesh.py", *words]
    traincheck(mesh, *command, expect=expect)
    report: dict[str, Any] = json.loads((mesh / folder / "report.json").read_text())
    return report


@pytest.mark.slow
def test_mesh_groups_come_from_torch(mesh: Path) -> None:
    (job,) = RunFolder.open(mesh / "good1").jobs()
    assert job.size == 4 and sorted(job.files) == [0, 1, 2, 3]
    windows = [window for _, batch in RunFolder.open(mesh / "good1").windows() for window in batch]
    groups = {(window.rank, group_of(call)) for window in windows for call in window.calls if group_of(call)}
    assert {(0, "0+2"), (1, "1+3"), (0, "0-1"), (3, "2-3")} <= groups
    whole, parts, marked = (named(windows, name) for name in ("1.norm.weight", "1.up.weight", "1.weight"))
    assert {value_of(change.context, "replicated") for change in parts} == {False}
    assert {value_of(change.context, "replicated") for change in whole} == {None}, "it is on no mesh"
    assert any(value_of(change.context, "attributes") == "tensor_model_parallel" for change in marked)


def named(windows: list[Window], name: str) -> list[Change]:
    changes = [change for window in windows for change in window.changes if change.kind == "parameter"]
    return [change for change in changes if change.attribute == "data" and change.variable.endswith(f".{name}")]


@pytest.mark.slow
def test_a_good_run_is_clean_and_trains_as_without(mesh: Path) -> None:
    traincheck_run = [sys.executable, "-m", "traincheck", "run", "-b", "book.jsonl", "-o", "clean", "--"]
    plain, seen = (
        warm_commands.run([*words, *rank_starter(mesh, 4), "mesh.py", "7"], mesh, timeout=300)
        for words in ([], traincheck_run)
    )
    assert plain.returncode == seen.returncode == 0, seen.stderr
    assert sorted(plain.stdout.split("\n")) == sorted(seen.stdout.split("\n")) and "rank 3" in seen.stdout
    report = json.loads((mesh / "clean" / "report.json").read_text())
    assert report["verdict"] == "clean" and report["counts"]["steps"] == 24
    assert not any("ranks" in reason for reason in report["not_observed"]), "all ranks were compared to the end"


@pytest.mark.slow
def test_diverging_replicas_are_named_and_shards_are_not(mesh: Path) -> None:
    report = run(mesh, "wrong", "7", "buffers", "shard", "norm", expect=3)
    by_diagnosis = {finding["diagnosis"]: finding for finding in report["findings"] if finding["severity"] == "error"}
    buffers = by_diagnosis["buffers-differ-between-ranks"]
    assert buffers["step"] == 4 and any(name.endswith("running_mean") for name in buffers["variables"])
    shard = by_diagnosis["replica-changed-between-updates"]
    assert shard["step"] == 10 and shard["variables"][0].endswith(".0.weight") and "rank 3" in shard["observed"]
    norm = by_diagnosis["gradients-differ-between-ranks"]
    assert norm["step"] == 15 and norm["variables"] == ["Sequential#3.1.norm.weight"] and "rank 1" in norm["observed"]


@pytest.mark.slow
def test_ranks_that_accelerate_launches_are_known(tmp_path: Path) -> None:
    pytest.importorskip("accelerate")
    (tmp_path / "train.py").write_text(PROGRAM)
    # Without --cpu: that would start a single process. The program itself takes gloo.
    words = ["accelerate.commands.launch", "--multi_gpu", "--num_processes", "2"]
    traincheck(tmp_path, "collect", "-o", "run", "--", sys.executable, "-m", *words, "train.py", "1")
    (job,) = RunFolder.open(tmp_path / "run").jobs()
    assert job.size == 2 and sorted(job.files) == [0, 1]
