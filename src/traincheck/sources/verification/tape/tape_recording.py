"""Records the operations of a step on a tape, through a `TorchDispatchMode`.

Note [Which operations are recorded]
The mode sees each aten operation, below autograd. With gradients enabled, an operation is recorded if one of its
arguments requires a gradient. With gradients disabled, only operations inside a custom `autograd.Function` are: there a
tensor counts as a result if the same call of the function computed it. The frame of its forward on the stack shows
that; no function of torch is patched. Reentrant checkpointing is such a function, too, but it runs the program's own
code, in which `detach` ends the flow of gradients.

In a backward that creates a graph, formulas of torch take statistics that the forward returned (the mean and the
deviation of a normalisation). They require no gradient, but the formulas differentiate through them. So they are
results there, too.

Note [The mode is not seen]
The mode changes no operation. It is on the stack of modes only between the first forward of a step and a backward, and
only if no other mode is there. A backward that creates a graph runs under the mode, as its operations belong to the
function. All others run without it, because torch chooses other formulas under a mode. An error in the recording ends
the recording.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef

from traincheck.sources.recording.dispatch_recording import DispatchRecording
from traincheck.sources.tensors.deferred_values import is_capturing
from traincheck.sources.tensors.reading import PLAIN, hidden_from_modes
from traincheck.sources.tensors.storages import version_of
from traincheck.sources.verification.tape.custom_functions import CustomCall, CustomFunctions, follow_backward
from traincheck.sources.verification.tape.repeated_calls import KeptCalls, RepeatedCall, can_be_repeated
from traincheck.sources.verification.tape.tape import (
    Computation,
    CustomFunction,
    Entry,
    Held,
    Missing,
    ModuleCall,
    Ref,
    Source,
    StridedRef,
    Tape,
    flat_results,
    flat_tensors,
)
from traincheck.sources.verification.tape.tape_operations import (
    ZERO_DERIVATIVE,
    Operation,
    argument,
    describe,
    drop_out,
    is_copy_of_itself,
    is_deterministic,
    same_value,
    shift,
)

MAX_ENTRIES = 200_000
MAX_COPIED = 256 * 1024**2
"""Bytes of memory that are copied because the program overwrites it."""

_CHECKPOINTING = "torch.utils.checkpoint"
_CHANGED = Missing("the program changed a part of a result without gradients")


class _Unrecordable(Exception):
    """The step cannot be recorded any further. The text is the reason."""


class _Memory(NamedTuple):
    """A group of values that share memory. `weak` keeps the key of the storage from being used again."""

    group: int
    weak: StorageWeakRef


class _Origin(NamedTuple):
    """Where the value of a tensor comes from. `weak` keeps the key of the tensor from being used again."""

    source: Ref | StridedRef
    weak: Any
    region: int
    group: int
    is_statistic: bool  # one of several results, such as the mean of a normalisation
    is_resolved: bool = False  # a lazy view (`conj`) that torch writes out for an operation, below autograd


class _Region(NamedTuple):
    """A call of a custom function under way."""

    number: int
    function: CustomFunction | None


_NO_REGION = _Region(0, None)


class _Open(NamedTuple):
    """An operation under way."""

    entry: Entry
    region: int
    written: tuple[torch.Tensor, ...] = ()
    holds: int = -1  # the result that is a constant
    shifts: bool = False  # the program changes a result without gradients
    resolves: bool = False  # the operation writes out a lazy view


class TapeRecording(DispatchRecording):
    """Records on `tape` while it is on. `failed` is why the recording has ended, empty while it goes on.

    Only the thread that made it is recorded. `site` returns the current line of the program.
    """

    def __init__(self, site: Callable[[], str] = lambda: "") -> None:
        super().__init__()
        self.tape = Tape()
        self.failed = ""
        self._site = site
        self._process, self._thread = os.getpid(), threading.get_ident()
        self._origins: dict[int, _Origin] = {}
        self._memory: dict[int, _Memory] = {}
        self._held_tensors: dict[int, int] = {}  # by tensor: the number of its value
        self._held_memory: dict[int, list[int]] = {}  # by storage
        self._whole: dict[int, int] = {}  # by group: the value that is its whole memory
        self._filled: dict[int, int] = {}  # by group: the call of a custom function that wrote results into its memory
        self._unusable: dict[int, int] = {}  # by group: values up to this number cannot be used
        self._geometry: dict[tuple[Any, ...], Ref] = {}
        self._values = self._copied = 0
        self._ops: dict[Any, Operation] = {}
        self._custom_functions = CustomFunctions()
        self._functions: dict[int, CustomFunction] = {}  # by region
        self._calls = KeptCalls()
        self._handles: list[Any] = []
        self.nested_no_grad = False
        """Whether the program disabled gradients where they are disabled already."""
        self.call: ModuleCall | None = None
        """The innermost call of a module under way."""
        self.result_bytes = 0
        """The size of all results in double precision."""
        self._region = _NO_REGION
        self._call_key: tuple[int, int, int] | None = None

    @property
    def is_of_this_thread(self) -> bool:
        """Whether this thread is the one that is recorded."""
        return threading.get_ident() == self._thread

    # -- on and off ------------------------------------------------------------------------------------------------

    def _is_over(self) -> bool:
        return bool(self.failed)

    def _collides(self, reason: str) -> None:
        self.end(reason)

    def end(self, reason: str) -> None:
        """End the recording for good, and let go of everything."""
        self.failed = self.failed or reason
        self.remove_hooks()
        self._functions.clear()
        self.tape = Tape()
        for table in (self._origins, self._memory, self._held_tensors, self._held_memory, self._geometry):
            table.clear()
        self._calls.clear()
        self.call = None

    def drop(self, computation: Computation) -> None:
        """Drop a computation whose graph the program has freed."""
        for entry in computation.entries:
            if entry.function is not None:
                entry.function.gradients = None
        self.tape.drop(computation.indices)
        self._origins = {key: origin for key, origin in self._origins.items() if not origin.weak.expired()}
        self._memory = {key: memory for key, memory in self._memory.items() if not memory.weak.expired()}
        groups = {memory.group for memory in self._memory.values()}
        self._geometry = {key: ref for key, ref in self._geometry.items() if key[0] in groups}
        self._calls.keep_only(self.tape.entries)
        for table in (self._held_tensors, self._held_memory):
            table.clear()
        for number, held in self.tape.held.items():
            if held.value is held.tensor and not held.scratch:
                self._held_tensors[held.tensor._cdata] = number
                self._held_memory.setdefault(held.tensor.untyped_storage()._cdata, []).append(number)

    # -- calls of modules ------------------------------------------------------------------------------------------

    def call_begins(self, module: nn.Module) -> None:
        """Note the begin of a call of a module."""
        self.call = ModuleCall(module, self.call)

    def call_ends(self, module: nn.Module) -> None:
        """Note the end of a call, and of the calls inside it that were interrupted."""
        call = self.call
        while call is not None and call.module is not module:
            call = call.parent
        if call is not None:
            self.call = call.parent

    # -- operations ------------------------------------------------------------------------------------------------

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        opened = None if self.failed or self.lingers else self._guarded(self._begins, func, args, kwargs)
        result = func(*args, **kwargs)
        if opened is not None and not self.failed:
            self._guarded(self._ends, opened, result)
        return result

    def _guarded(self, function: Callable[..., Any], *args: Any) -> Any:
        try:
            return function(*args)
        except _Unrecordable as error:
            self.end(str(error))
        except Exception as error:
            self.end(f"the recording raised {type(error).__name__}: {error}")
        return None

    def _begins(self, func: Any, args: Any, kwargs: Any) -> _Open | None:
        if os.getpid() != self._process:
            self.end("")
            self.failed = "another process"
            return None
        self._check()
        op = self._ops.get(func)
        if op is None:
            op = self._ops[func] = describe(func)
        tensors = flat_tensors(args)
        if kwargs:
            tensors += flat_tensors(list(kwargs.values()))
        origins, grad = self._origins, torch.is_grad_enabled()
        depends = results = False
        for tensor in tensors:
            depends = depends or tensor.requires_grad
            results = results or tensor._cdata in origins or (bool(self._filled) and self._filled_in(tensor) > 0)
        region = _NO_REGION
        if results or (depends and not grad):
            region = self._current_region()
        function = region.function
        if not op.reads_values or not (depends or (results and function)) or not (grad or function):
            return None if is_copy_of_itself(func, args) else self._write_constants(op, args, kwargs)
        if function is not None and function.transparent and func is torch.ops.aten.detach.default:
            return None
        return self._record(func, op, args, kwargs, region)

    def _check(self) -> None:
        if not self.is_of_this_thread:
            raise _Unrecordable("another thread computed a part of it")
        if torch._C._functorch.peek_interpreter_stack() is not None:
            raise _Unrecordable("it uses transforms of torch.func")
        if torch._C._get_tracing_state() is not None:
            raise _Unrecordable("it is traced")
        if len(self.tape.entries) >= MAX_ENTRIES:
            raise _Unrecordable(f"it has more than {MAX_ENTRIES:,} operations")

    def _record(self, func: Any, op: Operation, args: Any, kwargs: Any, region: _Region) -> _Open | None:
        if not is_deterministic(func, op, args, kwargs):
            return self._record_random(func, op, args, kwargs, region)
        written = tuple(self._written(op, args, kwargs))
        missing = "it waits for other ranks" if op.waits else ""
        inside = region.number
        if func is torch.ops.aten.detach.default:
            func = torch.ops.aten.alias.default  # an execution that records gradients goes on through it
        entry = Entry(func, (), {}, (), (), call=self.call, function=region.function, missing=missing)
        reads: list[int] = []
        scratch = op.statistics if op.trains >= 0 and argument(args, op.trains) else ()
        for tensor in written:
            self._copy_held(tensor)
        converted = [
            self._convert(
                None if position in op.repeated else arg, entry, reads, inside, written, scratch=position in scratch
            )
            for position, arg in enumerate(args)
        ]
        entry.args = tuple(converted)
        entry.kwargs = {name: self._convert(arg, entry, reads, inside, written) for name, arg in kwargs.items()}
        entry.reads = tuple(reads)
        entry.writes = tuple(self._group(tensor) for tensor in written)
        resolves = func is torch.ops.aten.clone.default and (args[0].is_conj() or args[0].is_neg())
        return _Open(entry, inside, written, resolves=resolves)

    def _ends(self, opened: _Open, result: Any) -> None:
        entry, written = opened.entry, {id(tensor) for tensor in opened.written}
        if opened.shifts:
            after = self._hold_copy(opened.written[0])
            entry.args, entry.reads = (*entry.args, after), (*entry.reads, after.value)
            entry.results = (-1,)
            self.tape.entries.append(entry)
            return
        results, numbers = flat_results(result), []
        constant = None if opened.holds < 0 else results[opened.holds]
        if constant is not None:
            held = self._hold(constant)
            entry.args, entry.reads = (*entry.args, held), (*entry.reads, held.value)
        for tensor in results:
            if tensor is None or id(tensor) in written:
                numbers.append(-1)
            elif type(tensor) not in PLAIN or tensor.layout is not torch.strided:
                numbers.append(-1)
                self._origins.pop(tensor._cdata, None)
            else:
                is_statistic = len(results) > 1 and tensor.is_floating_point()
                numbers.append(
                    self._add_result(tensor, opened.region, is_statistic=is_statistic, is_resolved=opened.resolves)
                )
        entry.results = tuple(numbers)
        self.tape.entries.append(entry)

    def _add_result(self, tensor: torch.Tensor, region: int, *, is_statistic: bool, is_resolved: bool = False) -> int:
        number, group = self._new_value(tensor)
        ref = Ref(number, tensor.dtype)
        self.result_bytes += 8 * tensor.numel()
        weak = torch._C._WeakTensorRef(tensor)
        self._origins[tensor._cdata] = _Origin(ref, weak, region, group, is_statistic, is_resolved)
        self._geometry[_geometry(group, tensor)] = ref
        return number

    # -- arguments -------------------------------------------------------------------------------------------------

    def _convert(
        self,
        arg: Any,
        entry: Entry,
        reads: list[int],
        region: int,
        written: tuple[torch.Tensor, ...] = (),
        *,
        scratch: bool = False,
    ) -> Any:
        if isinstance(arg, torch.Tensor):
            if type(arg) not in PLAIN or arg.layout is not torch.strided or arg.is_quantized:
                source: Source = Missing(f"it computes with a {_kind(arg)}")
            else:
                source = self._source(arg, region, scratch, is_written=any(arg is tensor for tensor in written))
            if isinstance(source, Missing):
                entry.missing = entry.missing or source.reason
            else:
                reads.append(source.value)
            return source
        if isinstance(arg, tuple | list):
            return [self._convert(item, entry, reads, region, written) for item in arg]
        return arg

    def _source(self, tensor: torch.Tensor, region: int, scratch: bool, *, is_written: bool) -> Source:
        origin = self._origins.get(tensor._cdata)
        if origin is not None and origin.is_resolved:
            return self._usable(origin)
        if origin is not None and origin.region and origin.region != region and tensor.requires_grad:
            self._follow(origin, tensor)
        if region and origin is not None and (tensor.requires_grad or origin.region == region):
            return self._usable(origin)
        if origin is not None and origin.is_statistic and torch._C._current_graph_task_id() >= 0:
            return self._usable(origin)
        if tensor.requires_grad and not tensor.is_leaf:
            return self._usable(origin) if origin is not None else self._of_memory(tensor)
        if is_written and not tensor.requires_grad:
            return self._whole_memory(tensor, region)
        if region and self._filled and self._filled_in(tensor) == region:
            return self._of_memory(tensor)
        return self._hold(tensor, scratch)

    def _filled_in(self, tensor: torch.Tensor) -> int:
        """Return the call of a custom function that wrote results into the memory of a tensor; 0 for none."""
        if tensor.layout is not torch.strided or type(tensor) not in PLAIN:
            return 0
        memory = self._memory.get(tensor.untyped_storage()._cdata)
        return 0 if memory is None else self._filled.get(memory.group, 0)

    def _usable(self, origin: _Origin) -> Source:
        return _CHANGED if origin.source.value <= self._unusable.get(origin.group, 0) else origin.source

    def _of_memory(self, tensor: torch.Tensor) -> Source:
        """Return where a tensor comes from that no operation returned: a view, or a tensor unpacked by autograd."""
        memory = self._memory.get(tensor.untyped_storage()._cdata)
        if memory is None:
            return self._of_kernel(tensor) or Missing("it uses a result whose computation was not recorded")
        if memory.group in self._whole:
            source: Source | None = _strided(self._whole[memory.group], tensor)
        else:
            source = self._geometry.get(_geometry(memory.group, tensor))
        if source is None or isinstance(source, Missing):
            return self._of_kernel(tensor) or Missing("it uses a view of unknown origin")
        return _CHANGED if source.value <= self._unusable.get(memory.group, 0) else source

    def source_of(self, tensor: torch.Tensor) -> Source:
        """Return where the value of a result comes from, such as a loss."""
        if tensor.is_leaf:
            return Missing("it is no result")
        return self._source(tensor, 0, False, is_written=False)

    def _hold(self, tensor: torch.Tensor, scratch: bool = False) -> Ref:
        number = self._held_tensors.get(tensor._cdata)
        if number is not None:
            held = self.tape.held.get(number)
            if held is not None and held.tensor is tensor and held.version == version_of(tensor) and not scratch:
                return Ref(number, tensor.dtype)
        number, _ = self._new_value(tensor)
        self.tape.held[number] = Held(tensor, tensor, version_of(tensor), tensor.requires_grad, scratch)
        if not scratch:
            self._held_tensors[tensor._cdata] = number
            self._held_memory.setdefault(tensor.untyped_storage()._cdata, []).append(number)
        return Ref(number, tensor.dtype)

    def _new_value(self, tensor: torch.Tensor) -> tuple[int, int]:
        self._values += 1
        group = self.tape.groups[self._values] = self._group(tensor)
        return self._values, group

    def _group(self, tensor: torch.Tensor) -> int:
        storage = tensor.untyped_storage()
        memory = self._memory.get(storage._cdata)
        if memory is None:
            self._values += 1
            memory = self._memory[storage._cdata] = _Memory(self._values, StorageWeakRef(storage))
        return memory.group

    # -- writes ----------------------------------------------------------------------------------------------------

    def _written(self, op: Operation, args: Any, kwargs: Any) -> list[torch.Tensor]:
        values = (args[i] if i < len(args) else kwargs.get(name) for i, name in op.writes)
        return [tensor for value in values for tensor in flat_tensors(value)]

    def _write_constants(self, op: Operation, args: Any, kwargs: Any) -> _Open | None:
        """Prepare for an operation that is not recorded, but may write to memory that the tape uses."""
        shifted = None
        for tensor in self._written(op, args, kwargs) if op.writes else ():
            if tensor.layout is not torch.strided or type(tensor) not in PLAIN:
                continue
            self._copy_held(tensor)
            memory = self._memory.get(tensor.untyped_storage()._cdata)
            if memory is None:
                continue
            result = self._result_in(memory, tensor)
            if shifted is None and result is not None and not op.waits:
                shifted = self._begin_shift(tensor, result, memory.group)
            else:
                self._unusable[memory.group] = self._values
        return shifted

    def _result_in(self, memory: _Memory, tensor: torch.Tensor) -> Ref | None:
        """Return the result whose elements are exactly those of a tensor."""
        ref = self._geometry.get(_geometry(memory.group, tensor))
        return ref if ref is not None and ref.value > self._unusable.get(memory.group, 0) else None

    def _begin_shift(self, tensor: torch.Tensor, result: Ref, group: int) -> _Open:
        """The program is about to change a result without gradients, see Note [Versions of memory]."""
        self._count_copy(2 * tensor.numel() * tensor.element_size())
        before = self._hold_copy(tensor)
        entry = Entry(shift, (result, before), {}, (result.value, before.value), (), (group,), self.call)
        return _Open(entry, 0, (tensor,), shifts=True)

    def _hold_copy(self, tensor: torch.Tensor) -> Ref:
        with hidden_from_modes():
            copy = tensor.detach().clone()
        number, _ = self._new_value(copy)
        self.tape.held[number] = Held(copy, copy, version_of(copy))
        return Ref(number, copy.dtype)

    def _copy_held(self, tensor: torch.Tensor) -> None:
        """Copy the constants and leaves in the memory of a tensor, which is about to be overwritten."""
        for number in self._held_memory.pop(tensor.untyped_storage()._cdata, ()):
            held = self.tape.held.get(number)
            if held is None:
                continue
            self._held_tensors.pop(held.tensor._cdata, None)
            if version_of(held.tensor) == held.version:
                self._count_copy(held.tensor.numel() * held.tensor.element_size())
                with hidden_from_modes():
                    held.value = held.tensor.detach().clone()

    def has_room(self, size: int) -> bool:
        """Count the bytes of a copy, or of a gradient that is kept. Returns whether they are within the limit."""
        self._copied += size
        return self._copied <= MAX_COPIED

    def _count_copy(self, size: int) -> None:
        if is_capturing():
            raise _Unrecordable("the program captures a CUDA graph")
        if not self.has_room(size):
            raise _Unrecordable("the program overwrites too much of what it computed with")

    def _whole_memory(self, tensor: torch.Tensor, region: int) -> Source:
        """Return the source of a constant into which a result is written, see Note [Versions of memory]."""
        group = self._group(tensor)
        if group not in self._whole:
            self._count_copy(tensor.untyped_storage().nbytes())
            with hidden_from_modes():
                whole = torch.empty(0, dtype=tensor.dtype, device=tensor.device).set_(tensor.untyped_storage()).clone()
            self._values += 1
            self.tape.groups[self._values] = group
            self.tape.held[self._values] = Held(whole, whole, version_of(whole))
            self._whole[group] = self._values
        if region:
            self._filled[group] = region
        source = _strided(self._whole[group], tensor)
        self._origins[tensor._cdata] = _Origin(source, torch._C._WeakTensorRef(tensor), region, group, False)
        return source

    # -- random operations -----------------------------------------------------------------------------------------

    def _record_random(self, func: Any, op: Operation, args: Any, kwargs: Any, region: _Region) -> _Open | None:
        """Record a random operation: what it drew is a constant."""
        name = func._schema.name
        self._write_constants(op, args, kwargs)
        entry = Entry(func, (), {}, (), (), call=self.call, function=region.function)
        if name == "aten::native_dropout":
            reads: list[int] = []
            entry.op, entry.args = drop_out, (args[1], args[2], self._convert(args[0], entry, reads, region.number))
            entry.reads = tuple(reads)
            return _Open(entry, region.number, holds=1)
        if name in ZERO_DERIVATIVE and not op.writes:
            entry.op = same_value
            return _Open(entry, region.number, holds=0)
        entry.missing = f"{name} draws random numbers"
        return _Open(entry, region.number, tuple(self._written(op, args, kwargs)))

    # -- custom functions ------------------------------------------------------------------------------------------

    def _current_region(self) -> _Region:
        """Return the custom function whose forward this thread runs; number 0 without one."""
        calls = self._custom_functions.calls(sys._getframe(3))
        if not calls:
            self._call_key = None
            return _NO_REGION
        own = [call for call in calls if call.cls.__module__ != _CHECKPOINTING]
        outermost = own[-1] if own else calls[-1]
        key = outermost.key
        if key != self._call_key:
            self._call_key = key
            function = CustomFunction(outermost.cls, self._site(), transparent=not own)
            self._values += 1
            self._region = _Region(self._values, function)
            self._functions[self._values] = function
            function.inputs = [
                self._source(tensor, 0, False, is_written=False) if tensor.requires_grad else None
                for tensor in outermost.tensors()
            ]
            self._keep_call(function, outermost)
        return self._region

    def _keep_call(self, function: CustomFunction, call: CustomCall) -> None:
        """Append an entry that makes the call again. It has no result until one is used that torch did not compute."""
        arguments, tensors = call.arguments(), call.tensors()
        if function.transparent or not can_be_repeated(arguments):
            return
        operation = RepeatedCall(call.cls, arguments)
        entry = Entry(operation, (), {}, (), (), call=self.call, function=function)
        reads: list[int] = []
        entry.args = tuple(self._convert(tensor, entry, reads, 0) for tensor in tensors)
        entry.reads = tuple(reads)
        self.tape.entries.append(entry)
        self._calls.add(entry, operation, self._region.number, tensors)

    def _of_kernel(self, tensor: torch.Tensor) -> Source | None:
        """Return the source of a result of a custom function that torch did not see computed; None for other results.
        See Note [Functions as one operation]."""
        kept = self._calls.of_node(tensor.grad_fn)
        if kept is None or kept.entry.function is None:
            return None
        number = self._add_result(tensor, kept.region, is_statistic=False)
        kept.operation.outputs.append(tensor.output_nr)
        kept.entry.results = (*kept.entry.results, number)
        kept.entry.function.has_kernel = True
        self._follow(origin := self._origins[tensor._cdata], tensor)
        return origin.source

    def _follow(self, origin: _Origin, output: torch.Tensor) -> None:
        """Note the gradients that the backward of a custom function gets and returns; `output` is a result of it."""
        function, node = self._functions.get(origin.region), output.grad_fn
        if function is None or node is None or output.output_nr in function.outputs:
            return
        if not function.outputs:
            self._handles += follow_backward(node, function.keep, self.has_room)
        function.outputs[output.output_nr] = self._usable(origin)

    def remove_hooks(self) -> None:
        """Remove the hooks on nodes of the graph."""
        while self._handles:
            self._handles.pop().remove()


def _geometry(group: int, tensor: torch.Tensor) -> tuple[Any, ...]:
    return group, tensor.dtype, tensor.storage_offset(), tuple(tensor.shape), tensor.stride()


def _strided(value: int, tensor: torch.Tensor) -> StridedRef:
    return StridedRef(value, tensor.dtype, tuple(tensor.shape), tensor.stride(), tensor.storage_offset())


def _kind(tensor: torch.Tensor) -> str:
    if type(tensor) not in PLAIN:
        return type(tensor).__name__
    return "quantized tensor" if tensor.is_quantized else f"{str(tensor.layout).removeprefix('torch.')} tensor"
