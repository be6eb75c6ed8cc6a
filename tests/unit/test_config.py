"""The configuration: the nearest place wins, and every message names the place."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from traincheck.config import Config, load
from traincheck.errors import BadOption
from traincheck.options import OPTIONS


def project(folder: Path, text: str) -> Path:
    (folder / "pyproject.toml").write_text(text)
    return folder / "pyproject.toml"


def test_the_defaults_are_those_of_the_table(tmp_path: Path) -> None:
    config = load({}, {}, tmp_path)
    for name in ("books", "packages", "on_violation", "fail_on", "runs"):
        assert getattr(config, name) == OPTIONS[name].default
        assert config.origin(name) == "default"


def test_every_shared_option_is_a_field() -> None:
    shared = {option.name for option in OPTIONS.values() if option.shared}
    assert shared == set(Config.__dataclass_fields__) - {"origins"}


def test_the_nearest_place_wins(tmp_path: Path) -> None:
    file = project(tmp_path, '[tool.traincheck]\nfail-on = "notice"\npackages = ["one", "two"]\n')
    below = tmp_path / "a" / "b"
    below.mkdir(parents=True)
    from_file = load({}, {}, below)
    assert (from_file.fail_on, from_file.packages) == ("notice", ("one", "two"))
    assert from_file.origin("fail_on") == f"{file}, [tool.traincheck] fail-on"
    environ = {"TRAINCHECK_FAIL_ON": "never", "TRAINCHECK_PACKAGES": "three, four"}
    from_environ = load({}, environ, below)
    assert (from_environ.fail_on, from_environ.packages) == ("never", ("three", "four"))
    assert from_environ.origin("fail_on") == "TRAINCHECK_FAIL_ON"
    from_flag = load({"fail_on": "error", "packages": ("five",)}, environ, below)
    assert (from_flag.fail_on, from_flag.packages) == ("error", ("five",))
    assert from_flag.origin("packages") == "--package"


def test_flags_that_were_not_given_say_nothing(tmp_path: Path) -> None:
    assert load({"fail_on": None, "books": ()}, {"TRAINCHECK_FAIL_ON": ""}, tmp_path).origin("fail_on") == "default"


def test_paths_in_a_file_are_relative_to_it(tmp_path: Path) -> None:
    project(tmp_path, '[tool.traincheck]\nbooks = ["a.jsonl", "/abs/b.jsonl"]\nruns = "out"\n')
    config = load({}, {}, tmp_path)
    assert config.books == (str(tmp_path / "a.jsonl"), "/abs/b.jsonl")
    assert config.runs == str(tmp_path / "out")
    environ = {"TRAINCHECK_BOOKS": os.pathsep.join(("x.jsonl", "y.jsonl"))}
    assert load({}, environ, tmp_path).books == ("x.jsonl", "y.jsonl")


def test_one_value_may_stand_without_brackets(tmp_path: Path) -> None:
    project(tmp_path, '[tool.traincheck]\nbooks = "good.jsonl"\n')
    assert load({}, {}, tmp_path).books == (str(tmp_path / "good.jsonl"),)


@pytest.mark.parametrize(
    ("flags", "environ", "text", "named"),
    [
        ({"fail_on": "sometimes"}, {}, "", "--fail-on"),
        ({"compare_ranks": "nonsense"}, {}, "", "--compare-ranks"),
        ({}, {"TRAINCHECK_ON_VIOLATION": "shout"}, "", "TRAINCHECK_ON_VIOLATION"),
        ({}, {}, "[tool.traincheck]\nfail-on = 3\n", "pyproject.toml"),
        ({}, {}, "[tool.traincheck]\nbooks = [1]\n", "books"),
        ({}, {}, "[tool.traincheck]\nfial-on = 'error'\n", "fial-on"),
        ({}, {}, "[tool.traincheck\n", "pyproject.toml"),
        ({}, {}, "[tool]\ntraincheck = 1  # tool.traincheck\n", "pyproject.toml"),
    ],
)
def test_a_bad_value_is_told_with_its_place(
    tmp_path: Path, flags: dict[str, str], environ: dict[str, str], text: str, named: str
) -> None:
    project(tmp_path, text)
    with pytest.raises(BadOption, match=named) as caught:
        load(flags, environ, tmp_path)
    assert caught.value.exit_code == 2


def test_the_troubles_of_other_tools_are_theirs(tmp_path: Path) -> None:
    project(tmp_path, "[tool.other\n")
    assert load({}, {}, tmp_path).fail_on == "error"


def test_options_of_one_command_line_have_neither_variable_nor_key() -> None:
    for option in OPTIONS.values():
        assert bool(option.variable) == bool(option.key) == option.shared
        assert option.help.rstrip(")]").endswith((".", "DATE-TIME", "jsonl")), option.name
