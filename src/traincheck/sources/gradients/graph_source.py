"""Source `graph`: describes what a backward goes through, see graphs.py.

Note [Branches that the data choose]
A program may compute something else for some batches: attention without a mask where no sample is padded, a layer that
is dropped at random, an expert without tokens. An error in the program stays. So a graph of a module that is new after
the first backwards counts only if the next graph of this module is the same. Otherwise it is reported as unsettled.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from typing import Any, NamedTuple

import torch

from traincheck.sources.modules.module_calls import ModuleCalls
from traincheck.sources.modules.variables import VariableCatalog
from traincheck.sources.recording.api_names import release
from traincheck.sources.recording.descriptions import Descriptions
from traincheck.sources.recording.patches import UndoStack
from traincheck.sources.recording.recorder import Recorder
from traincheck.sources.tensors.reading import hidden_from_modes
from traincheck.vocab.demand import GRAPH, OPERATION_NUMBERS, OPERATIONS, Demand
from traincheck.vocab.events import NO_CALL, UNSETTLED, without_positions

OFTEN, SELDOM = 5, 50
"""Graphs of one size are described so often; then one backward in `SELDOM`, which is also the rule once `MAX_TOTAL`
nodes were described (seconds of work): some programs have graphs of ever new sizes."""
MAX_TOTAL = 500_000
MAX_SIZES = 10_000
SETTLED = 10
"""Backwards in which each new graph counts at once, because a loop shows in them what takes turns."""
MAX_OPEN = 10
"""Backwards in which to wait for the next graph of a module. Until then each is described."""
SEVERAL_THREADS = -1
"""Where several threads train, a graph may change while it is read, so none is described."""


_Place = tuple[str, str]
"""Modules of a kind, and an attribute of their graphs."""


class _Open(NamedTuple):
    """A new graph of the modules of a kind: the names by text, and the number of its backward."""

    paths: dict[str, str]
    backward: int


class GraphSource:
    """Describes the graphs of backwards. `AutogradSource` passes each backward to `describe`."""

    name = "graph"

    def __init__(self, calls: ModuleCalls, catalog: VariableCatalog) -> None:
        self._module_calls = calls
        self._catalog = catalog
        self._thread = 0
        self._backwards = 0
        self._described_nodes = 0
        self._seen: dict[int, int] = {}  # backwards by the size of their graph
        self._texts: dict[int, set[int]] = {}  # hashes of the different descriptions of a size
        self._last_number = self._size = 0
        self._reported_graphs: dict[_Place, set[frozenset[str]]] = {}
        self._open: dict[_Place, _Open] = {}  # see Note [Branches that the data choose]
        self.describe: Callable[[Any, int], object] = _nothing

    def offers(self) -> str | None:
        return (
            None if hasattr(torch.autograd, "_get_sequence_nr") else "this release of torch does not number operations"
        )

    def attach(self, demand: Demand, recorder: Recorder) -> ExitStack:
        self._recorder = recorder
        if not recorder.reattaching:
            self._graphs = Descriptions(recorder, GRAPH)
        self._attributes = [name for name in (OPERATIONS, OPERATION_NUMBERS) if demand.takes_reading(GRAPH, name)]
        undo = UndoStack()
        if self._attributes:
            self._next_number = torch.autograd._get_sequence_nr
            self._module_calls.record_spans(self._next_number)
            undo.callback(self._module_calls.record_spans, None)
            self.describe = recorder.guarded(self.name, self._describe)
            undo.callback(setattr, self, "describe", _nothing)
            recorder.after_gap(self.name, self._forget_reported, undo=undo, repeatable=True)
        return undo

    def _forget_reported(self) -> None:
        """Describe graphs again that no reader of windows has got: once, if all graphs of a size were the same."""
        self._open.clear()
        if self._graphs.forget_unread():
            self._seen = {size: OFTEN - 1 for size, texts in self._texts.items() if len(texts) == 1}

    def _describe(self, tensors: Any, call: int) -> None:
        """Report the graph that a backward starts from."""
        thread = threading.get_ident()
        self._thread = thread if self._thread in (0, thread) else SEVERAL_THREADS
        if self._thread == SEVERAL_THREADS or not self._is_due() or self._module_calls.depth:
            return
        with hidden_from_modes():
            several = tensors if isinstance(tensors, (list, tuple)) else (tensors,)
            losses = [loss for loss in several if isinstance(loss, torch.Tensor) and loss.grad_fn is not None]
            if not losses:
                return
            from traincheck.sources.gradients.graphs import describe  # not before the first backward

            described, nodes = describe([loss.grad_fn for loss in losses], self._module_calls.spans, self._catalog)
            self._described_nodes += nodes
            mode = ", compiled" if self._recorder.has_compiled_code else ""
            origin = f"{release()}, {losses[0].device.type}{mode}"
            texts = {
                (path, attribute, "\n".join((origin, *lines))): None
                for path, *both in described
                for attribute, lines in zip((OPERATIONS, OPERATION_NUMBERS), both, strict=True)
                if lines and attribute in self._attributes
            }
        self._texts.setdefault(self._size, set()).add(hash(frozenset(texts)))
        self._report(call, texts)

    def _is_due(self) -> bool:
        """Whether to describe this graph, see `OFTEN`. Its size is the number of operations since the last backward."""
        number = self._next_number()
        self._size, self._last_number = number - self._last_number, number
        self._backwards += 1
        if len(self._seen) > MAX_SIZES:
            self._seen.clear()
            self._texts.clear()
        times = self._seen[self._size] = self._seen.get(self._size, 0) + 1
        is_new = times <= OFTEN and self._described_nodes < MAX_TOTAL
        return is_new or self._backwards % SELDOM == 0 or bool(self._open)

    def _report(self, call: int, texts: Iterable[tuple[str, str, str]]) -> None:
        """Report the modules of each kind (path, attribute, text) once for each text, if one of the texts is new."""
        by_kind: dict[tuple[str, str], dict[str, str]] = {}
        for path, attribute, text in texts:
            by_kind.setdefault((without_positions(path), attribute), {}).setdefault(text, path)
        for kind_and_attribute, paths in by_kind.items():
            reported_graphs = self._reported_graphs.setdefault(kind_and_attribute, set())
            opened = self._open.pop(kind_and_attribute, None)
            is_same = opened is not None and opened.paths.keys() == paths.keys()
            if opened is not None and not is_same:
                self._graphs.report_together(NO_CALL, *kind_and_attribute, opened.paths, UNSETTLED)
            graph = frozenset(paths)
            if reported_graphs and graph not in reported_graphs and self._backwards > SETTLED and not is_same:
                self._open[kind_and_attribute] = _Open(paths, self._backwards)
            else:
                reported_graphs.add(graph)
                self._graphs.report_together(call, *kind_and_attribute, paths)
        for kind_and_attribute, opened in list(self._open.items()):
            if self._backwards - opened.backward >= MAX_OPEN:
                del self._open[kind_and_attribute]
                self._graphs.report_together(NO_CALL, *kind_and_attribute, opened.paths, UNSETTLED)


def _nothing(tensors: Any, call: int) -> None:
    """No graph is demanded."""
