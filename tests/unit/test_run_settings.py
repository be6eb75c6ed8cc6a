"""Settings travel to the children whole; children attach by environment; the import hook calls back once."""

from __future__ import annotations

import importlib.util
import os
import sys
import types
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from traincheck import plugins
from traincheck.errors import OutputError, SessionUnreadable
from traincheck.runtime.launching import child_processes, import_hooks
from traincheck.runtime.launching.run_settings import Settings

FULL = Settings(
    run_folder="/runs/one",
    mode="run",
    books=("/books/a.jsonl",),
    on_violation="stop",
    fail_on="never",
    project=("/home/me/code",),
    packages=("mylib",),
    script="träin.py",
    live_terminal=False,
)


def restored(settings: Settings, folder: Path) -> Settings:
    """The settings that a process reads in `folder` after `settings` were written there."""
    adds_sources = bool(plugins.added(plugins.SOURCE_GROUP))
    return replace(settings, run_folder=str(folder), installed_sources=adds_sources)


def test_settings_round_trip(tmp_path: Path) -> None:
    in_folder = replace(FULL, books=(str(tmp_path / "book.jsonl"), "/books/a.jsonl"))
    for settings in (FULL, in_folder, Settings("/r", "collect")):
        settings.write(tmp_path / "session.json")
        assert Settings.read(tmp_path / "session.json") == restored(settings, tmp_path)
    assert [entry.name for entry in tmp_path.iterdir()] == ["session.json"]


def test_settings_name_no_other_run_folder_than_their_own(tmp_path: Path) -> None:
    path = tmp_path / "session.json"
    replace(FULL, books=(str(tmp_path / "book.jsonl"),)).write(path)
    assert "/runs/one" not in path.read_text() and str(tmp_path) not in path.read_text()
    path.write_text('{"run_folder": "/elsewhere", "mode": "run"}')
    assert Settings.read(path).run_folder == str(tmp_path)


def test_settings_are_frozen_and_know_their_file() -> None:
    with pytest.raises(AttributeError):
        FULL.mode = "collect"  # type: ignore[misc]
    assert FULL.file == Path("/runs/one/session.json")


def test_a_field_of_a_newer_version_is_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "session.json"
    path.write_text('{"run_folder": "/r", "mode": "run", "tomorrow": 1}')
    assert Settings.read(path) == Settings(str(tmp_path), "run")


@pytest.mark.parametrize("text", ["", "{", "[]", '{"run_folder": "/r"}', '{"run_folder": "/r", "mode": "watch"}'])
def test_invalid_settings_are_reported(tmp_path: Path, text: str) -> None:
    path = tmp_path / "session.json"
    path.write_text(text)
    with pytest.raises(SessionUnreadable, match=r"session\.json"):
        Settings.read(path)


def test_missing_settings_and_an_unwritable_place(tmp_path: Path) -> None:
    with pytest.raises(SessionUnreadable):
        Settings.read(tmp_path / "absent.json")
    (tmp_path / "file").touch()
    with pytest.raises(OutputError):
        FULL.write(tmp_path / "file" / "session.json")


def test_the_environment_of_children_has_two_additions() -> None:
    made = child_processes.environment({"A": "1", "PYTHONPATH": "x:y"}, "/r/session.json")
    assert made == {
        "A": "1",
        "PYTHONPATH": os.pathsep.join((child_processes.BOOTSTRAP, "x:y")),
        "TRAINCHECK_SESSION": "/r/session.json",
    }
    assert (Path(child_processes.BOOTSTRAP) / "sitecustomize.py").is_file()


@pytest.mark.parametrize("base", [{}, {"PYTHONPATH": "a:b"}, {"PYTHONPATH": "a::b", "HOME": "/"}])
def test_detaching_undoes_attaching(base: dict[str, str]) -> None:
    attached = child_processes.environment(base, "/one")
    assert child_processes.detached(attached) == base
    assert child_processes.environment(attached, "/two") == child_processes.environment(base, "/two")


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a module that can be imported and is not yet."""
    (tmp_path / "late_module.py").write_text("import sys\nloader_state = dict(vars(__loader__))\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    monkeypatch.delitem(sys.modules, "late_module", raising=False)
    return "late_module"


def test_the_hook_calls_back_once_when_the_body_has_run(module: str) -> None:
    seen: list[object] = []
    import_hooks.when_imported(module, lambda: seen.append(vars(sys.modules[module]).get("loader_state")))
    import_hooks.when_imported(module, lambda: seen.append("a second hook"))
    assert importlib.util.find_spec(module) is not None and seen == []
    loaded = importlib.import_module(module)
    assert seen == [{"name": module, "path": loaded.__file__}]
    assert vars(loaded.__loader__) == seen[0] and loaded.__spec__.loader is loaded.__loader__
    assert not any(isinstance(finder, import_hooks.PostImport) for finder in sys.meta_path)
    import_hooks.when_imported(module, lambda: seen.append("at once"))
    assert seen[1:] == ["at once"]


def test_a_failed_import_is_watched_again(module: str, tmp_path: Path) -> None:
    seen: list[int] = []
    good = (tmp_path / "late_module.py").read_text()
    (tmp_path / "late_module.py").write_text("raise OSError('no driver')")
    import_hooks.when_imported(module, lambda: seen.append(1))
    with pytest.raises(OSError, match="no driver"):
        importlib.import_module(module)
    assert seen == []
    (tmp_path / "late_module.py").write_text(good + "# longer, so that its cached code is not taken for it\n")
    importlib.invalidate_caches()
    importlib.import_module(module)
    assert seen == [1]


def test_a_finder_that_asks_all_others_meets_no_end(module: str) -> None:
    class AsksAll:
        def find_spec(self, name: str, path: object = None, target: object = None) -> object:
            if name != module:
                return None
            others = (finder.find_spec(name, path, target) for finder in sys.meta_path if finder is not self)
            return next(filter(None, others), None)

    seen: list[int] = []
    import_hooks.when_imported(module, lambda: seen.append(1))
    sys.meta_path.insert(1, AsksAll())  # type: ignore[arg-type]
    importlib.import_module(module)
    assert seen == [1]


def test_a_session_is_started_with_the_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[Settings] = []
    fake = types.ModuleType("traincheck.runtime.process_session")
    fake.start = started.append  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, fake.__name__, fake)
    FULL.write(tmp_path / "session.json")
    child_processes.start(str(tmp_path / "session.json"))
    assert started == [restored(FULL, tmp_path)]


def test_a_session_that_cannot_start_costs_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    child_processes.start(str(tmp_path / "absent.json"))
    stderr = capsys.readouterr().err
    assert stderr.startswith("traincheck: this process is not observed: ") and stderr.count("\n") == 1
    monkeypatch.setattr(sys, "stderr", None)
    child_processes.start(str(tmp_path / "absent.json"))


def test_attaching_without_a_session_does_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    for value in (None, ""):
        monkeypatch.delenv("TRAINCHECK_SESSION", raising=False)
        if value is not None:
            monkeypatch.setenv("TRAINCHECK_SESSION", value)
        child_processes.attach()
    assert not any(isinstance(finder, import_hooks.PostImport) for finder in sys.meta_path)


def test_the_file_is_json_that_people_can_read(tmp_path: Path) -> None:
    FULL.write(tmp_path / "session.json")
    text = (tmp_path / "session.json").read_text(encoding="utf-8")
    assert "\n" in text and msgspec.json.decode(text)["script"] == "träin.py"
