"""Builds the sources that installed packages add, and keeps their faults from the program.

`plugins.check` has reported a broken package before the program started. What fails later (in another environment, say)
counts as a source that cannot observe: the report names it, and rules that rest on it are not judged.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

from traincheck import plugins
from traincheck.sources.base import Source
from traincheck.sources.recording.patches import UndoStack
from traincheck.sources.recording.recorder import Recorder
from traincheck.sources.toolkit import SourceToolkit
from traincheck.vocab.demand import Demand
from traincheck.vocab.source_declaration import SourceDeclaration


class InstalledSource:
    """A source of an installed package. It attaches only under a demand that it serves."""

    def __init__(self, declaration: SourceDeclaration, source: Any) -> None:
        self.name = declaration.name
        self._declaration = declaration
        self._source = source

    def offers(self) -> str | None:
        try:
            reason = self._source.offers()
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        return None if reason is None else str(reason)

    def attach(self, demand: Demand, recorder: Recorder) -> ExitStack:
        if not self._declaration.serves(demand):
            return UndoStack()
        undo: ExitStack = self._source.attach(demand, recorder)
        return undo


class UnusableSource:
    """Stands for a source that could not be built."""

    def __init__(self, name: str, error: Exception) -> None:
        self.name = name
        self._reason = f"{type(error).__name__}: {error}"

    def offers(self) -> str | None:
        return self._reason

    def attach(self, demand: Demand, recorder: Recorder) -> ExitStack:
        raise NotImplementedError("a source that cannot observe is not attached")


def installed_sources(toolkit: SourceToolkit) -> list[Source]:
    """A source for each that an installed package adds. Raises nothing."""
    sources: list[Source] = []
    for name, _ in plugins.added(plugins.SOURCE_GROUP):
        try:
            declaration = plugins.load(plugins.SOURCE_GROUP, [name])[name]
            sources.append(InstalledSource(declaration, plugins.source_class(declaration)(toolkit)))
        except Exception as error:
            sources.append(UnusableSource(name, error))
    return sources
