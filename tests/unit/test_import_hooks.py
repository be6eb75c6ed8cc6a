"""Hooks on imports, which other threads do not notice."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

from traincheck.runtime.launching.import_hooks import when_imported


def test_a_search_in_progress_asks_every_finder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As an import of another thread does, in the midst of which the hook is taken back."""
    (tmp_path / "looked_for.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "meta_path", [finder for finder in sys.meta_path if isinstance(finder, type)])
    take_back = when_imported("traincheck_never_imported", lambda: None)

    class TakesBack:
        def find_spec(self, name: str, path: object = None, target: object = None) -> None:
            take_back()

    sys.meta_path.insert(-1, TakesBack())  # type: ignore[arg-type]
    before = len(sys.meta_path)
    importlib.import_module("looked_for")
    assert len(sys.meta_path) == before - 1
    del sys.modules["looked_for"]


def test_a_finder_that_another_thread_adds_meanwhile_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    added = object()

    class AddedTo(list):  # type: ignore[type-arg]
        def copy(self) -> list[object]:
            copied = list(self)
            if added not in self:
                self.append(added)
            return copied

    monkeypatch.setattr(sys, "meta_path", AddedTo(sys.meta_path))
    before = list(sys.meta_path)
    when_imported("traincheck_never_imported", lambda: None)()
    assert list(sys.meta_path) == [*before, added]
