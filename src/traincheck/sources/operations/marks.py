"""Source `marks`: sketches the values that a program names with `traincheck.mark`.

Note [Occurrences of a mark]
The k-th value with a name is compared with the k-th in the other run. So values are counted where they are not
recorded (outside the sample, or where nothing can be read), and values that are computed again for a backward are not
counted: activation checkpointing calls the forward twice. A recomputation is a mark in a backward with gradients
enabled. In the program's own backward functions and hooks, gradients are off.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, NamedTuple

import torch
from torch import nn

from traincheck.sources.modules.module_calls import ModuleCalls
from traincheck.sources.operations.sketches import elements, sketches
from traincheck.sources.recording.patches import UndoStack
from traincheck.sources.recording.recorder import Recorder
from traincheck.sources.tensors.reading import dtype_name, hidden_from_modes
from traincheck.vocab.demand import Demand
from traincheck.vocab.marks import GRADIENT_SUFFIX, MAX_MARKS, MAX_VALUES, Mark

Take = Callable[[object, object, object], object]
"""Takes the arguments of `traincheck.mark`: name, value and gradient."""

LIMIT = f"marks: only the first {MAX_MARKS:,} are recorded"
_EXPECTED = "pass a tensor, an array, a number or a list of numbers"

_graph_task = torch._C._current_graph_task_id
_jit_trace = torch._C._get_tracing_state


class MarkSink(NamedTuple):
    """What a `MarkSource` calls: `keep` with each mark, and `report` with each kind of problem once.

    `connect` gets the function that takes marks from the program, and None at the end.
    """

    keep: Callable[[Mark], object]
    connect: Callable[[Take | None], object]
    report: Callable[[str], object]


class _Awaited(NamedTuple):
    """A hook for the gradient of a tensor. `tensor` is a weak reference."""

    tensor: Any
    hook: Any


class MarkSource:
    """Sketches marks, and passes them to its sink."""

    name = "marks"

    def __init__(self, calls: ModuleCalls, sink: MarkSink) -> None:
        self._calls, self._sink = calls, sink
        self._lock = threading.Lock()  # several threads may mark
        self._counts: Counter[str] = Counter()
        self._recorded = 0
        self._reported: set[str] = set()  # kinds of problems
        self._coarsest: torch.dtype = torch.float64
        self._called: set[tuple[int, torch.dtype]] = set()  # models, each with its type
        self._awaited: dict[tuple[str, int], _Awaited] = {}  # by the name of the mark and the tensor

    def offers(self) -> str | None:
        return None

    def attach(self, demand: Demand, recorder: Recorder) -> ExitStack:
        undo = UndoStack()
        self._recorder = recorder
        recorder.on_detach(undo, self._remove_hooks)
        self._calls.add_listener(recorder.guarded(self.name, self._note_call), outermost=True)
        undo.callback(self._sink.connect, None)
        self._sink.connect(recorder.guarded(self.name, self._take, always=True))
        return undo

    def _note_call(self, module: nn.Module, args: Any) -> None:
        """Note in which precision a model computes."""
        first = next(iter(module.parameters()), None)
        if first is None:
            return
        device = first.device.type
        if torch.is_autocast_enabled(device):
            self._note_precision(torch.get_autocast_dtype(device))
        if (id(module), first.dtype) not in self._called:
            self._called.add((id(module), first.dtype))
            for parameter in module.parameters():
                self._note_precision(parameter.dtype)

    def _note_precision(self, dtype: torch.dtype) -> None:
        if dtype.is_floating_point and torch.finfo(dtype).eps > torch.finfo(self._coarsest).eps:
            self._coarsest = dtype

    def _take(self, name: object, value: object, gradient: object) -> None:
        if not isinstance(name, str):
            self._report("name", f"traincheck.mark expects a name as its first argument, not {type(name).__name__}")
            return
        recomputes = _graph_task() >= 0 and torch.is_grad_enabled()
        if recomputes or _jit_trace() is not None or not self._has_room():
            return
        occurrence = self._count(name)
        if self._recorder.watching:
            with hidden_from_modes():
                tensor = self._tensor(name, value)
                if tensor is not None:
                    self._record(name, occurrence, tensor)
        if gradient and isinstance(value, torch.Tensor) and value.requires_grad:
            self._await_gradient(name, value)

    def _count(self, name: str) -> int:
        with self._lock:
            self._counts[name] += 1
            return self._counts[name]

    def _has_room(self) -> bool:
        if self._recorded < MAX_MARKS:
            return True
        self._report("limit", LIMIT)
        return False

    def _report(self, kind: str, problem: str) -> None:
        """Report a kind of problem once."""
        if kind not in self._reported:
            self._reported.add(kind)
            self._sink.report(problem)

    def _record(self, name: str, occurrence: int, tensor: torch.Tensor) -> None:
        """Record a value. Call inside `hidden_from_modes()`."""
        problem = ""
        try:
            (sketch,) = sketches([tensor])
            if sketch.size and not sketch.packed_projections:
                problem = "it has no numbers in plain memory now"
            values = elements(tensor) if sketch.size <= MAX_VALUES and not sketch.share else b""
        except (RuntimeError, NotImplementedError, TypeError) as error:  # a type that torch cannot compute with
            problem = f"{type(error).__name__}: {error}"
        if problem:
            kind = f"{dtype_name(tensor.dtype)}, {type(tensor).__name__} on {tensor.device}"
            self._report(kind, f"traincheck.mark cannot read {name!r} ({kind}): {problem}")
            return
        steps, site = self._recorder.steps, self._recorder.sites.here()
        self._note_precision(tensor.dtype)
        step = 0 if steps.setting_up or steps.evaluating else steps.window_step
        with self._lock:
            self._recorded += 1
            self._sink.keep(Mark(name, occurrence, step, site, dtype_name(self._coarsest), sketch, values))

    def _tensor(self, name: str, value: object) -> torch.Tensor | None:
        """The value as a tensor; None, with a report, for a value of another type."""
        if isinstance(value, torch.Tensor):
            return value
        kind = type(value).__name__
        try:
            return _of_array(value) if hasattr(value, "__array__") else _of_numbers(value)
        except Exception as error:  # arrays of other libraries may raise anything
            reason = f", {type(error).__name__}" if hasattr(value, "__array__") else ""
            self._report(kind, f"traincheck.mark cannot read {name!r} ({kind}{reason}); {_EXPECTED}")
        return None

    # -- gradients -------------------------------------------------------------------------------------------------

    def _await_gradient(self, name: str, tensor: torch.Tensor) -> None:
        """Mark the next gradient of a tensor, once."""
        key = name + GRADIENT_SUFFIX, tensor._cdata
        known = self._awaited.get(key)
        if known is not None and not known.tensor.expired():
            return
        take = self._recorder.guarded(self.name, functools.partial(self._take_gradient, key), always=True)
        try:
            hook = tensor.register_hook(take)
        except RuntimeError as error:  # under a transformation of torch.func
            self._report("gradient", f"traincheck.mark cannot follow the gradient of {name!r}: {error}")
            return
        self._awaited[key] = _Awaited(torch._C._WeakTensorRef(tensor), hook)

    def _take_gradient(self, key: tuple[str, int], gradient: torch.Tensor) -> None:
        awaited = self._awaited.pop(key, None)
        if awaited is not None:
            awaited.hook.remove()
        if not self._has_room():
            return
        occurrence = self._count(key[0])
        if self._recorder.watching:
            with hidden_from_modes():
                self._record(key[0], occurrence, gradient)

    def _remove_hooks(self) -> None:
        while self._awaited:
            _, awaited = self._awaited.popitem()
            awaited.hook.remove()


def _of_array(value: Any) -> torch.Tensor:
    """An array of NumPy, or of a library that NumPy can read. Raises what the library raises."""
    numpy: Any = sys.modules["numpy"]
    array = numpy.ascontiguousarray(numpy.asarray(value))
    shape = numpy.shape(value)
    if array.dtype.kind in "biufc":
        return torch.from_numpy(array.astype(array.dtype.newbyteorder("="))).reshape(shape)  # a copy
    small: torch.dtype = getattr(torch, array.dtype.name)  # bfloat16 and others, which NumPy knows as bytes
    return torch.from_numpy(array.view(f"uint{8 * array.dtype.itemsize}").copy()).view(small).reshape(shape)


def _of_numbers(value: object) -> torch.Tensor:
    """A number or a list of numbers. Numbers of Python often come from a tensor in single precision."""
    tensor = torch.tensor(value, device="cpu")
    return torch.tensor(value, device="cpu", dtype=torch.float32) if tensor.is_floating_point() else tensor
