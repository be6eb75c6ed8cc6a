"""Source `evaluation`: reports what an evaluation changes that training goes on with.

It compares parameters, gradients, buffers, the state of optimizers and the states of random generators before the first
forward of an evaluation with those after its 1st, 2nd, 4th, 16th, 64th, ... forward. So a long evaluation is compared a
few times only. What a forward changes shows after the first one, and what comes between two forwards after the second.
With another batch size, an evaluation has more or fewer forwards, so the changes after each number of them are reported
apart. A pass over another loader begins anew, because it may draw a seed for its workers.

Known limitations: changes before the first forward and after the last comparison are not seen, such as averaged weights
that are never swapped back. Random generators on accelerators, and those that the program made, are not read.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import torch
from torch import nn

from traincheck.sources.data.random_states import STREAMS, stream_fingerprint
from traincheck.sources.modules.live_modules import has_parameters, plain_name
from traincheck.sources.modules.module_calls import ModuleCalls
from traincheck.sources.modules.variables import VariableCatalog
from traincheck.sources.recording.descriptions import Descriptions, Schedule
from traincheck.sources.recording.patches import UndoStack
from traincheck.sources.recording.recorder import Recorder
from traincheck.sources.tensors.deferred_values import not_equal
from traincheck.sources.tensors.device_transfers import NextSeq
from traincheck.sources.tensors.reading import Fingerprint, deferred_fingerprints, hidden_from_modes
from traincheck.vocab.demand import CHANGED, EVALUATION, Demand
from traincheck.vocab.events import NO_CALL, without_positions

SCHEDULE = Schedule(often=5, seldom=50)
"""The evaluations that are compared."""

_SECOND = 2
"""The first forward that something between two forwards precedes."""

STAYS = "everything else stays"
"""The line that each evaluation has."""

_Key = tuple[str, str]
"""The words for a change, and the name of what changes."""


class EvaluationSource:
    """Takes a reading for each set of changes that is new for a model.

    It attaches after the source `modules`, which tells the step tracker about each forward.
    """

    name = "evaluation"

    def __init__(self, calls: ModuleCalls, catalog: VariableCatalog) -> None:
        self._calls = calls
        self._catalog = catalog
        self._evaluations = self._forwards = 0
        self._begun = (-1, -1)  # the window of the evaluation under way, and the passes that ended before it
        self._model = ""
        self._before: dict[_Key, Fingerprint] = {}
        self._changes: Descriptions

    def offers(self) -> str | None:
        return None

    def attach(self, demand: Demand, recorder: Recorder) -> ExitStack:
        undo = UndoStack()
        self._recorder = recorder
        if not recorder.reattaching:
            self._changes = Descriptions(recorder, EVALUATION)
        if demand.takes_reading(EVALUATION, CHANGED):
            recorder.after_gap(self.name, self._changes.forget_unread, undo=undo, repeatable=True)
            begins, ends = recorder.guarded(self.name, self._begins), recorder.guarded(self.name, self._ends)
            self._calls.add_listener(begins, ends, outermost=True)
        return undo

    def _begins(self, module: nn.Module, args: Any) -> None:
        begun = self._recorder.window_index, self._recorder.steps.passes_ended
        if self._begun == begun or not self._recorder.steps.evaluating or not has_parameters(module):
            return
        self._begun, self._forwards = begun, 0
        self._evaluations += 1
        self._before = {}
        if SCHEDULE.includes(self._evaluations):
            self._model = self._catalog.model_name(module).partition("#")[0]
            self._before = self._read()

    def _ends(self, module: nn.Module, args: Any, output: Any) -> None:
        if not self._before or self._begun != (self._recorder.window_index, self._recorder.steps.passes_ended):
            return
        self._forwards += 1
        if self._forwards == _SECOND or _is_power_of_four(self._forwards):
            self._compare()

    def _compare(self) -> None:
        """Report what differs from the values before the evaluation."""
        before, after, model = self._before, self._read(), self._model
        header = "forward 1" if self._forwards == 1 else f"forwards 1 to {self._forwards}"
        keys = [key for key in before if key in after]

        def conclude(differs: list[bool], next_seq: NextSeq) -> None:
            changed = {_line(key) for key, differ in zip(keys, differs, strict=True) if differ}
            self._changes.report(
                NO_CALL, model, CHANGED, "\n".join((header, *sorted(changed), STAYS)), next_seq=next_seq
            )

        with hidden_from_modes():
            differ = [not_equal(before[key], after[key]) for key in keys]
            self._recorder.transfers.when_ready(self.name, differ, conclude, events=1)

    def _read(self) -> dict[_Key, Fingerprint]:
        """The fingerprints of everything that training goes on with."""
        with hidden_from_modes():
            tensors = dict(self._tensors())
            present = {key: tensor for key, tensor in tensors.items() if tensor is not None}
            values = dict.fromkeys(tensors) | dict(
                zip(present, deferred_fingerprints([*present.values()]), strict=True)
            )
        return values | {("random numbers of {} are drawn", stream): stream_fingerprint(stream) for stream in STREAMS}

    def _tensors(self) -> Iterator[tuple[_Key, torch.Tensor | None]]:
        # A gradient is named even if there is none, because one that appears is a change. Everything else that appears
        # is new, and may be a part of the evaluation.
        for variable, tensor in self._catalog.living():
            yield ("the parameter {} changes", variable.name), tensor
            yield ("the gradient of {} changes", variable.name), tensor.grad
        for root in self._catalog.models():
            model = self._catalog.module_name(root)
            for name, buffer in root.named_buffers():
                yield ("the buffer {} changes", f"{model}.{plain_name(name)}"), buffer
        for name, optimizer in self._catalog.optimizers():
            for number, state in enumerate(list(optimizer.state.values())):
                for entry, value in state.items() if isinstance(state, dict) else ():
                    if isinstance(value, torch.Tensor):
                        yield ("the state {} changes", f"{name}.{number}.{entry}"), value


def _line(key: _Key) -> str:
    """The words for a change. Copies of a model and modules in a list share them."""
    words, name = key
    owner, dot, rest = name.partition(".")
    return words.format(without_positions(owner.partition("#")[0] + dot + rest))


def _is_power_of_four(number: int) -> bool:
    return number & (number - 1) == 0 and number.bit_length() % 2 == 1
