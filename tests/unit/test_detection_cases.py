"""The detection benchmark reads its cases and reports errors in their folders."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from benchmarks.detection.__main__ import options
from benchmarks.detection.cases import BUGGY, CASES, CLEAN, BadCase, read_case, read_cases

MODEL = CASES / "a13-stackoverflow-60335387"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of a good case, to spoil."""
    return Path(shutil.copytree(MODEL, tmp_path / "case"))


def edit(folder: Path, old: str, new: str) -> None:
    text = (folder / "case.toml").read_text()
    assert old in text
    (folder / "case.toml").write_text(text.replace(old, new))


def test_every_case_reads() -> None:
    cases = read_cases()
    assert len({case.id for case in cases}) == len(cases)
    assert len({case.script for case in cases}) == len(cases), "no two cases share a script"


def test_choices_are_ids_parts_and_folders() -> None:
    assert [case.id for case in read_cases(" stackoverflow-60335387 ,")] == ["stackoverflow-60335387"]
    assert {case.part for case in read_cases("A")} == {"A"}
    assert [case.folder for case in read_cases(MODEL.name)] == [MODEL]
    with pytest.raises(BadCase, match=r"no case or part is called 'D'; there are parts A, B, C and"):
        read_cases("D")


def test_a_program_includes_the_shared_files(tmp_path: Path) -> None:
    case = read_case(MODEL)
    for variant in (CLEAN, BUGGY):
        script = case.lay_out(variant, tmp_path / variant)
        assert script.read_text() == (MODEL / variant / case.script).read_text()
        assert sorted(file.name for file in script.parent.iterdir()) == ["rate_tides.py", "tides.py"]
    assert case.path_of(BUGGY, "tides.py") == MODEL / "tides.py"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('part = "A"', 'part = "E"', "part must be one of A, B, C, not 'E'"),
        ("first_bad_step = 2", 'first_bad_step = "2"', "first_bad_step must be a whole number, not '2'"),
        ("first_bad_step = 2", "first_bad_step = -1", "first_bad_step at least 0"),
        ("first_bad_step = 2", "", "it has no first_bad_step; add it"),
        ("first_bad_step = 2", "first_bad_step = 2\nsurprise = 1", "'surprise' is not a key of a case; known are id"),
        ('where = "user"', 'where = "moon"', "where must be one of user, framework, compiler, hardware, not 'moon'"),
        ('[["zero_grad", "clear"]]', "[[]]", "names must be a list of lists of strings, none empty"),
        ('"rate_tides.py"', '"tide_rates.py"', "script 'tide_rates.py' is neither in clean/ nor beside case.toml"),
        ('id = "', 'id = "Has Blanks', "must be lower-case words and numbers with hyphens between"),
        ('id = "', "id = ", "it is not valid TOML"),
    ],
)
def test_errors_in_case_files_are_reported(folder: Path, old: str, new: str, message: str) -> None:
    edit(folder, old, new)
    with pytest.raises(BadCase) as caught:
        read_case(folder)
    assert message in str(caught.value) and str(folder) in str(caught.value)


@pytest.mark.parametrize(
    ("gone", "message"),
    [
        ("case.toml", "there is no case.toml"),
        ("effect.py", "there is no effect.py"),
        ("buggy/rate_tides.py", "is neither in buggy/ nor beside case.toml"),
    ],
)
def test_a_missing_file_is_reported(folder: Path, gone: str, message: str) -> None:
    (folder / gone).unlink()
    with pytest.raises(BadCase, match=message):
        read_case(folder)


@pytest.mark.parametrize("words", [["--jobs", "0"], ["--jobs", "two"], ["--speed", "9"]])
def test_wrong_usage_names_the_option(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        options().parse_args(words)
    assert caught.value.code == 2
    assert words[0] in capsys.readouterr().err
