"""While a library is imported, Python's profiler is paused; functions of the project are observed before and after.

Python 3.12 and later have no profiler for this, so there the tests hold by themselves.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

from observed_process import observing

LIBRARY = """
import sys
PROFILER = sys.getprofile()
import {inner}
AFTER = sys.getprofile()
"""

HAS_PROFILER = sys.version_info < (3, 12)


def helper() -> int:
    return 1


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of installed modules, and one of the project."""
    for name, text in {
        "site-packages/library_one.py": LIBRARY.format(inner="library_two"),
        "site-packages/library_two.py": LIBRARY.format(inner="sys"),
        "site-packages/library_fails.py": "import library_two\nraise ImportError('an optional part is missing')",
        "project/module_of_project.py": "import sys\nPROFILER = sys.getprofile()\ndef early():\n    pass\nearly()\n",
    }.items():
        file = tmp_path / name
        file.parent.mkdir(exist_ok=True)
        file.write_text(text)
        monkeypatch.syspath_prepend(str(file.parent))
        monkeypatch.delitem(sys.modules, file.stem, raising=False)
    yield tmp_path / "project"
    for name in ("library_one", "library_two", "library_fails", "module_of_project"):
        sys.modules.pop(name, None)


def test_the_profiler_is_paused_while_a_library_is_imported(installed: Path) -> None:
    with observing(project=str(installed)) as seen:
        before = sys.getprofile()
        one = importlib.import_module("library_one")
        after = sys.getprofile()
        project = importlib.import_module("module_of_project")
    assert seen.faults == []
    assert one.PROFILER is one.AFTER is one.library_two.PROFILER is None
    assert before is after is project.PROFILER
    assert (before is not None) is HAS_PROFILER
    assert len(seen.named("module_of_project.early")) == 1


def test_the_profiler_goes_on_after_an_import_that_fails(installed: Path) -> None:
    with observing(project=str(installed)) as seen:
        before = sys.getprofile()
        with pytest.raises(ImportError, match="optional part"):
            importlib.import_module("library_fails")
        assert sys.getprofile() is before
        importlib.import_module("module_of_project").early()
    assert seen.faults == []
    assert len(seen.named("module_of_project.early")) == 2


def test_modules_keep_their_specs(installed: Path) -> None:
    with observing(project=str(installed)):
        one = importlib.import_module("library_one")
        plain = type(sys.__spec__ or importlib.machinery.ModuleSpec("name", None))
        assert type(one.__spec__) is type(one.library_two.__spec__) is plain
        again = importlib.reload(one)
    assert again is one


def test_a_file_that_a_library_loads_by_itself_does_not_stop_the_profiler(installed: Path) -> None:
    """There is no import, so nothing would start the profiler again."""
    file = installed.parent / "site-packages" / "library_two.py"
    spec = importlib.util.spec_from_file_location("loaded", file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with observing(project=str(installed)) as seen:
        before = sys.getprofile()
        spec.loader.exec_module(module)
        assert sys.getprofile() is before
    assert seen.faults == []
