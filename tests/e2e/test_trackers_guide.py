"""The shell blocks of the trackers guide work; the trackers' own libraries read the run back."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from warm_commands import path_of_shell

GUIDE = Path(__file__).resolve().parents[2] / "docs" / "trackers.md"
BLOCK = re.compile(r"^```bash\n(.*?)^```", re.MULTILINE | re.DOTALL)

PROGRAM = """
import os

import torch

if "MLFLOW_RUN_ID" in os.environ:
    import mlflow

    mlflow.start_run()
    mlflow.log_metric("loss", 1.0)
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
optimizer = torch.optim.Adam(model.parameters())
for _ in range(12):
    x = torch.randn(16, 4)
    loss = torch.nn.functional.mse_loss(model(x), x.sum(1, keepdim=True))
    loss.backward()
    optimizer.step()
"""
ERROR = "Gradients are not cleared between steps"
CURVES = {f"traincheck/{name}" for name in ("errors", "notices", "rules_checked", "steps", "steps_watched", "cost")}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text(PROGRAM)
    return tmp_path


def run(project: Path, line: str, **variables: str) -> str:
    """Return the output of a command that finds an error, without network access."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("WANDB_", "MLFLOW_"))}
    environ |= {"PATH": path_of_shell(), "COLUMNS": "100", "WANDB_MODE": "offline", "WANDB_DIR": str(project)}
    environ |= {f"WANDB_{kind}_DIR": str(project / kind) for kind in ("CACHE", "CONFIG", "DATA")}
    environ |= {"MLFLOW_TRACKING_URI": str(project / "mlruns"), "MLFLOW_ALLOW_FILE_STORE": "true", **variables}
    done = subprocess.run(["bash", "-c", line], cwd=project, env=environ, capture_output=True, text=True)
    assert done.returncode == 3, f"{line}\n{done.stdout}{done.stderr}"
    return done.stderr


def records(file: Path) -> Iterator[Any]:
    """Return the contents of an offline wandb run: a LevelDB log behind a header, with protobuf records."""
    from wandb.proto import wandb_internal_pb2

    data, at, parts = file.read_bytes(), 7, b""
    while at + 7 <= len(data):
        if 32_768 - at % 32_768 < 7:
            at += 32_768 - at % 32_768
            continue
        size, kind = int.from_bytes(data[at + 4 : at + 6], "little"), data[at + 6]
        parts += data[at + 7 : at + 7 + size]
        at += 7 + size
        if kind in (1, 4):  # a whole one, or the end of one
            record = wandb_internal_pb2.Record()
            record.ParseFromString(parts)
            parts = b""
            yield record


@pytest.mark.slow
def test_the_guide_works(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for library in ("tensorboard", "wandb", "mlflow"):
        pytest.importorskip(library)
    (line,) = [line for block in BLOCK.findall(GUIDE.read_text(encoding="utf-8")) for line in block.splitlines()]
    output = run(project, line)
    for tracker in ("tensorboard", "wandb", "mlflow"):
        assert f"tracked by {tracker}: " in output, output
    assert "reported once" not in output, output
    _tensorboard(project / "runs" / "today" / "tensorboard")
    _wandb(project)

    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=str(project / "mlruns"))
    experiment = client.get_experiment_by_name("nightly")
    (ours,) = client.search_runs([experiment.experiment_id])
    assert (ours.info.run_name, ours.info.status) == ("traincheck train.py", "FAILED")
    assert ours.data.metrics.keys() >= CURVES and ours.data.metrics["traincheck/steps"] == 12
    assert ERROR in ours.data.tags["traincheck.finding.1"] and ours.data.tags["traincheck.verdict"] == "errors"
    artifacts = {artifact.path for artifact in client.list_artifacts(ours.info.run_id, "traincheck")}
    assert artifacts == {"traincheck/report.html", "traincheck/report.json", "traincheck/report.md"}

    # A run of the program's own is joined, and left to it to end.
    theirs = client.create_run(experiment.experiment_id, run_name="theirs").info.run_id
    run(project, "traincheck run --track mlflow train.py", MLFLOW_RUN_ID=theirs)
    tracked = client.get_run(theirs)
    assert tracked.data.metrics.keys() >= {"loss", "traincheck/errors"}
    assert (tracked.info.run_name, tracked.info.status) == ("theirs", "FINISHED")
    assert len(client.search_runs([experiment.experiment_id])) == 2


def _tensorboard(folder: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    read = EventAccumulator(str(folder))
    read.Reload()
    assert set(read.Tags()["scalars"]) >= CURVES
    last = read.Scalars("traincheck/errors")[-1]
    assert last.value >= 1 and [scalar.value for scalar in read.Scalars("traincheck/steps")] == [12]
    texts = {
        tag: read.Tensors(tag)[0].tensor_proto.string_val[0].decode()
        for tag in read.Tags()["tensors"]
        if read.SummaryMetadata(tag).plugin_data.plugin_name == "text"
    }
    assert ERROR in texts["traincheck/findings"] and texts["traincheck/report"].startswith("## TrainCheck: ")


def _wandb(project: Path) -> None:
    (file,) = project.glob("runs/today/wandb/offline-run-*/*.wandb")
    by_kind: dict[str, list[Any]] = {}
    for record in records(file):
        kind = record.WhichOneof("record_type")
        by_kind.setdefault(kind, []).append(getattr(record, kind))
    (begun, *_) = by_kind["run"]
    assert (begun.project, begun.display_name, begun.run_group) == ("vision", "traincheck train.py", "traincheck")
    keys = {item.key or "/".join(item.nested_key) for entry in by_kind["history"] for item in entry.item}
    assert keys >= {"traincheck/errors", "traincheck/step", "traincheck/findings/nrows"}
    summary = {
        item.key or "/".join(item.nested_key): item.value_json for entry in by_kind["summary"] for item in entry.update
    }
    assert ERROR in summary["traincheck/last_finding"] and summary["traincheck/verdict"] == '"errors"'
    (artifact,) = (entry for entry in by_kind["artifact"] if entry.type == "traincheck-report")
    assert {entry.path for entry in artifact.manifest.contents} == {"report.html", "report.json"}
    assert not (project / "wandb").exists()  # which is the program's
    # Of machine, code and what is printed nothing is told.
    assert not {"stats", "output", "output_raw"} & by_kind.keys()
    assert not list(project.glob("runs/today/wandb/offline-run-*/files/*metadata*"))
