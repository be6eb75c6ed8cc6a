"""Details of findings: the executed code, the surrounding steps, the ranks."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from fake_ranks import learned, updates
from recorded_runs import training, write_run
from sample_rules import make_invariant
from traincheck.checking import finding_details as module
from traincheck.checking.code_excerpts import FILES, LARGEST, excerpt, with_files
from traincheck.checking.finding_details import MAX_SHOWN, finding_details, mute_command
from traincheck.checking.parameter_history import MAX_ROWS, Surroundings
from traincheck.checking.rank_agreement import MAX_LABELS, agreement, held, of_ranks
from traincheck.checking.results import verdicts_of_run
from traincheck.redaction import MARK
from traincheck.testing.readable_traces import from_text
from traincheck.trace.folder import RunFolder
from traincheck.trace.reader import read_steps
from traincheck.trace.run_notes import Manifest, ProcessNote
from traincheck.trace.writer import TraceWriter
from traincheck.vocab.events import Window
from traincheck.vocab.finding import Counts, Finding, Report, Site
from traincheck.vocab.finding_details import UNKNOWN, History
from traincheck.vocab.occasion import RANKS, Subject

CODE_LINES = "import torch\n\nfor batch in data:\n    loss = f(batch)\n    loss.backward()\n    optimizer.step()\n"
STARTED = "2026-01-02T03:04:05+00:00"


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def finding(step: int = 3, **changes: object) -> Finding:
    base = Finding(
        "error", step, 0, "nothing changes", "", Site("train.py", 6, "main"), ("Net.w",), "", "", (), ("a1",), step, 1
    )
    return replace(base, **changes)  # type: ignore[arg-type]


def report(*findings: Finding, **run: object) -> Report:
    return Report(findings, Counts(steps=8), run=dict(run))


# -- code --------------------------------------------------------------------------------------------------------------


def test_the_lines_around_a_call_are_shown(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(CODE_LINES)
    code = excerpt(Site("train.py", 6, "main"), {}, digest(CODE_LINES), [tmp_path])
    assert (code.first, code.line, code.note) == (1, 6, "")
    assert code.lines == tuple(CODE_LINES.rstrip("\n").split("\n"))


def test_code_that_has_changed_is_not_shown(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(CODE_LINES + "# more\n")
    code = excerpt(Site("train.py", 6, "main"), {"script": "train.py"}, digest(CODE_LINES), [tmp_path])
    assert code.lines == () and code.note.startswith("train.py has changed since the run")
    code = excerpt(Site("train.py", 6, "main"), {FILES: {"train.py": digest(CODE_LINES)}}, "", [tmp_path])
    assert code.lines == () and "has changed" in code.note


def test_a_file_that_the_run_did_not_write_down_is_not_shown(tmp_path: Path) -> None:
    """An untrusted run folder may name any local file."""
    (tmp_path / "secrets.py").write_text("x = 1\n")
    (tmp_path / "train.py").write_text(CODE_LINES)
    for file in ("secrets.py", str(tmp_path / "secrets.py"), "../" + tmp_path.name + "/secrets.py"):
        code = excerpt(Site(file, 1, "main"), {"script": "train.py"}, digest(CODE_LINES), [tmp_path])
        assert code.lines == () and "nothing says whether" in code.note


@pytest.mark.parametrize("file", ["absent.py", "", "a\0b", "x" * 5000, "folder"])
def test_a_missing_source_file_is_reported(tmp_path: Path, file: str) -> None:
    (tmp_path / "folder").mkdir()
    code = excerpt(Site(file, 1, "main"), {}, digest(CODE_LINES), [tmp_path])
    assert code.lines == () and "was not found from here" in code.note


def test_a_pipe_is_not_waited_for_and_a_large_file_not_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.py")
    (tmp_path / "large.py").write_bytes(b"#" * (LARGEST + 1))
    for name in ("pipe.py", "large.py"):
        assert excerpt(Site(name, 1, "main"), {}, digest("#" * (LARGEST + 1)), [tmp_path]).lines == ()


@pytest.mark.parametrize("line", [0, -1, 8, 10**9])
def test_a_missing_source_line_is_reported(tmp_path: Path, line: int) -> None:
    (tmp_path / "train.py").write_text(CODE_LINES)
    code = excerpt(Site("train.py", line, "main"), {}, digest(CODE_LINES), [tmp_path])
    assert code.lines == () and code.note == f"the file has no line {line}"


def test_secrets_in_code_are_left_out_and_lines_keep_their_numbers(tmp_path: Path) -> None:
    key = "-----BEGIN PRIVATE KEY-----\nMIIEvQIBADANBg\nkqhkiG9w0BAQEF\n-----END PRIVATE KEY-----"
    text = f'token = "hf_abcdefghijklmnopqrstu"\nkey = """{key}"""\nstep()\n# end\n'
    (tmp_path / "train.py").write_text(text)
    code = excerpt(Site("train.py", 6, "main"), {}, digest(text), [tmp_path])
    shown = dict(enumerate(code.lines, code.first))
    assert shown[6] == "step()" and shown[7] == "# end" and MARK in shown[1]
    whole = "\n".join(code.lines)
    assert "hf_abc" not in whole and "MIIEv" not in whole and "kqhki" not in whole


def test_a_run_writes_down_the_files_of_its_findings(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(CODE_LINES)
    (tmp_path / "late.py").write_text("x\n")
    os.utime(tmp_path / "train.py", (1.0, 1.0))
    unsaved = report(finding(), finding(site=Site("late.py", 1, "f")), finding(site=Site("absent.py", 1, "f")), a=1)
    started = "2026-01-02T03:04:05+00:00"
    assert time.time() > 1_767_323_045  # late.py is younger than that
    assert with_files(unsaved, tmp_path, started).run == {"a": 1, FILES: {"train.py": digest(CODE_LINES)}}
    assert with_files(unsaved, tmp_path, "no time").run == {"a": 1}
    assert with_files(report(), tmp_path, started).run == {}


# -- steps -------------------------------------------------------------------------------------------------------------


def history(windows: Sequence[Window], concerned: Sequence[str] = (), mark: int = 1) -> History | None:
    seen = Surroundings(mark, concerned)
    for window in windows:
        seen.add(window)
    return seen.history()


def strips(shown: History | None, name: str) -> list[tuple[int, ...]]:
    assert shown is not None
    return next([strip.states for strip in row.strips] for row in shown.rows if name in row.names)


def test_gradients_and_values_of_parameters_step_by_step() -> None:
    shown = history(training(3), ("Net.frozen",))
    assert shown is not None and shown.steps == (1, 2, 3)
    assert [aspect.title.split()[0] for aspect in shown.aspects] == ["gradient", "value"]
    assert strips(shown, "Net.w") == [(0, 0, 0), (1, 1, 1)]
    assert strips(shown, "Net.frozen") == [(UNKNOWN,) * 3, (0, 0, 0)]
    assert shown.rows[0].names == ("Net.frozen",)  # what the finding is about comes first


LEFT_OVER = """
window train step=1
  lifecycle torch.autograd.backward
    change Net.w parameter.grad {before} -> some changed
  lifecycle torch.autograd.backward
    change Net.w parameter.grad some -> some changed
  lifecycle torch.optim.SGD.step < torch.optim.Optimizer.step receiver=SGD
    change Net.w parameter.data some -> some {changed} owner=SGD context={{"held":"this","grad":"some"}}
"""


def test_stale_and_new_gradients_are_distinguished() -> None:
    fine = from_text(LEFT_OVER.format(before="none", changed="changed"))
    bad = [replace(window, step=3) for window in from_text(LEFT_OVER.format(before="some", changed=""))]
    assert strips(history([*fine, *bad]), "Net.w") == [(0, UNKNOWN, 2), (2, UNKNOWN, 2), (1, UNKNOWN, 0)]


def test_equal_histories_share_a_row_and_others_are_counted() -> None:
    lines = "".join(
        f"    change Net.{number} parameter.data some -> some {'changed' if number % 2 else ''} owner=SGD\n"
        for number in range(100)
    )
    step = "window train step=1\n  lifecycle torch.optim.SGD.step < torch.optim.Optimizer.step receiver=SGD\n"
    shown = history(from_text(step + lines), ("Net.7",))
    assert shown is not None and [len(row.names) for row in shown.rows] == [50, 50]
    assert shown.rows[0].names[0] == "Net.7" and shown.beyond == 0
    many = []
    for number in range(1, 8):
        several = "".join(
            f"    change Net.{name} parameter.data some -> some {'changed' if name >> number & 1 else ''} owner=SGD\n"
            for name in range(100)
        )
        many += [replace(window, step=number) for window in from_text(step + several)]
    shown = history(many)
    assert shown is not None and len(shown.rows) == MAX_ROWS and shown.beyond == 50 - MAX_ROWS


LOSS = """
window train step=1
  lifecycle torch.autograd.backward
    tensor tensors float32[] facts={{"finite":true,"norm":{norm}}}
  function torch.nn.utils.clip_grad_norm_
    tensor result float32[] facts={{"norm":3.5}}
  lifecycle torch.optim.SGD.step < torch.optim.Optimizer.step receiver=SGD
    reading hyperparameter.lr SGD.param_groups[0] {rate}
    reading hyperparameter.lr SGD.param_groups[1] 0.5
"""


def test_numbers_of_the_steps_become_curves() -> None:
    seen = Surroundings(2, ())
    for step in (1, 2, 4):
        for window in from_text(LOSS.format(norm=1.5 * step, rate=0.1 / step)):
            seen.add(replace(window, step=step))
    curves = {curve.title: curve for curve in seen.curves()}
    assert curves["Size of the loss"].points == ((1, 1.5), (2, 3.0), (4, 6.0))
    assert (curves["Size of the loss"].first, curves["Size of the loss"].last) == (1, 4)
    assert "Norm of the gradients before clipping" in curves
    assert list(curves)[-1] == "Learning rate of SGD.param_groups[0]"  # the other one stays as it is


def test_two_points_are_no_curve_and_evaluations_are_no_steps() -> None:
    seen = Surroundings(2, ())
    for step in (1, 2):
        for window in from_text(LOSS.format(norm=1.5, rate=0.1)):
            seen.add(replace(window, step=step))
            seen.add(replace(window, step=step + 10, stage="eval"))
    assert seen.curves() == () and seen.history() is None


# -- ranks -------------------------------------------------------------------------------------------------------------


def test_which_ranks_agree() -> None:
    same, other = {("used_grad", "w"): 1, ("used_grad", "b"): 2}, {("used_grad", "w"): 9, ("used_grad", "b"): 2}
    by_rank = {0: {4: same, 5: same}, 1: {4: same, 5: same}, 2: {4: same, 5: other}}
    matrix = agreement(by_rank, 5)
    assert matrix is not None and matrix.labels == ("0", "1", "2") and matrix.values == 2
    assert matrix.agreeing == ((2, 2, 1), (2, 2, 1), (1, 1, 2))
    beside = of_ranks(by_rank, 5)
    assert beside is not None and [row.strips[0].states for row in beside.rows] == [(0, 0), (0, 0), (0, 1)]
    assert agreement({0: {5: same}}, 5) is None and agreement(by_rank, 9) is None and of_ranks({}, 1) is None


def test_a_finding_about_calls_has_no_matrix_of_values() -> None:
    windows = updates(0, 3)
    of_gradients = make_invariant(subject=Subject("parameter.used_grad", RANKS))
    of_calls = make_invariant(subject=Subject("torch.distributed.all_reduce", RANKS))
    held_values = held(windows, finding(variables=("layers.1.weight",)), of_gradients)
    assert {key for values in held_values.values() for key in values} == {("parameter.used_grad", "layers.1.weight")}
    assert not any(held(windows, finding(variables=()), of_calls).values())
    assert not any(held(windows, finding(variables=()), None).values())
    assert len(held(windows, finding(variables=("layers.1.weight",)), None)[2]) > 1


def test_two_differing_ranks_have_no_majority() -> None:
    beside = of_ranks({0: {5: {("a", "w"): 1}}, 1: {5: {("a", "w"): 2}}}, 5)
    assert beside is not None and [row.strips[0].states for row in beside.rows] == [(1,), (1,)]


def test_equal_ranks_of_many_share_a_row() -> None:
    by_rank = {rank: {5: {("a", "w"): rank == 40}} for rank in range(60)}
    matrix, beside = agreement(by_rank, 5), of_ranks(by_rank, 5)  # type: ignore[arg-type]
    assert matrix is not None and len(matrix.labels) == 2 and matrix.labels[1] == "40"
    assert beside is not None and len(beside.rows) == 2 <= MAX_LABELS


# -- a run folder ------------------------------------------------------------------------------------------------------


def ranks_run(folder: Path, ranks: int = 3) -> Report:
    """A run of several ranks, the last of which diverges from step 6 on, with its finding."""
    run = RunFolder.create(folder, Manifest(script="train.py", started=STARTED))
    for rank in range(ranks):
        run.write_note(ProcessNote(rank=rank, process=10 + rank, world_size=ranks, job="job", ended=True))
        with TraceWriter(folder, rank, 10 + rank) as writer:
            for window in updates(rank, 12, differs_from=6 * (rank == ranks - 1)):
                writer.write(window)
    return report(finding(6, variables=("layers.1.weight",), ranks=(ranks - 1,), compared=ranks))


def test_ranks_of_a_run_are_compared(tmp_path: Path) -> None:
    run_report = ranks_run(tmp_path / "run")
    (shown,) = finding_details(tmp_path / "run", run_report, learned().invariants)
    assert shown.agreement is not None and shown.agreement.labels == ("0", "1", "2") and shown.note == ""
    counts, values = shown.agreement.agreeing, shown.agreement.values
    assert counts[0][1] == values > counts[0][2] == counts[1][2] >= 0
    beside, parameters = shown.histories
    assert beside.steps == tuple(range(1, 13)) and beside.mark == 6
    assert [row.strips[0].states for row in beside.rows] == [(0,) * 12, (0,) * 12, (0,) * 5 + (1,) * 7]
    assert parameters.rows[0].names[0] == "layers.1.weight"


def test_only_the_steps_around_a_finding_are_read(tmp_path: Path) -> None:
    path = write_run(tmp_path / "run", "train.py", training(100))
    (file,) = RunFolder.open(path).event_files()
    assert [window.step for window in read_steps(file, 40, 42)] == [40, 41, 42]
    (shown,) = finding_details(path, report(finding(50)))
    assert shown.histories[0].steps == tuple(range(50 - module.BEFORE, 50 + module.AFTER + 1))


def test_missing_details_are_explained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (nothing,) = finding_details(tmp_path / "absent", report(finding()))
    assert "absent" in nothing.note and nothing.histories == ()
    path = write_run(tmp_path / "run", "train.py", training(8))
    many = finding_details(path, report(*[finding()] * (MAX_SHOWN + 2)))
    assert [bool(details.histories) for details in many] == [True] * MAX_SHOWN + [False] * 2
    (elsewhere,) = finding_details(path, report(finding(rank=7)))
    assert elsewhere.note == "the recording holds nothing about parameters in the steps around it"
    monkeypatch.setattr(module, "MAX_BYTES", 10)
    (shown,) = finding_details(path, report(finding()))
    assert "too large" in shown.note and shown.mute and shown.code is not None


def test_a_garbled_recording_costs_the_pictures_and_not_the_page(tmp_path: Path) -> None:
    path = write_run(tmp_path / "run", "train.py", training(8))
    (file,) = RunFolder.open(path).event_files()
    file.write_bytes(b"no stream at all")
    (shown,) = finding_details(path, report(finding()))
    assert "not an Arrow stream" in shown.note and shown.histories == ()


def test_a_working_directory_that_is_gone_costs_the_code_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_run(tmp_path / "run", "train.py", training(8))
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    (shown,) = finding_details(path, with_files(report(finding()), Path(), STARTED))
    assert shown.histories and shown.code is not None and "was not found from here" in shown.code.note
    assert finding_details(Path("run"), report(finding()))[0].histories == ()


def test_the_command_that_mutes(tmp_path: Path) -> None:
    muted_finding = finding(invariants=("a1", "b2"))
    assert mute_command(muted_finding, ("my book.jsonl",), tmp_path).startswith(
        "traincheck mute 'my book.jsonl' a1 b2 --reason "
    )
    assert str(tmp_path / "book.jsonl") in mute_command(muted_finding, ("a.jsonl", "b.jsonl"), tmp_path)
    assert mute_command(finding(invariants=()), (), tmp_path) == ""


def test_a_folder_without_verdicts_gives_none(tmp_path: Path) -> None:
    assert verdicts_of_run(write_run(tmp_path / "run", "train.py", training(2))) == ()
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "x").touch()
    assert verdicts_of_run(tmp_path / "empty") == ()
