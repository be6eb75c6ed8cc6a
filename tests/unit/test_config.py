"""The configuration: the nearest place wins, and every message names the place."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from traincheck.config import Budget, Config, load
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


def test_a_run_that_records_each_step_watches_each_step_unless_told_otherwise(tmp_path: Path) -> None:
    by_default = load({}, {}, tmp_path)
    assert by_default.watched == by_default.budget == Budget(0.05, 1, 200)
    assert load({"record": "all"}, {}, tmp_path).watched == Budget()
    assert load({"record": "operations"}, {}, tmp_path).watched == Budget()
    assert load({"record": "all", "budget": "1/3"}, {}, tmp_path).watched == Budget(0.0, 3)


def test_every_shared_option_is_a_field() -> None:
    shared = {option.name for option in OPTIONS.values() if option.shared}
    assert shared == set(Config.__dataclass_fields__) - {"origins", "callback", "whole_values"}


def test_the_nearest_place_wins(tmp_path: Path) -> None:
    file = project(tmp_path, '[tool.traincheck]\nfail-on = "notice"\npackage = ["one", "two"]\n')
    below = tmp_path / "a" / "b"
    below.mkdir(parents=True)
    from_file = load({}, {}, below)
    assert (from_file.fail_on, from_file.packages) == ("notice", ("one", "two"))
    assert from_file.origin("fail_on") == f"{file}, [tool.traincheck] fail-on"
    environ = {"TRAINCHECK_FAIL_ON": "never", "TRAINCHECK_PACKAGE": "three, four"}
    from_environ = load({}, environ, below)
    assert (from_environ.fail_on, from_environ.packages) == ("never", ("three", "four"))
    assert from_environ.origin("fail_on") == "TRAINCHECK_FAIL_ON"
    from_flag = load({"fail_on": "error", "packages": ("five",)}, environ, below)
    assert (from_flag.fail_on, from_flag.packages) == ("error", ("five",))
    assert from_flag.origin("packages") == "--package"


def test_absent_flags_have_no_effect(tmp_path: Path) -> None:
    assert load({"fail_on": None, "books": ()}, {"TRAINCHECK_FAIL_ON": ""}, tmp_path).origin("fail_on") == "default"


def test_paths_in_a_file_are_relative_to_it(tmp_path: Path) -> None:
    project(tmp_path, '[tool.traincheck]\nbook = ["a.jsonl", "/abs/b.jsonl"]\nruns = "out"\n')
    config = load({}, {}, tmp_path)
    assert config.books == (str(tmp_path / "a.jsonl"), "/abs/b.jsonl")
    assert config.runs == str(tmp_path / "out")
    environ = {"TRAINCHECK_BOOK": os.pathsep.join(("x.jsonl", "y.jsonl"))}
    assert load({}, environ, tmp_path).books == ("x.jsonl", "y.jsonl")


def test_one_value_may_stand_without_brackets(tmp_path: Path) -> None:
    project(tmp_path, '[tool.traincheck]\nbook = "good.jsonl"\n')
    assert load({}, {}, tmp_path).books == (str(tmp_path / "good.jsonl"),)


@pytest.mark.parametrize(
    ("flags", "environ", "text", "named"),
    [
        ({"fail_on": "sometimes"}, {}, "", "--fail-on"),
        ({"compare_ranks": "nonsense"}, {}, "", "--compare-ranks"),
        ({}, {"TRAINCHECK_ON_VIOLATION": "shout"}, "", "TRAINCHECK_ON_VIOLATION"),
        ({"record_after_finding": "-1"}, {}, "", "--record-after-finding"),
        ({}, {"TRAINCHECK_RECORD_AFTER_FINDING": "some"}, "", "TRAINCHECK_RECORD_AFTER_FINDING"),
        ({}, {}, "[tool.traincheck]\nrecord-after-finding = 1.5\n", "record-after-finding"),
        ({}, {}, "[tool.traincheck]\nsnapshot = 'perhaps'\n", "snapshot"),
        ({"on_violation": "package.module"}, {}, "", "--on-violation"),
        ({"on_violation": "a path/module:f"}, {}, "", "--on-violation"),
        ({}, {}, "[tool.traincheck]\nfail-on = 3\n", "pyproject.toml"),
        ({}, {}, "[tool.traincheck]\nbook = [1]\n", "book"),
        ({}, {}, "[tool.traincheck]\nfial-on = 'error'\n", "fial-on"),
        ({}, {}, "[tool.traincheck\n", "pyproject.toml"),
        ({}, {}, "[tool]\ntraincheck = 1  # tool.traincheck\n", "pyproject.toml"),
    ],
)
def test_a_bad_value_is_reported_with_its_origin(
    tmp_path: Path, flags: dict[str, str], environ: dict[str, str], text: str, named: str
) -> None:
    project(tmp_path, text)
    with pytest.raises(BadOption, match=named) as caught:
        load(flags, environ, tmp_path)
    assert caught.value.exit_code == 2


def test_a_recording_of_operations_may_name_a_module_and_a_step(tmp_path: Path) -> None:
    for text, whole in (("operations", ""), ("operations:Net.blocks.0@3", "Net.blocks.0@3"), ("operations:@1", "@1")):
        config = load({"record": text}, {}, tmp_path)
        assert (config.record, config.whole_values) == ("operations", whole)
    for text in ("operations:", "operations:Net", "operations:Net@0", "all:Net@1"):
        with pytest.raises(BadOption, match=r"operations:MODULE@STEP"):
            load({"record": text}, {}, tmp_path)


def test_errors_in_other_tools_sections_are_ignored(tmp_path: Path) -> None:
    project(tmp_path, "[tool.other\n")
    assert load({}, {}, tmp_path).fail_on == "error"


def test_options_of_one_command_line_have_neither_variable_nor_key() -> None:
    for option in OPTIONS.values():
        assert bool(option.variable) == option.shared
        assert bool(option.key) == (option.shared and bool(option.flags))
        assert option.help.endswith((".", ")")), option.name


def test_numbers_and_switches_may_come_from_anywhere(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("[tool.traincheck]\nrecord-after-finding = 7\nsnapshot = true\n")
    settings = load({}, {}, tmp_path)
    assert (settings.record_after_finding, settings.snapshot, settings.callback) == (7, True, "")
    settings = load({"record_after_finding": "0"}, {"TRAINCHECK_SNAPSHOT": "0"}, tmp_path)
    assert (settings.record_after_finding, settings.snapshot) == (0, False)


def test_an_action_may_be_a_function(tmp_path: Path) -> None:
    config = load({"on_violation": "package.module:Class.method"}, {}, tmp_path)
    assert (config.on_violation, config.callback) == ("callback", "package.module:Class.method")
    for action in ("warn", "stop", "callback"):
        config = load({"on_violation": action}, {}, tmp_path)
        assert (config.on_violation, config.callback) == (action, "")


@pytest.mark.parametrize(
    ("name", "given", "meant"),
    [
        ("verify_every", "10", 10),
        ("record_after_finding", "0", 0),
        ("keep_recording", "500 MB", 500e6),
        ("keep_recording", "10GB", 10e9),
        ("keep_recording", "1.5 GiB", 1.5 * 2**30),
        ("keep_recording", "2000 kB", 2e6),
        ("keep_recording", "all", 0),
    ],
)
def test_numbers_are_read_from_a_flag_a_variable_and_a_file(
    tmp_path: Path, name: str, given: str, meant: float
) -> None:
    option = OPTIONS[name]
    assert getattr(load({name: given}, {}, tmp_path), name) == pytest.approx(meant)
    assert getattr(load({}, {option.variable: given}, tmp_path), name) == pytest.approx(meant)
    plain = given if option.kind != "size" else f'"{given}"'
    project(tmp_path, f"[tool.traincheck]\n{option.key} = {plain}\n")
    settings = load({}, {}, tmp_path)
    assert getattr(settings, name) == pytest.approx(meant) and option.key in settings.origin(name)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1%", Budget(share=0.01)),
        ("0.5 %", Budget(share=0.005)),
        (".5%", Budget(share=0.005)),
        ("0%", Budget()),
        ("1/1", Budget()),
        ("1/10", Budget(every=10)),
        ("1/10,first=0", Budget(every=10, first=0)),
        ("1%, first=50", Budget(share=0.01, first=50)),
    ],
)
def test_budget(tmp_path: Path, text: str, expected: Budget) -> None:
    assert load({"budget": text}, {}, tmp_path).budget == pytest.approx(expected)
    assert load({}, {"TRAINCHECK_BUDGET": text}, tmp_path).budget == pytest.approx(expected)
    project(tmp_path, f'[tool.traincheck]\nbudget = "{text}"\n')
    assert load({}, {}, tmp_path).budget == pytest.approx(expected)


def test_alerts_in_a_variable_are_separated_by_lines(tmp_path: Path) -> None:
    config = load({}, {"TRAINCHECK_ALERT": "https://hooks.example.com/a,b\nnotify-send 'a, b'\n"}, tmp_path)
    assert config.alerts == ("https://hooks.example.com/a,b", "notify-send 'a, b'")


def test_a_number_may_stand_for_a_text(tmp_path: Path) -> None:
    project(tmp_path, "[tool.traincheck]\nmetrics = 9100\nheartbeat-timeout = 90.5\n")
    config = load({}, {}, tmp_path)
    assert (config.metrics, config.heartbeat_timeout) == (("9100",), "90.5")


@pytest.mark.parametrize(
    ("name", "given", "expected"),
    [
        ("verify_every", "-3", "a whole number, 0 or more"),
        ("verify_every", "2.5", "a whole number, 0 or more"),
        ("verify_every", "ten", "a whole number, 0 or more"),
        ("verify_every", "9" * 30, "a whole number, 0 or more"),
        ("budget", "1", "a share such as 1%"),
        ("budget", "0.01", "a share such as 1%"),
        ("budget", "100%", "a share such as 1%"),
        ("budget", "-1%", "a share such as 1%"),
        ("budget", "%", "a share such as 1%"),
        ("budget", "nan%", "a share such as 1%"),
        ("budget", "1/0", "a share such as 1%"),
        ("budget", "1/2.5", "a share such as 1%"),
        ("budget", "2/3", "a share such as 1%"),
        ("budget", "1/" + "9" * 30, "a share such as 1%"),
        ("budget", "1%,", "a share such as 1%"),
        ("budget", "1/10,first=-1", "a share such as 1%"),
        ("budget", "1/10,last=5", "a share such as 1%"),
        ("keep_recording", "1000", "a size of 1 MB or more"),
        ("keep_recording", "0", "a size of 1 MB or more"),
        ("keep_recording", "-1 GB", "a size of 1 MB or more"),
        ("keep_recording", "999 kB", "a size of 1 MB or more"),
        ("keep_recording", "10 GX", "a size of 1 MB or more"),
        ("keep_recording", "GB", "a size of 1 MB or more"),
        ("keep_recording", "nan GB", "a size of 1 MB or more"),
        ("keep_recording", "none", "a size of 1 MB or more"),
    ],
)
def test_a_meaningless_number_is_reported_with_its_origin(tmp_path: Path, name: str, given: str, expected: str) -> None:
    option = OPTIONS[name]
    with pytest.raises(BadOption, match=expected) as caught:
        load({name: given}, {}, tmp_path)
    assert str(caught.value).startswith(f"{option.flag} was given '{given}'")
    with pytest.raises(BadOption, match=rf"{option.variable} .*{expected}"):
        load({}, {option.variable: given}, tmp_path)
    project(tmp_path, f'[tool.traincheck]\n{option.key} = "{given}"\n')
    with pytest.raises(BadOption, match=rf"pyproject\.toml.*{option.key} .*{expected}"):
        load({}, {}, tmp_path)


@pytest.mark.parametrize("text", ["true", "1.5", "[10]"])
def test_a_value_of_another_type_is_no_number(tmp_path: Path, text: str) -> None:
    project(tmp_path, f"[tool.traincheck]\nverify-every = {text}\n")
    with pytest.raises(BadOption, match=r"verify-every .* a whole number, 0 or more"):
        load({}, {}, tmp_path)
