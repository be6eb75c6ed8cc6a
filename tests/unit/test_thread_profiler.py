"""Python's profiler runs where a function of the project may be observed: not in imports of libraries, for example.

Python 3.12 and later have no profiler for this, so there the tests hold by themselves.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from observed_process import observing
from traincheck.vocab.call_kinds import LAYERED
from traincheck.vocab.demand import Demand

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


class Stack(nn.Module):
    def __init__(self, num_layers: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(2, 2) for _ in range(num_layers))


def test_constructors_alone_are_observed_until_the_first_update() -> None:
    with observing(Demand.of_calls(LAYERED)) as seen:
        before = sys.getprofile()
        model = Stack(2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model.layers[0](torch.ones(1, 2)).sum().backward()
        optimizer.step()
        assert sys.getprofile() is None
    assert (before is not None) is HAS_PROFILER
    assert any(call.name.endswith("Stack.__init__") for call in seen.calls)
    assert seen.faults == []


@pytest.mark.parametrize(("name", "is_profiled"), [("numpy.ones", False), ("a_module_of_mine.load", True)])
def test_functions_of_installed_packages_need_no_profiler(name: str, is_profiled: bool) -> None:
    with observing(Demand.of_calls(name)):
        assert (sys.getprofile() is not None) is (is_profiled and HAS_PROFILER)
