"""Describes what the program computes without gradients, function by function, in some windows.

Note [What no gradient shows]
Targets, moving averages, returns, augmentation and evaluations are no part of an autograd graph. So in some windows
each function of torch that the project calls, and whose result needs no gradient, becomes a line such as
`mul <- max, float32`: its name, its plain arguments, the dtype of its result if that is not float32, and what it takes.
It takes results of other functions (by name), parameters and buffers (`state of Net`), tensors with gradients (`graph`)
and others (by dtype). Functions that only arrange memory are left out. What a library computes for the project is one
line, with the modules and parameters that it got: `calls AveragedModel.update_parameters <- AveragedModel, Net`. Equal
lines of one function of the project count once.

Note [Branches]
In a loop over samples, a branch that is taken at random leaves lines in each window, as long as batches are large. How
often such a line occurs varies: neither the number is constant, nor the ratio to the most frequent other line of the
function. (A smaller batch at the end of a pass changes numbers, but not ratios.) Such lines are marked, and no window
needs them.

Known limitations: other threads, processes of data loaders, compiled code, and functions that modes do not see.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, NamedTuple

import torch

from traincheck.sources.functions.described_windows import DescribedWindows, DescribingMode
from traincheck.sources.functions.function_owners import FunctionOwners
from traincheck.sources.functions.operation_lines import Line, OperationLines
from traincheck.sources.modules.variables import VariableCatalog
from traincheck.sources.recording.api_names import release
from traincheck.sources.recording.descriptions import Descriptions
from traincheck.sources.recording.listener import RecorderListener
from traincheck.sources.recording.recorder import Recorder
from traincheck.sources.recording.step_tracker import Cut
from traincheck.vocab.demand import DESCRIBED_ALL, NO_GRAD, OPERATION_NUMBERS, OPERATIONS
from traincheck.vocab.events import END, EVAL, LIVE, NO_CALL, PARTIAL, Reading
from traincheck.vocab.facts import facts
from traincheck.vocab.properties import SOMETIMES

MAX_REPORTS = 2
"""Equal descriptions of a function that are reported. Two show that it did not happen once by chance."""

_CONTEXT = facts(kind=NO_GRAD)


class _Call(NamedTuple):
    seq: int
    line: Line


class NoGradOperations(RecorderListener):
    """Reports descriptions of windows; `TorchFunctionSource` passes each call to `describe` while its mode describes
    calls."""

    def __init__(self, source: str, recorder: Recorder, catalog: VariableCatalog, mode: DescribingMode) -> None:
        """Failures are those of `source`."""
        self.describe = recorder.guarded(source, self._describe)
        self.module_ended = recorder.guarded(source, self._module_ended)
        self._next_window = recorder.guarded(source, self._begin_window, always=True)
        self._source = source
        self._recorder = recorder
        self._mode = mode
        self._lines = OperationLines(catalog, FunctionOwners(recorder, catalog))
        self._calls: list[_Call] = []
        self._times: dict[tuple[str, str], dict[str, set[float | str]]] = {}  # by stage and function
        self._descriptions = Descriptions(recorder, NO_GRAD, MAX_REPORTS)
        self.windows = DescribedWindows(recorder, mode, self._lines.forget_results)

    def forget_reported(self) -> None:
        """Report descriptions again that no reader of windows has got."""
        self._descriptions.forget_unread()

    def report_completeness(self) -> None:
        """Report whether all windows so far were described, except for the last one, which is about to close."""
        value = self.windows.all_described
        self._recorder.record_reading(
            Reading(self._recorder.next_seq(), NO_CALL, "run", NO_GRAD, DESCRIBED_ALL, value, context=_CONTEXT)
        )

    def window_closing(self, cut: Cut) -> None:
        if self.windows.close(cut):
            try:
                self._report(cut)
            except Exception as error:  # a guarded function would not run at the end of the recording
                self._recorder.fault(self._source, error)

    def window_closed(self, cut: Cut) -> None:
        if self.windows.demanded and (self._mode.describes or self._recorder.watching):
            self._next_window(cut)

    def _begin_window(self, cut: Cut) -> None:
        """Drop what belongs to the last window."""
        was_described = self._mode.describes
        start = self.windows.end_of(cut) if was_described else 0
        self._calls = [call for call in self._calls if call.seq >= start] if was_described else []
        self.windows.begin(cut, len(self._calls))
        if was_described or cut.opens == EVAL:
            self._lines.begin_window(evaluates=cut.opens == EVAL, described=self._mode.describes)

    def is_named_gradient(self, gradient: Any) -> bool:
        """Whether calls that take this gradient name it already. It need not be described again."""
        return self.windows.updates == self._recorder.steps.updates_made and self._lines.is_named_gradient(gradient)

    def _describe(self, func: Any, args: Any, kwargs: Any, result: Any, frame: Any) -> None:
        """A function of torch was called from `frame`, the caller of the mode. Its result is no part of a graph."""
        if self.windows.takes_call():
            line = self._lines.write(func, args, kwargs, result, frame)
            if line is not None:
                self._calls.append(_Call(self._recorder.next_seq(), line))

    def _module_ended(self, module: torch.nn.Module, _: Any, output: Any) -> None:
        """Name what a model returned without gradients."""
        if not self._mode.describes or self.windows.too_long:
            return
        values = output.values() if isinstance(output, dict) else output if type(output) in (list, tuple) else (output,)
        with torch._C.DisableTorchFunction():  # modes of the program do not see what TrainCheck reads
            results = [value for value in values if type(value) is torch.Tensor and not value.requires_grad]
            if results:
                self.windows.note_update()
                self._lines.name_results(module, results)

    def _report(self, cut: Cut) -> None:
        end, by_owner = self.windows.end_of(cut), dict[str, list[_Call]]()
        role = self.windows.role if cut.opens != END else PARTIAL  # it may have been interrupted
        for call in self._calls if role else ():
            if call.seq < end:
                by_owner.setdefault(call.line.owner, []).append(call)
        for owner, calls in by_owner.items():
            self._report_function(owner, calls, role, cut)

    def _report_function(self, owner: str, calls: list[_Call], role: str, cut: Cut) -> None:
        lines = [call.line for call in calls]
        seq = min(max(calls[-1].seq, self.windows.last_update), cut.seq - 1)
        operations = sorted(self._marked(cut.stage, owner, lines, whole=role == LIVE))
        numbers = sorted({number for line in lines for number in line.numbers})
        for attribute, texts in ((OPERATIONS, operations), (OPERATION_NUMBERS, numbers)):
            if texts:
                text = "\n".join((release(), *texts))
                self._descriptions.report(NO_CALL, owner, attribute, text, role, stage=cut.stage, next_seq=lambda: seq)

    def _marked(self, stage: str, owner: str, lines: list[Line], *, whole: bool) -> list[str]:
        """The operations of a function in this window, marked if they are not always there, see Note [Branches]."""
        history = self._times.setdefault((stage, owner), {})
        marked = []
        times = Counter([line.operation for line in lines])
        for operation, number in times.items():
            others = max([n for name, n in times.items() if name != operation], default=0)
            now: set[float | str] = {number}
            if others:
                now.add(f"{number / others:.6g} of others")
            constant = history.setdefault(operation, now)
            if whole:
                constant &= now
            marked.append(operation if constant else SOMETIMES + operation)
        return marked
