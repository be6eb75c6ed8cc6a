"""Describes what the program computes without gradients, function by function, in some windows.

Note [What no gradient shows]
Targets, moving averages, returns, augmentation and evaluations are no part of an autograd graph. So in some windows
each function of torch that the project calls, and whose result needs no gradient, becomes a line such as
`mul <- max, float32`: its name, its plain arguments, the dtype of its result if that is not float32, and what it takes.
It takes results of other functions (by name), parameters and buffers (`state of Net`), tensors with gradients (`graph`)
and others (by dtype). Functions that only arrange memory are left out. What a library computes for the project is one
line, with the modules that it got: `calls AveragedModel.update_parameters <- AveragedModel, Net`. Equal lines of one
function of the project count once.

Another batch size must not change a line, so integers other than small ones are left out, and so are all that have
no tensor next to them. Fractional numbers are `~` in a line, and described apart, as in sources/gradients/graphs.py.

Where a training step follows another, its lines begin right after the last update: what a program prepares for a step
belongs to it. A step after an evaluation or after the set-up is described in part, as is what the end of the run may
have interrupted: lines may be new there, but none can be missing. What follows the training has no lines.

Note [Rows that no batch holds]
A loop by hand takes batches as slices of one tensor. Their bounds are sizes, but how they lie to each other is not: a
slice begins with the next rows, after a gap, or with rows from before. A wrong bound leaves a gap between all batches.

Note [Branches]
In a loop over samples, a branch that is taken at random leaves lines in each window, as long as batches are large. How
often such a line occurs varies: neither the number is constant, nor the ratio to the most frequent other line of the
function. (A smaller batch at the end of a pass changes numbers, but not ratios.) Such lines are marked, and no window
needs them.

Known limitations: other threads, processes of data loaders, compiled code, and functions that modes do not see.
"""

from __future__ import annotations

import re
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import torch
from torch.overrides import handle_torch_function

import traincheck.sources
from traincheck.sources.modules.variables import VariableCatalog
from traincheck.sources.recording.api_names import function_name, release
from traincheck.sources.recording.call_sites import MAX_CODE_OBJECTS, qualified_name
from traincheck.sources.recording.frames import local_values
from traincheck.sources.recording.listener import RecorderListener
from traincheck.sources.recording.recorder import Recorder
from traincheck.sources.recording.step_tracker import Cut
from traincheck.sources.tensors.reading import dtype_name
from traincheck.vocab.bounded_cache import BoundedCache, ObjectCache
from traincheck.vocab.demand import DESCRIBED_ALL, NO_GRAD, OPERATION_NUMBERS, OPERATIONS
from traincheck.vocab.events import END, EVAL, LIVE, NO_CALL, PARTIAL, TRAIN, Reading
from traincheck.vocab.facts import facts
from traincheck.vocab.properties import SOMETIMES

FULL_CALLS, OFTEN, SELDOM = 100_000, 10, 25
"""All windows are described until so many calls were seen (a second or two of work). From then on one in `SELDOM` is,
and the first `OFTEN` of each stage."""
MAX_CALLS = 20_000
"""A window with more calls is not described (some tenths of a second of work)."""

MAX_REPORTS = 2
"""Equal descriptions of a function that are reported. Two show that it did not happen once by chance."""

MAX_MADE = 5_000
"""From so many tensors on, those that are gone are forgotten."""

_ARRANGING = frozenset(
    (
        "view", "reshape", "contiguous", "expand", "expand_as", "view_as", "reshape_as", "flatten", "unflatten",
        "unsqueeze", "squeeze", "to", "cpu", "cuda", "type_as", "pin_memory",
    )
)  # fmt: skip
_VIEWS = ("torch.Tensor.data.__get__", "torch.Tensor.grad.__get__", "torch.Tensor.T.__get__", "torch.Tensor.mT.__get__")
_GRAD = "grad.__get__"
_MAX_SHOWN = 2
"""Larger integers may be sizes."""
_TORCH = str(Path(torch.__file__).parent)
_PASSED_OVER = (str(Path(traincheck.sources.__file__).parents[1]), f"{_TORCH}/_dynamo/")
"""Folders with wrappers of functions, which depend on what is observed."""
_OBSERVED_BY_OTHERS = tuple(
    f"{_TORCH}/{path}" for path in ("utils/data/", "optim/optimizer.py", "autograd/", "_tensor.py")
)
"""Files with functions that other sources observe: loaders, optimizers, backwards."""
_MODULE_CALLS = ("Module._wrapped_call_impl", "Module._call_impl")
_NO_LINE = "-"
"""Stands for a function of a library that is no line, and in which nothing else is one."""
_FRACTION = "~"
"""Stands for a fractional number, which is described apart."""
_LOCAL = "<locals>"
_COMPREHENSION = re.compile(r"\.<locals>\.<(list|dict|set)comp>")
"""Since Python 3.12, a comprehension is part of the function around it."""
_CHANGING = frozenset(("__setitem__", "__iadd__", "__isub__", "__imul__", "__itruediv__"))
_UNNAMED = frozenset(("out", "dtype", "device", "layout", "generator", "requires_grad", "memory_format", "size"))


_CONTEXT = facts(kind=NO_GRAD)


class _Line(NamedTuple):
    seq: int
    place: str
    operation: str
    numbers: tuple[str, ...]


class NoGradOperations(RecorderListener):
    """Describes windows; `TorchFunctionSource` passes each call to `describe` while `on`."""

    def __init__(
        self, source: str, recorder: Recorder, catalog: VariableCatalog, switch: Callable[[bool], bool]
    ) -> None:
        """`switch` makes the mode see calls, or not, and returns whether it does. Failures are those of `source`."""
        self.describe = recorder.guarded(source, self._describe)
        self.module_ended = recorder.guarded(source, self._module_ended)
        self._next_window = recorder.guarded(source, self._begin_window, always=True)
        self._source = source
        self._recorder = recorder
        self._catalog = catalog
        self._switch = switch
        self._lines: list[_Line] = []
        self._made: dict[int, tuple[weakref.ref[torch.Tensor], str]] = {}
        self._times: dict[tuple[str, str], dict[str, set[float | str]]] = {}  # by stage and function
        self._slices: dict[int, tuple[weakref.ref[torch.Tensor], int]] = {}  # where the last slice of a tensor ends
        self._windows: dict[str, int] = {}
        self._calls = self._all_calls = 0  # in this window, and in all
        self._updates = 0
        self._last_update = -1  # where parameters were updated in this window
        self._role = LIVE  # of the open window, see `_role_of_next`
        self._names: BoundedCache[Any, str] = BoundedCache()
        self._places: ObjectCache[str] = ObjectCache(MAX_CODE_OBJECTS)
        self._libraries: ObjectCache[str] = ObjectCache(MAX_CODE_OBJECTS)
        self._reported: Counter[tuple[str, str, str]] = Counter()
        self._left_out = False  # whether a window was not described
        self.enabled = True
        self.on = switch(True)

    def report_again(self) -> None:
        """Report descriptions again that were reported before."""
        self._reported.clear()

    # -- which windows -------------------------------------------------------------------------------------------------

    def _note_update(self) -> None:
        """Note where the last update ended, if there was one since the last call of this function."""
        if self._updates != self._recorder.steps.updates_made:
            self._updates = self._recorder.steps.updates_made
            self._made.clear()
            self._last_update = self._recorder.next_seq()

    def report_completeness(self) -> None:
        """Report whether all windows so far were described, except for the last one, which is about to close."""
        value = self.enabled and not self._left_out
        self._recorder.record_reading(
            Reading(self._recorder.next_seq(), NO_CALL, "run", NO_GRAD, DESCRIBED_ALL, value, context=_CONTEXT)
        )

    def window_closing(self, cut: Cut) -> None:
        if cut.stage != END and not (self.enabled and self.on and self._calls <= MAX_CALLS):
            self._left_out = True
        if self.enabled and self.on and self._calls <= MAX_CALLS and cut.stage != END:
            try:
                self._note_update()
                self._report(cut)
            except Exception as error:  # a guarded function would not run at the end of the recording
                self._recorder.fault(self._source, error)

    def window_closed(self, cut: Cut) -> None:
        if self.enabled and (self.on or self._recorder.watching):
            self._next_window(cut)

    def _begin_window(self, cut: Cut) -> None:
        """Decide whether to describe the window that begins, and drop what belongs to the last one."""
        opens = cut.opens or TRAIN
        number = self._windows[opens] = self._windows.get(opens, 0) + 1
        # To see a training step from its beginning, the end of the one before has to be watched.
        sampled = number <= OFTEN or number % SELDOM == 0 or (opens == TRAIN and (number + 1) % SELDOM == 0)
        self._role = self._role_of_next(cut, opens)
        start = self._end_of(cut)
        self._lines = [line for line in self._lines if line.seq >= start] if self.on else []
        self._calls = len(self._lines)
        self._updates, self._last_update = self._recorder.steps.updates_made, -1
        if opens == EVAL:
            self._made.clear()  # as if the description began here
        self.on = self._switch(self._recorder.watching and (sampled or self._all_calls < FULL_CALLS))
        if not self.on or len(self._slices) > MAX_MADE:
            self._slices.clear()

    def _role_of_next(self, cut: Cut, opens: str) -> str:
        """Whether the next window is described as a whole, in part or (empty) not at all."""
        if opens == EVAL:
            return LIVE
        if not self.on or self._calls > MAX_CALLS:
            return ""
        return LIVE if cut.stage == TRAIN and self._last_update >= 0 else PARTIAL

    def _end_of(self, cut: Cut) -> int:
        """Where the lines of the next window begin: after the last update, if it is another step."""
        return self._last_update if cut.stage == TRAIN and cut.opens != EVAL and self._last_update >= 0 else cut.seq

    # -- one call ------------------------------------------------------------------------------------------------------

    def _describe(self, func: Any, args: Any, kwargs: Any, result: Any, frame: Any) -> None:
        """A function of torch was called from `frame`, the caller of the mode. Its result is no part of a graph."""
        self._calls += 1
        self._all_calls += 1
        if self._calls > MAX_CALLS or self._recorder.steps.updates or self._recorder.queries_program:
            return
        self._note_update()
        name = self._names.get(func)
        if name is None:
            name = self._names.put(func, _short_name(func))
        if not name:
            return
        tensors = result if isinstance(result, (tuple, list)) else (result,)
        made = [tensor for tensor in tensors if type(tensor) is torch.Tensor]
        if name in _ARRANGING or name == _GRAD or (name == "__getitem__" and _arranges(args)):
            source = self._taken(args[0]) if args else ""
            shown = f"gradient of {source}" if name == _GRAD else source
        else:
            changes = _changes(name)
            first = args[0] if args else next(iter((kwargs or {}).values()), None)  # init functions name all arguments
            if not made and not (changes and isinstance(first, torch.Tensor)):
                return
            if any(tensor.requires_grad for tensor in made) and (torch.is_grad_enabled() or not changes):
                return
            place, library = self._place(frame)
            if not place:
                return
            if library:
                shown, line = library.partition(" <- ")[0], f"calls {library}"
                numbers: tuple[str, ...] = ()
            else:
                shown = name
                line, numbers = self._line(name, args, kwargs or {}, made)
            self._lines.append(_Line(self._recorder.next_seq(), place, line, numbers))
        if len(self._made) > MAX_MADE:
            self._made = {key: entry for key, entry in self._made.items() if entry[0]() is not None}
        for tensor in made:
            self._made[id(tensor)] = (weakref.ref(tensor), shown)

    def _module_ended(self, module: torch.nn.Module, _: Any, output: Any) -> None:
        """Name what a model returned without gradients."""
        if not self.on or self._calls > MAX_CALLS:
            return
        values = output.values() if isinstance(output, dict) else output if type(output) in (list, tuple) else (output,)
        with torch._C.DisableTorchFunction():  # modes of the program do not see what TrainCheck reads
            results = [value for value in values if type(value) is torch.Tensor and not value.requires_grad]
            if results:
                self._note_update()
                shown = f"result of {self._model(module)}"
                for tensor in results:
                    self._made[id(tensor)] = (weakref.ref(tensor), shown)

    def _model(self, module: torch.nn.Module) -> str:
        """The class of a model, and whether an optimizer trains it: a copy of a model has the same class."""
        self._catalog.refresh_holders()
        first = next((parameter for parameter in module.parameters() if parameter.requires_grad), None)
        variable = None if first is None else self._catalog.find(first)
        trained = variable is not None and bool(variable.holders)
        return f"{'trained ' if trained else ''}{type(module).__name__}"

    def _line(
        self, name: str, args: Any, kwargs: dict[str, Any], made: list[torch.Tensor]
    ) -> tuple[str, tuple[str, ...]]:
        operands: list[str] = []
        seen: set[int] = set()
        plain: list[str] = []
        fractions: list[tuple[str, float]] = []
        items = [(str(position), value) for position, value in enumerate(args)]
        items += [(key, value) for key, value in kwargs.items() if key not in _UNNAMED]
        tensors = [tensor for _, value in items for tensor in _tensors_in(value)]
        for _, value in items:
            if isinstance(value, torch.Tensor):
                operands.append("itself" if id(value) in seen else self._taken(value))
                seen.add(id(value))
            else:
                operands += dict.fromkeys(self._taken(tensor) for tensor in _tensors_in(value))
        for key, value in items:
            if type(value) is float:
                fractions.append((key, value))
                text = _FRACTION
            else:
                text = _plain(value) if tensors else str(value) if isinstance(value, (bool, str)) else ""
            if text:
                plain.append(text if key.isdigit() else f"{key}={text}")
        if name == "__getitem__" and len(args) > 1:
            plain += self._slice_words(args[0], args[1])
        dtype = made[0].dtype if made else torch.float32
        shown = f"{name}({', '.join(plain)})" if plain else name
        ending = "" if dtype is torch.float32 else f" {dtype_name(dtype)}"
        line = f"{shown}{ending}" + (f" <- {', '.join(operands)}" if operands else "")
        if not fractions:
            return line, ()
        from traincheck.sources.tensors.program_numbers import (  # seldom needed at the start
            may_be_size,
            sizes_and_powers,
        )

        sizes = sizes_and_powers(size for tensor in (*tensors, *made) for size in (*tensor.shape, tensor.numel()))
        return line, tuple(
            f"{name}.{key}={value:.6g}"
            for key, value in fractions
            if not may_be_size(value, sizes, divides="div" in name)
        )

    def _slice_words(self, tensor: Any, index: Any) -> Iterator[str]:
        """How a slice of rows lies to the last one of the same tensor, see Note [Rows that no batch holds]."""
        rows = index[0] if type(index) is tuple and index else index
        if type(rows) is not slice or rows.step not in (None, 1) or not isinstance(tensor, torch.Tensor):
            return
        start, stop, _ = rows.indices(len(tensor)) if tensor.dim() else (0, 0, 1)
        entry = self._slices.get(id(tensor))
        self._slices[id(tensor)] = (weakref.ref(tensor), stop)
        if start and entry is not None and entry[0]() is tensor:
            last = entry[1]
            yield "the next rows" if start == last else "rows after a gap" if start > last else "rows from before"

    def _taken(self, tensor: Any) -> str:
        """What a function takes, in words."""
        if not isinstance(tensor, torch.Tensor):
            return "-"
        entry = self._made.get(id(tensor))
        if entry is not None and entry[0]() is tensor:
            return entry[1]
        variable = self._catalog.find(tensor)
        if variable is not None:
            return f"state of {variable.name.partition('.')[0]}"
        if tensor.requires_grad:
            return "graph" if tensor.grad_fn is not None else "parameter"
        return dtype_name(tensor.dtype)

    def _place(self, frame: Any) -> tuple[str, str]:
        """The function of the project that the call is made for, and the function of a library that it calls for that
        (empty for a direct call). Both are empty for a call that is no line."""
        if frame is not None and frame.f_code is _HANDLER:
            frame = frame.f_back  # the function itself
            frame = frame.f_back if frame is not None else None
        sites, library, direct = self._recorder.sites, "", True
        called: FrameType | None = None
        while frame is not None:
            code = frame.f_code
            file = sites.file_of(code)
            if file:
                if library == _NO_LINE or not (direct or library):
                    return "", ""
                if library and sites.above(frame) == self._recorder.fetch_site:
                    return "", ""
                return self._place_of(code, file), f"{library}{_modules_in(called)}" if called else ""
            direct = False
            if library != _NO_LINE:
                name = self._library_function(code)
                library, called = (name, frame) if name else (library, called)
            frame = frame.f_back
        return "", ""

    def _library_function(self, code: Any) -> str:
        """The name of a function of a library; empty for a wrapper, `_NO_LINE` for one that others observe."""
        name = self._libraries.get(id(code))
        if name is None:
            name = qualified_name(code)
            if code.co_filename.startswith(_OBSERVED_BY_OTHERS) or name in _MODULE_CALLS:
                name = _NO_LINE
            elif code.co_filename.startswith(_PASSED_OVER) or _LOCAL in name:
                name = ""
            self._libraries.put_for(code, name)
        return name

    def _place_of(self, code: Any, file: str) -> str:
        place = self._places.get(id(code))
        if place is None:
            name = _COMPREHENSION.sub("", qualified_name(code))
            stem = file.rpartition("/")[2].removesuffix(".py")
            place = self._places.put_for(code, name if stem.startswith("In[") else f"{stem}.{name}")
        return place

    # -- reports -------------------------------------------------------------------------------------------------------

    def _report(self, cut: Cut) -> None:
        end, by_place = self._end_of(cut), dict[str, list[_Line]]()
        role = self._role if cut.opens != END else PARTIAL  # it may have been interrupted
        for line in self._lines if role else ():
            if line.seq < end:
                by_place.setdefault(line.place, []).append(line)
        for place, lines in by_place.items():
            operations = sorted(self._marked(cut.stage, place, lines, whole=role == LIVE))
            numbers = sorted({number for line in lines for number in line.numbers})
            for attribute, texts in ((OPERATIONS, operations), (OPERATION_NUMBERS, numbers)):
                text = "\n".join((release(), *texts))
                key = (f"{attribute} {cut.stage} {place}", text, role)
                if texts and self._reported[key] < MAX_REPORTS:
                    self._reported[key] += 1
                    seq = min(max(lines[-1].seq, self._last_update), cut.seq - 1)
                    self._recorder.record_reading(
                        Reading(seq, NO_CALL, place, NO_GRAD, attribute, text, role, _CONTEXT)
                    )

    def _marked(self, stage: str, place: str, lines: list[_Line], *, whole: bool) -> list[str]:
        """The operations of a function in this window, marked if they are not always there, see Note [Branches]."""
        history = self._times.setdefault((stage, place), {})
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


_HANDLER = handle_torch_function.__code__


def _short_name(func: Any) -> str:
    """`mul` for `torch.Tensor.mul`; empty for functions that no line shows."""
    resolved = torch.overrides.resolve_name(func)
    if resolved is None:
        return ""
    if resolved in _VIEWS:
        name = resolved.removeprefix("torch.Tensor.")
        return name if name == _GRAD else "view"
    name = resolved if resolved.endswith(".__set__") else function_name(func)
    if name is None:
        return ""
    return str(name).removeprefix("torch.Tensor.").rpartition("functional.")[2].removeprefix("torch.")


def _tensors_in(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif type(value) in (list, tuple):
        for item in value:
            if isinstance(item, torch.Tensor):
                yield item


def _arranges(args: Any) -> bool:
    """Whether an index only takes parts that a size may determine, such as `x[index]` with an integer."""
    return len(args) > 1 and type(args[1]) is int


def _modules_in(frame: FrameType) -> str:
    """The modules that a function of a library got, as the end of a line: their classes, or their names in another one
    of them."""
    code = frame.f_code
    values = local_values(frame, code.co_varnames[: code.co_argcount + code.co_kwonlyargcount])
    modules = [value for value in values.values() if isinstance(value, torch.nn.Module)]
    children = {
        id(child): f"{type(module).__name__}.{name}" for module in modules for name, child in module._modules.items()
    }
    names = [children.get(id(module), type(module).__name__) for module in modules]
    return f" <- {', '.join(names)}" if names else ""


def _plain(value: Any) -> str:
    """A flag, a word or a small integer as text, an index as it is written; empty for everything else."""
    if isinstance(value, (bool, str)):
        return str(value)
    if type(value) is int:
        return str(value) if abs(value) <= _MAX_SHOWN else ""
    if value is Ellipsis:
        return "..."
    if isinstance(value, slice):
        return ":".join(_plain(part) for part in (value.start, value.stop))
    if type(value) in (tuple, list) and not any(isinstance(item, (float, torch.Tensor)) for item in value):
        items = [_plain(item) for item in value]
        return f"[{' '.join(items)}]" if any(items) else ""
    return ""


def _changes(name: str) -> bool:
    """Whether a function changes its first argument."""
    if name.endswith("__"):
        return name in _CHANGING or name.endswith("__set__")
    return name.endswith("_")
