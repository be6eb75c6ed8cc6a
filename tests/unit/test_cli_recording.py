"""Recording: the folder, its name, and the summary at the end."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from traincheck.cli.commands.collect import count_events, summary
from traincheck.cli.live_check import has_ended
from traincheck.cli.main import main
from traincheck.invariants.book import Book, write_book
from traincheck.reporting.json_report import read_json
from traincheck.runtime.launching.command_target import Target
from traincheck.runtime.launching.run_setup import default_folder
from traincheck.trace.folder import RunFolder
from traincheck.trace.run_notes import Manifest, ProcessNote
from traincheck.trace.writer import TraceWriter
from traincheck.vocab.events import Call, Window
from traincheck.vocab.invariant import Invariant


@pytest.fixture(autouse=True)
def quiet_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("TRAINCHECK_BOOK", "TRAINCHECK_FAIL_ON", "TRAINCHECK_RUNS", "TRAINCHECK_SESSION"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def book(tmp_path: Path, new_invariant: Callable[..., Invariant]) -> Path:
    write_book(Book((new_invariant(),)), tmp_path / "good.jsonl")
    return tmp_path / "good.jsonl"


def test_a_program_without_training_is_reported_as_unobserved(
    tmp_path: Path, book: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "sum.py").write_text("import sys\nprint(sys.argv[1:])\nsys.exit(9)\n")
    for number, words in enumerate((["collect"], ["run", "-b", str(book)])):
        assert main([*words, "-o", f"runs/{number}", "sum.py", "-o", "x", "--help"]) == 9
        captured = capfd.readouterr()
        assert captured.out == "['-o', 'x', '--help']\n"
        assert "nothing was observed" in captured.err and "exit code 9" in captured.err
        manifest = RunFolder.open(tmp_path / "runs" / str(number)).manifest
        assert (manifest.exit_code, manifest.script, manifest.mode) == (9, "sum.py", words[0])
        assert len(manifest.script_digest) == 64 and manifest.started <= manifest.ended
    assert read_json(tmp_path / "runs" / "1" / "report.json").counts.processes == 0
    assert main(["collect", "-o", "runs/0", "sum.py"]) == 2  # taken
    assert "[run-folder-in-use]" in capfd.readouterr().err
    assert main(["collect", "sum.py"]) == 9
    assert [path.name[:4] for path in (tmp_path / "traincheck-runs").iterdir()] == ["sum-"]


def window(step: int) -> Window:
    call = Call(1, 2, -1, "lifecycle", ("torch.optim.SGD.step",))
    return Window(step, step, "train", (call,), process=7)


def test_the_summary_counts_written_events(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path / "run", Manifest())
    with TraceWriter(folder.path, 0, 7) as writer:
        for step in (1, 2, 3):
            writer.write(window(step))
    (file,) = folder.event_files()
    assert count_events(file) == (3, 3, 3)
    file.write_bytes(file.read_bytes()[:-30])  # torn
    assert count_events(file).windows in (2, 3)
    folder.write_note(ProcessNote(dropped=2, not_observed=("loaders: too old",)))
    lines = list(summary(folder))
    assert lines[0].startswith("recorded 3 steps: 3 windows, 3 events, ") or "2 windows" in lines[0]
    assert lines[1:3] == ["2 windows could not be written in time and were dropped", "not observed: loaders: too old"]


def test_notes_and_the_manifest_mark_the_end_of_a_run(tmp_path: Path) -> None:
    assert not has_ended(tmp_path / "absent")
    folder = RunFolder.create(tmp_path / "run", Manifest())
    assert not has_ended(folder.path)
    folder.write_note(ProcessNote(ended=True))
    assert has_ended(folder.path)
    folder.write_note(ProcessNote(rank=1))
    assert not has_ended(folder.path)
    folder.update(ended="2026-01-01T00:00:00+00:00")
    assert has_ended(folder.path)


def test_run_folders_are_named_after_program_and_time(tmp_path: Path) -> None:
    now = time.struct_time((2026, 1, 2, 3, 4, 5, 0, 0, 0))
    names = []
    for words in (["dir/train.py"], ["-m", "pkg.fit"], ["--", "torchrun", "x"], ["."]):
        path = default_folder("runs", Target.parse(words), now)
        path.mkdir(parents=True)
        names.append(path.name)
    assert names[:3] == ["train-20260102-030405", "fit-20260102-030405", "torchrun-20260102-030405"]
    assert default_folder("runs", Target.parse(["train.py"]), now).name == "train-20260102-030405-2"


def test_a_program_has_one_name_on_every_machine(tmp_path: Path) -> None:
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg" / "__main__.py").touch()
    (tmp_path / "train.py").write_text("pass\n")
    command_lines = [
        ["train.py"],
        [str(tmp_path / "train.py"), "a"],
        ["-m", "pkg"],
        ["--", "/usr/bin/torchrun", "-n", "train.py"],
    ]
    targets = [Target.parse(words) for words in command_lines]
    assert [target.script for target in targets] == ["train.py", "train.py", "-m pkg", "torchrun train.py"]
    assert targets[0].digest == targets[1].digest == targets[3].digest != targets[2].digest
    assert Target.parse(["-m", "elsewhere.module"]).digest == ""
    assert targets[1].project(Path("/")) == (str(tmp_path.resolve()),)
    assert targets[2].project(tmp_path) == (str(tmp_path.resolve()),)


def test_own_code_is_the_project_around_the_script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path.resolve() / "home"
    inner = home / "repository" / "projects" / "adder"
    inner.mkdir(parents=True)
    (inner / "adder.py").write_text("pass\n")
    monkeypatch.setenv("HOME", str(home))
    script = Target.parse([str(inner / "adder.py")])
    assert script.project(Path("/")) == (str(inner),)
    assert script.project(Path("/"), f"/elsewhere:{home / 'repository'}") == (str(home / "repository"),)
    (home / ".git").mkdir()  # a home folder under version control is no project
    assert script.project(Path("/")) == (str(inner),)
    (home / "repository" / "setup.py").touch()
    assert script.project(Path("/")) == (str(home / "repository"),)
    assert Target.parse(["-m", "adder"]).project(inner) == (str(home / "repository"),)
    installed = home / "repository" / "env" / "site-packages" / "package"
    installed.mkdir(parents=True)
    assert Target.parse(["-m", "package"]).project(installed) == (str(installed),)
