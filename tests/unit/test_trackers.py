"""Trackers never delay a run: one that fails, hangs or ends is reported once. Messages arrive complete and in order."""

from __future__ import annotations

import json
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from fake_ranks import wait_for
from traincheck import plugins
from traincheck.cli import monitoring
from traincheck.cli.main import main
from traincheck.config import Config, load
from traincheck.errors import BadOption, MissingExtra
from traincheck.reporting.json_report import write_json
from traincheck.reporting.trackers import tracking as trackings
from traincheck.reporting.trackers.tracker import curves, needs
from traincheck.reporting.trackers.tracking import Tracking
from traincheck.reporting.trackers.worker import serve
from traincheck.testing.sinks import NotConforming
from traincheck.testing.trackers import check_tracker
from traincheck.vocab.finding import Report
from traincheck.vocab.run_status import ENDED, GOING, TRAINING, RankStatus, RunStatus

RANK = RankStatus(0, 7, "", TRAINING, 12, 13, 1, 3.5, 0.25, 1.5, 1.0)
STATUS = RunStatus("runs/today", GOING, "train.py", "run", None, False, 9, 4, 1, 0, (RANK,))

NOTED = """
import json, os, sys, time

class Noted:
    name = "noted"

    def __init__(self, target):
        self.target = target

    def note(self, *words):
        with open(self.target, "a") as file:
            file.write(json.dumps(words) + "\\n")

    def open(self, run):
        print("what a library prints is no answer")
        self.note("open", run["script"], os.environ["MLFLOW_DISABLE_TELEMETRY"])
        return "here"

    def show(self, finding):
        self.note("show", finding.title, finding.site and finding.site.line)

    def measure(self, status):
        self.note("measure", status.steps, status.errors)

    def close(self, report, files):
        self.note("close", report and report.verdict, [file.name for file in files])


class Unwilling(Noted):
    def open(self, run):
        raise OSError("no login")


class Failing(Noted):
    def show(self, finding):
        raise ValueError("no such table")


class Hanging(Noted):
    def show(self, finding):
        self.note("hangs", os.getpid())
        time.sleep(600)


class Ending(Noted):
    def show(self, finding):
        os._exit(1)
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with an installed package of trackers."""
    (tmp_path / "noted.py").write_text(NOTED)
    path = [str(tmp_path), str(Path(trackings.__file__).parents[3])]
    monkeypatch.setenv("PYTHONPATH", ":".join(path))
    return tmp_path


def noted(project: Path) -> list[list[object]]:
    file = project / "notes"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def followed(project: Path, kind: str, report: Report, messages: list[str]) -> float:
    """Follow a short run to its end; return the seconds that the caller had to wait."""
    write_json(report, project / "report.json")
    tracking = Tracking("noted", f"noted:{kind}", str(project / "notes"), messages.append)
    tracking.begin({"script": "train.py", "folder": str(project)})
    began = time.monotonic()
    tracking.look([], STATUS)
    tracking.look(report.findings, replace(STATUS, errors=2))
    taken = time.monotonic() - began
    wait_for(lambda: len(noted(project)) > 1 or len(messages) > 1 or (messages and "tracked by" not in messages[0]))
    tracking.look([], replace(STATUS, errors=2, state=ENDED, exit_code=0))
    tracking.finish([project / "report.json", project / "report.html"])
    tracking.close()
    return taken


def test_messages_arrive_complete_and_in_order(project: Path, some_report: Report) -> None:
    messages: list[str] = []
    hostile = replace(some_report.findings[0], title="a \ud800 \n b")
    followed(project, "Noted", replace(some_report, findings=(hostile, *some_report.findings[1:])), messages)
    notes = noted(project)
    assert notes[0] == ["open", "train.py", "true"] and notes[-1] == ["close", "errors", ["report.json"]]
    assert [note for note in notes if note[0] == "show"] == [
        ["show", "a \\ud800 \n b", 42],
        ["show", "The loss is printed no more", None],
    ]
    assert [note for note in notes if note[0] == "measure"][-1] == ["measure", 12, 2]
    assert messages == ["tracked by noted: here"]


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("Unwilling", "OSError: no login"),
        ("Failing", "ValueError: no such table"),
        ("Ending", "the tracker's process has ended; nothing more is logged there"),
        ("Missing", "AttributeError: module 'noted' has no attribute 'Missing'"),
    ],
)
def test_trouble_is_reported_once(project: Path, some_report: Report, kind: str, reason: str) -> None:
    messages: list[str] = []
    assert followed(project, kind, some_report, messages) < 1
    assert [message for message in messages if "tracked by" not in message] == [
        f"--track noted: {reason} (reported once; the run is not affected)"
    ]
    closed = [note[0] for note in noted(project)][-1:] == ["close"]
    assert closed == (kind == "Failing")  # one that takes no findings may take the report


def test_one_that_hangs_is_ended(project: Path, some_report: Report, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trackings, "ANSWER", 0.5)
    monkeypatch.setattr(trackings, "AT_THE_END", 3.0)
    messages: list[str] = []
    assert followed(project, "Hanging", some_report, messages) < 1
    assert sum("does not answer and was stopped" in message for message in messages) == 1
    (process,) = (int(str(note[1])) for note in noted(project) if note[0] == "hangs")
    wait_for(lambda: not Path(f"/proc/{process}").exists() or sys.platform != "linux")


def test_curves_are_those_that_are_known() -> None:
    assert curves(STATUS) == {
        "traincheck/errors": 1.0,
        "traincheck/notices": 0.0,
        "traincheck/rules_checked": 4.0,
        "traincheck/windows_dropped": 1.0,
        "traincheck/steps_per_second": 3.5,
        "traincheck/cost": 0.25,
    }
    unknown = replace(STATUS, ranks=(replace(RANK, cost=None, steps_per_second=None),))
    assert not {"traincheck/cost", "traincheck/steps_per_second"} & curves(unknown).keys()


# -- the option ------------------------------------------------------------------------------------------------------


def config(project: Path, *words: str) -> Config:
    return load({"trackers": words}, {}, project)


def test_a_missing_library_is_reported_with_the_install_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "nowhere_installed").mkdir()  # as wandb leaves a folder `wandb`
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(MissingExtra, match=r"--track wandb needs the package 'nowhere_installed'.*traincheck\[wandb\]"):
        needs("wandb", "nowhere_installed")


def test_impossible_trackers_are_reported_before_the_program_starts(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRAINCHECK_PACKS", "shipped")
    (folder / "train.py").write_text("open('started', 'w')\n")
    assert main(["run", "--track", "comet", "train.py"]) == 2
    assert (
        "expected TRACKER or TRACKER=TARGET, with the tracker one of tensorboard, wandb, mlflow"
        in capsys.readouterr().err
    )
    assert not (folder / "started").exists()
    pytest.importorskip("tensorboard")
    with pytest.raises(
        BadOption, match=r"--track was given 'tensorboard=train.py'; expected a folder that can be written"
    ):
        monitoring.trackers(config(folder, "tensorboard=train.py"))
    pytest.importorskip("wandb")
    with pytest.raises(BadOption, match="expected wandb=PROJECT or wandb=ENTITY/PROJECT"):
        monitoring.trackers(config(folder, "wandb=a/b/c"))


def test_built_in_trackers_load_without_their_libraries() -> None:
    before = set(sys.modules)
    assert list(plugins.load("traincheck.trackers", only=plugins.TRACKERS)) == ["tensorboard", "wandb", "mlflow"]
    assert not {"wandb", "mlflow", "tensorboard", "torch"} & (set(sys.modules) - before)


# -- conformance -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["tensorboard", *(pytest.param(library, marks=pytest.mark.slow) for library in ("wandb", "mlflow"))]
)
def test_built_in_trackers_conform(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip(name)
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", str(tmp_path / "mlruns"))
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    monkeypatch.delenv("MLFLOW_RUN_ID", raising=False)
    for kind in ("CACHE", "CONFIG", "DATA"):
        monkeypatch.setenv(f"WANDB_{kind}_DIR", str(tmp_path / kind))
    monkeypatch.delenv("WANDB_RUN_ID", raising=False)
    assert check_tracker(plugins.load("traincheck.trackers", only=[name])[name], tmp_path) == 7


class Kept:
    """A tracker that keeps its promises. The broken ones below are made from it."""

    name = "kept"

    def __init__(self, target: str) -> None:
        self.target = target

    def open(self, run: object) -> str:
        return "nowhere"

    def show(self, finding: object) -> None: ...

    def measure(self, status: object) -> None: ...

    def close(self, report: object, files: object) -> None: ...


BROKEN = {
    "no class": (Kept(""), "is not a class"),
    "no name": (type("Broken", (Kept,), {"name": "a=b"}), "has no name"),
    "no method": (type("Broken", (Kept,), {"measure": None}), "has no measure"),
    "raises": (type("Broken", (Kept,), {"close": lambda self, report, files: report.findings}), "no report.*raises"),
    "no text": (type("Broken", (Kept,), {"open": lambda self, run: None}), "Return a text"),
    "changes": (type("Broken", (Kept,), {"close": lambda self, report, files: report.run.clear()}), "changes the"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_promise_is_reported_with_its_cure(name: str, tmp_path: Path) -> None:
    assert check_tracker(Kept, tmp_path) == 7
    tracker, message = BROKEN[name]
    (tmp_path / "again").mkdir()
    with pytest.raises(NotConforming, match=message) as raised:
        check_tracker(tracker, tmp_path / "again")
    assert str(raised.value).endswith(".")


def test_a_run_of_a_killed_command_is_closed(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(project))
    answers: list[bytes] = []
    lines = [b'{"kind":"open","run":{"script":"train.py"}}\n', b"garbled\n"]
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    serve("noted:Noted", str(project / "notes"), lines, answers.append)
    assert json.loads(answers[0]) == {"where": "here"} and b"trouble" in answers[1]
    assert noted(project)[-1] == ["close", None, []]


def test_a_run_that_failed_to_open_is_not_closed(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(project))
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    answers: list[bytes] = []
    serve("noted:Unwilling", str(project / "notes"), [b'{"kind":"open","run":{"script":"train.py"}}\n'], answers.append)
    assert json.loads(answers[0]) == {"trouble": "OSError: no login"}
    assert not (project / "notes").exists()
