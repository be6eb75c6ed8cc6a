"""The benchmark of public programs: its list, copies of checkouts, the comparison of outputs, and verdicts."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
from benchmarks.public import output, page
from benchmarks.public.checkout import Missing, apply, checkout, generate, lay_out
from benchmarks.public.programs import BadList, Data, Edit, Expected, Program, read_list, read_programs
from benchmarks.public.running import observed_words, words_of
from benchmarks.public.verdicts import (
    CLEAN,
    CRASHED,
    DIFFERS,
    FAILS_PLAIN,
    FALSE,
    MISSED,
    NOTHING,
    SKIPPED,
    TRUE,
    too_slow,
    verdict,
)

LIST = """repository = "owner/name"
commit = "0123456789012345678901234567890123456789"

[[program]]
id = "one"
command = ["train.py", "--epochs", "2"]
tags = ["vision"]
edits = [{ file = "train.py", find = "epochs = 9", replace = "epochs = 2" }]
[[program.expected]]
diagnosis = "gradients-not-cleared"
where = "train.py:12"
reason = "the loop calls backward and step, and zero_grad nowhere"
"""


def read(tmp_path: Path, text: str) -> list[Program]:
    path = tmp_path / "list.toml"
    path.write_text(text)
    return read_list(path)


def git(home: Path, *words: str) -> str:
    who = ["-c", "user.name=us", "-c", "user.email=us@example.org"]
    done = subprocess.run(["git", "-C", str(home), *who, *words], check=True, capture_output=True, text=True)
    return done.stdout.strip()


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A folder with a clone of owner/name at two commits; the first is the one to run."""
    home = tmp_path / "src" / "owner" / "name"
    (home / "part").mkdir(parents=True)
    git(home, "init", "--quiet")
    (home / "part" / "train.py").write_text("epochs = 9\nprint(epochs)\n")
    (home / "other.py").write_text("pass\n")
    git(home, "add", ".")
    git(home, "commit", "--quiet", "-m", "first")
    (home / "part" / "train.py").write_text("later\n")
    git(home, "commit", "--quiet", "-a", "-m", "second")
    return tmp_path / "src"


def program(source: Path, **more: Any) -> Program:
    commit = git(source / "owner" / "name", "rev-parse", "HEAD^")
    given = {"id": "one", "tags": ("vision",), "command": ("train.py",), "folder": "part", **more}
    return Program(repository="owner/name", commit=commit, **given)


def figures(**more: Any) -> dict[str, Any]:
    same_output = {
        "equal": True,
        "compared": 3,
        "lines": 3,
        "expected": "",
        "got": "",
        "lost_stderr": [],
        "new_stderr": [],
    }
    good = {"exit_plain": 0, "exit_observed": 0, "reported": True, "steps": 5, "output": same_output, "findings": []}
    return {**good, "seconds_plain": 2.0, "seconds_observed": 3.0, **more}


FINDING = {
    "diagnosis": "gradients-not-cleared",
    "title": "Gradients are never cleared",
    "severity": "error",
    "step": 3,
    "site": "train.py:12",
}
EXPLAINED = Expected(
    str(FINDING["diagnosis"]), "train.py:12", "the loop calls backward and step, and zero_grad nowhere"
)
PLAIN = Program("one", "owner/name", "0" * 40, ("vision",), command=("train.py",))


def test_a_list_reads(tmp_path: Path) -> None:
    (only,) = read(tmp_path, LIST)
    assert only.command == ("train.py", "--epochs", "2")
    assert only.edits == (Edit("train.py", "epochs = 9", "epochs = 2"),)
    assert only.expected == (EXPLAINED,)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("0123456789012345678901234567890123456789", "main", "commit must have 40 hex digits"),
        ('"owner/name"', '"name"', "repository must be OWNER/NAME"),
        ('where = "train.py:12"', 'where = "train.py"', "must be FILE:LINE"),
        ('reason = "the loop calls backward and step, and zero_grad nowhere"', 'reason = "it is"', "must explain why"),
        ('tags = ["vision"]', 'tags = ["pictures"]', "tags must be among"),
        ('tags = ["vision"]', 'tags = ["vision"]\ncolour = 1', "'colour' is not a key of Program"),
        ('command = ["train.py", "--epochs", "2"]', "", "neither a command nor the reason"),
        ('command = ["train.py", "--epochs", "2"]', 'command = "train.py"', "command must be a list of strings"),
        (', replace = "epochs = 2"', "", "Edit has no replace"),
        ('id = "one"', 'id = "One"', "id must be lower-case"),
    ],
)
def test_an_incomplete_entry_fails_clearly(tmp_path: Path, old: str, new: str, message: str) -> None:
    assert old in LIST
    with pytest.raises(BadList, match=message):
        read(tmp_path, LIST.replace(old, new))


def test_choices_are_ids_tags_and_repositories(tmp_path: Path) -> None:
    (tmp_path / "list.toml").write_text(LIST)
    for word in ("one", "vision", "owner/name"):
        assert [chosen.id for chosen in read_programs(tmp_path, word)] == ["one"]
    with pytest.raises(BadList, match="no program has this id, tag or repository"):
        read_programs(tmp_path, "two")


def test_a_copy_has_the_files_of_the_pinned_commit_with_the_edits(source: Path, tmp_path: Path) -> None:
    edit = Edit("train.py", "epochs = 9", "epochs = 2")
    chosen = program(source, edits=(edit,), data=(Data("text_file", "texts/train.txt", {"lines": 3}),))
    home = checkout(source, chosen)
    generate(chosen, tmp_path / "generated")
    work = lay_out(home, chosen, tmp_path / "copy", tmp_path / "generated")
    assert (work / "train.py").read_text() == "epochs = 2\nprint(epochs)\n"
    assert len((work / "texts" / "train.txt").read_text().splitlines()) == 3
    assert not (tmp_path / "copy" / "other.py").exists(), "only the folder is copied"
    assert (home / "part" / "train.py").read_text() == "later\n", "the checkout stays as it is"


def test_files_that_a_partial_clone_lacks_are_left_out(source: Path, tmp_path: Path) -> None:
    home = source / "owner" / "name"
    digest = git(home, "rev-parse", "HEAD^:other.py")
    (home / ".git" / "objects" / digest[:2] / digest[2:]).unlink()
    (tmp_path / "generated").mkdir()
    lay_out(home, program(source, copy=(".",)), tmp_path / "copy", tmp_path / "generated")
    assert (tmp_path / "copy" / "part" / "train.py").exists()
    assert not (tmp_path / "copy" / "other.py").exists()


def test_data_that_cannot_be_generated_fails_clearly(source: Path, tmp_path: Path) -> None:
    chosen = program(source, data=(Data("text_file", "train.txt", {"colour": 1}),))
    with pytest.raises(Missing, match=r"one: text_file failed to generate train\.txt: TypeError"):
        generate(chosen, tmp_path / "generated")


@pytest.mark.parametrize("text", ["epochs = 7\n", "epochs = 9\nepochs = 9\n"])
def test_an_edit_that_no_longer_matches_fails_clearly(tmp_path: Path, text: str) -> None:
    (tmp_path / "train.py").write_text(text)
    with pytest.raises(Missing, match=r"one: an edit finds 'epochs = 9' \d times in train.py instead of 1"):
        apply(Edit("train.py", "epochs = 9", "epochs = 2"), tmp_path, "one")
    assert (tmp_path / "train.py").read_text() == text
    with pytest.raises(Missing, match=r"an edit is for gone\.py, which is not in the copy"):
        apply(Edit("gone.py", "a", "b"), tmp_path, "one")


def test_a_missing_commit_and_a_missing_folder_are_named(source: Path, tmp_path: Path) -> None:
    absent = Program("one", "owner/name", "0" * 40, ("vision",), command=("train.py",))
    with pytest.raises(Missing, match="does not contain commit 0000"):
        checkout(source, absent)
    with pytest.raises(Missing, match=r"has no nowhere$"):
        lay_out(source / "owner" / "name", program(source, folder="nowhere"), tmp_path / "copy", tmp_path)


def test_times_speeds_paths_dates_and_bars_are_not_compared() -> None:
    first = "loss 0.5 time: 1.25s\n 10%|#    | 1/10 [00:01<00:09, 1.2it/s]\nsaved /data/a/b.pt at 2024-01-02 10:11:12\n"
    second = "loss 0.5 time: 9.75s\n 90%|#### | 9/10 [00:09<00:01, 7.2it/s]\nsaved /var/c/d.pt at 2025-11-12 00:01:02\n"
    first, second = first + "SPS: 120 | ms/batch 5.15\n", second + "SPS: 98 | ms/batch 15.2\n"
    assert output.normalised(first) == output.normalised(second)
    assert "loss 0.5" in output.normalised(first)[0]
    assert len(output.normalised(first)) == 3
    assert output.normalised("loss 0.5\n") != output.normalised("loss 0.6\n")
    assert output.normalised("{'train_runtime': 1.5, 'params': 7}\n") == ["{'train_runtime': <time>, 'params': 7}"]
    assert output.normalised("beta=0.9 items: 5\n") == ["beta=0.9 items: 5"]
    assert output.normalised("step 3 accuracy 98.5%\n") != output.normalised("step 3 accuracy 98.4%\n")


def test_the_place_of_a_warning_is_not_compared_and_its_text_is() -> None:
    first = output.normalised("/a/b.py:12: UserWarning: too small\n  call(x)\n")
    assert first == output.normalised("/c/d.py:99: UserWarning: too small\n  other(y)\n")
    assert first != output.normalised("/a/b.py:12: UserWarning: too large\n  call(x)\n")


def test_the_source_line_that_a_warning_of_several_lines_quotes_is_not_compared() -> None:
    first = output.normalised("/a/b.py:12: UserWarning: too small\nUse more. (Triggered internally)\n  call(x)\nend\n")
    assert first == output.normalised("/c/d.py:9: UserWarning: too small\nUse more. (Triggered internally)\nend\n")
    assert output.normalised("step\n  indented 1\n") != output.normalised("step\n  indented 2\n")


def test_padding_in_front_of_a_time_is_not_compared() -> None:
    assert output.normalised("| ms/batch  5.15 | loss  4.02\n") == output.normalised("| ms/batch 15.15 | loss 4.02\n")


def test_a_progress_bar_keeps_its_last_state() -> None:
    half = "Epoch 0:  50%|##  | 3/6 [00:01<00:01,  2.6it/s, loss=1.5]"
    end = "Epoch 0: 100%|####| 6/6 [00:01<00:00,  6.4it/s, loss=1.1]"
    assert output.normalised(f"{half}\r{end}\n") == ["loss=1.1"]
    assert output.normalised("100%|####| 6/6 [00:01<00:00,  6.4it/s]\n") == []
    early = end.replace("1.1", "1.5")
    assert output.normalised(f"{early}\n{end}\nEpoch 1{end[7:]}\n") == ["loss=1.1", "loss=1.1"]


def test_lines_that_two_processes_printed_at_once_are_split() -> None:
    separate, joined = ["rank 1 starts", "rank 0 starts", "loss 1.5"], ["rank 0 startsrank 1 starts", "loss 1.5"]
    lines = {*separate, *joined}
    assert output.unjoined(joined, lines) == output.unjoined(separate, lines) == sorted(separate)
    assert output.unjoined(["loss 1.25"], lines) == ["loss 1.25"]


def test_the_time_that_a_batch_took_and_its_mean_are_masked() -> None:
    shown = "Epoch: [1][1/4] Data  0.000 ( 0.004) Loss 3.8 (3.9)"
    assert output.normalised(shown) == output.normalised(shown.replace("0.000 ( 0.004)", "0.012 ( 0.010)"))
    assert output.normalised(shown) != output.normalised(shown.replace("3.9", "4.0"))


def test_a_carriage_return_leaves_the_last_text_of_a_line() -> None:
    assert output.normalised("step 1\rstep 2\rstep 3\n") == ["step 3"]


def test_numbers_that_differ_between_plain_runs_are_not_compared() -> None:
    first, second = (
        ["epoch 1 loss 0.5 at 12", "epoch 2 loss 0.4 at 13"],
        ["epoch 1 loss 0.5 at 12", "epoch 2 loss 0.4 at 99"],
    )
    ignored = output.changing_numbers(first, second)
    observed = ["epoch 1 loss 0.5 at 77", "epoch 2 loss 0.4 at 78"]
    assert output.compare(first, observed, ignored) == output.OutputComparison(True, 2, 2)
    differs = output.compare(first, ["epoch 1 loss 0.5 at 77", "epoch 2 loss 0.3 at 78"], ignored)
    assert not differs.equal and (differs.expected, differs.got) == ("epoch 2 loss 0.4 at #", "epoch 2 loss 0.3 at #")
    assert not output.compare(first, observed[:1], ignored).equal, "a line that is missing is a difference"


def test_lines_of_which_plain_runs_have_unequal_counts_are_not_compared() -> None:
    first, second = ["epoch 1", "waited 3 times"], ["epoch 1", "waited 3 times", "waited 4 times"]
    ignored = output.changing_numbers(first, second)
    assert output.compare(first, ["epoch 1"], ignored) == output.OutputComparison(True, 1, 2)
    assert not output.compare(first, ["epoch 2"], ignored).equal
    assert output.merge_unsteady([{"a": {1}, "b": {2}}, {"a": {3}, "b": None}]) == {"a": {1, 3}, "b": None}


def test_stderr_may_have_additional_lines_only() -> None:
    assert output.lost(["a", "b"], ["x", "b", "a"], {}) == []
    assert output.lost(["a", "b"], ["b"], {}) == ["a"]
    assert output.new_warnings(["<place>: UserWarning: old"], ["<place>: UserWarning: new", "note"]) == [
        "<place>: UserWarning: new"
    ]


@pytest.mark.parametrize(
    ("expected", "more", "verdict_text"),
    [
        ((), {}, CLEAN),
        ((EXPLAINED,), {"findings": [FINDING]}, TRUE),
        ((), {"findings": [FINDING]}, FALSE),
        ((EXPLAINED,), {"findings": [FINDING, {**FINDING, "diagnosis": "another"}]}, FALSE),
        ((EXPLAINED,), {}, MISSED),
        ((), {"steps": 0}, NOTHING),
        ((), {"exit_observed": 1}, CRASHED),
        ((), {"reported": False}, CRASHED),
        ((), {"exit_plain": 1}, FAILS_PLAIN),
        ((EXPLAINED,), {"findings": [FINDING], "output": {"equal": False, "lost_stderr": []}}, DIFFERS),
        ((), {"output": {"equal": True, "lost_stderr": ["a line"]}}, DIFFERS),
    ],
)
def test_verdicts(expected: tuple[Expected, ...], more: dict[str, Any], verdict_text: str) -> None:
    chosen = Program("one", "owner/name", "0" * 40, ("vision",), command=("train.py",), expected=expected)
    assert verdict(chosen, figures(**more)) == verdict_text


def test_fewer_steps_than_the_program_makes_are_not_recognised() -> None:
    chosen = Program("one", "owner/name", "0" * 40, ("vision",), command=("train.py",), steps=20)
    assert verdict(chosen, figures(steps=1)) == NOTHING
    assert verdict(chosen, figures(steps=20)) == CLEAN


def test_a_skipped_program_has_its_reason_and_is_not_run() -> None:
    assert verdict(Program("one", "owner/name", "0" * 40, ("vision",), skipped="it needs a GPU"), {}) == SKIPPED


def test_the_limit_is_a_ratio_and_seconds_more() -> None:
    assert not too_slow(figures(seconds_plain=2.0, seconds_observed=6.0))
    assert too_slow(figures(seconds_plain=2.0, seconds_observed=6.1))


def test_ranks_are_started_by_torchrun_under_the_command(tmp_path: Path) -> None:
    assert words_of(PLAIN) == ["train.py"]
    assert observed_words(PLAIN, tmp_path)[-1] == "train.py"
    ranks = Program("one", "owner/name", "0" * 40, ("distributed",), command=("train.py",), ranks=2)
    words = observed_words(ranks, tmp_path)
    after = words[words.index("--") + 1 :]
    assert after[1:3] == ["-m", "torch.distributed.run"] and "--nproc-per-node=2" in after


def test_the_page_names_each_finding_and_each_reason() -> None:
    explained = Program("one", "owner/name", "0" * 40, ("vision",), command=("train.py",), expected=(EXPLAINED,))
    other = Program("two", "owner/name", "0" * 40, ("vision",), command=("two.py",))
    skipped = Program("three", "owner/name", "0" * 40, ("vision",), skipped="it needs a GPU")
    measured = {**figures(findings=[FINDING]), "megabytes_plain": 100, "megabytes_observed": 120}
    machine = {"cores": 2, "processor": "x86_64", "python": "3.11", "torch": "2.13"}
    programs = {"one": {"verdict": TRUE, **measured}, "two": {"verdict": FALSE, **measured}}
    text = page.text([explained, other, skipped], {"machine": machine, "programs": programs})
    assert "| true finding | 1 |" in text and "| FALSE finding | 1 |" in text
    assert "True: the loop calls backward and step, and zero_grad nowhere (`train.py:12`)" in text
    assert "Counted as false" in text and "1.50x" in text
    assert "| three | owner/name | it needs a GPU |" in text
