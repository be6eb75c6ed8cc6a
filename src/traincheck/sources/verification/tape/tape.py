"""A tape: the operations between the leaves of a program and its loss, which can be executed again as a pure function.

Note [What is on the tape]
The tape holds what autograd differentiates. A tensor is a constant if it requires no gradient when an operation takes
it, wherever it came from: `detach`, `.data`, `no_grad`, `.item()`, a batch, or a random operation. Operations on
constants are not recorded. A leaf that requires a gradient is an argument of the function. Other tensors are results of
earlier entries. Inside a custom `autograd.Function` no result requires a gradient, because its author writes the
derivative. A result there depends on everything that it was computed from. tape_recording.py records.

Note [Versions of memory]
Operations in place are executed in place, on results that alias each other as the originals did. Constants and leaves
are held by reference. Before the program writes to their memory, the recording copies them. What changes them unseen
also changes their version, and then the tape cannot be executed. A constant into which the program writes a result
becomes part of the function: the tape holds a copy of its memory from before, and views of that memory are views of the
copy. Where the program changes a result without gradients (`.data`, or a clamp under `no_grad`), autograd ignores the
change. The tape adds the difference, a constant.

Note [What is held]
References to leaves and to constants, which are mostly those that autograd saves as well. No result of an operation is
held, except that of a random one with gradients. Copies, of what the program overwrites, are limited.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import nn

from traincheck.sources.tensors.reading import hidden_from_modes
from traincheck.sources.tensors.storages import version_of
from traincheck.sources.verification.tape.tape_operations import fused_attention, returns_view


class CannotExecute(Exception):
    """A recorded computation cannot be executed again. The text is the reason."""


class Ref(NamedTuple):
    """The value with this number."""

    value: int
    dtype: torch.dtype


class StridedRef(NamedTuple):
    """A view of the value with this number, which is a copy of a whole memory."""

    value: int
    dtype: torch.dtype
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int


class Missing(NamedTuple):
    """A value that the tape does not have."""

    reason: str


Source = Ref | StridedRef | Missing
"""Where the value of a tensor comes from."""


@dataclass(slots=True, eq=False)
class Held:
    """A leaf or a constant. `value` is the tensor of the program, or a copy from before the program overwrote it.

    A `leaf` requires a gradient. A `scratch` tensor is written by the operation that takes it, which does not read it
    (running statistics).
    """

    tensor: torch.Tensor
    value: torch.Tensor
    version: int | None
    leaf: bool = False
    scratch: bool = False

    def current(self) -> torch.Tensor:
        """Return the value. Raises CannotExecute if the program has changed it."""
        if not self.scratch and self.value is self.tensor and version_of(self.tensor) != self.version:
            raise CannotExecute("a tensor that it used was changed since")
        return self.value


class ModuleCall:
    """A call of a module, inside the call `parent`. A module that the program makes for one call may be gone."""

    __slots__ = ("_reference", "parent")

    def __init__(self, module: nn.Module, parent: ModuleCall | None) -> None:
        self._reference = weakref.ref(module)
        self.parent = parent

    @property
    def module(self) -> nn.Module | None:
        """The module, if it lives."""
        return self._reference()

    @property
    def living(self) -> nn.Module | None:
        """The module, or that of the nearest call around this one whose module lives."""
        module = self.module
        return module if module is not None or self.parent is None else self.parent.living


@dataclass(slots=True, eq=False)
class Entry:
    """An operation: its arguments with a source in place of each tensor, and the numbers of its results.

    `reads` are all values that it takes, `writes` the groups of values whose memory it changes. A result that is an
    argument has the number -1. `call` is the innermost call of a module around it, and `function` the custom function
    in whose forward it ran. `missing` is why the entry cannot be executed, empty if it can be.
    """

    op: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    reads: tuple[int, ...]
    results: tuple[int, ...]
    writes: tuple[int, ...] = ()
    call: ModuleCall | None = None
    function: CustomFunction | None = None
    missing: str = ""


@dataclass(slots=True, eq=False)
class CustomFunction:
    """A call of a custom `autograd.Function`: its class, and the line of the program that applied it.

    `inputs` are the sources of its tensors, in their order; None for one that requires no gradient. `outputs` are the
    sources of its results that the program used, by their index. A `transparent` function runs code of the program
    (reentrant checkpointing). `gradients` are the gradients that its backward got and returned; it `overwrites` those
    that it got if it changed them, and `differentiates` if it built a graph of its own. A function `has_kernel` if
    torch does not see how its results are computed, see Note [Functions as one operation] in repeated_calls.py.
    """

    cls: type
    site: str = ""
    transparent: bool = False
    has_kernel: bool = False
    inputs: Sequence[Source | None] = ()
    outputs: dict[int, Source] = field(default_factory=dict)
    gradients: tuple[Sequence[torch.Tensor | None], Sequence[torch.Tensor | None]] | None = None
    overwrites: bool = False
    differentiates: bool = False

    def keep(
        self,
        got: Sequence[torch.Tensor | None],
        returned: Sequence[torch.Tensor | None],
        overwrites: bool,
        differentiates: bool,
    ) -> None:
        """Keep what its backward got and returned, whether it changed what it got, and whether it built a graph."""
        self.gradients, self.overwrites, self.differentiates = (got, returned), overwrites, differentiates


@dataclass(slots=True)
class Tape:
    """Entries in the order of their execution; None where an entry was dropped."""

    entries: list[Entry | None] = field(default_factory=list)
    held: dict[int, Held] = field(default_factory=dict)
    groups: dict[int, int] = field(default_factory=dict)
    """By number of a value: values of one group share their memory."""

    def computation(self, roots: Sequence[Source]) -> Computation:
        """Return the part of the tape that computes `roots`. Raises CannotExecute where a part of it is missing."""
        for root in roots:
            if isinstance(root, Missing):
                raise CannotExecute(root.reason)
        needed = {root.value for root in roots if not isinstance(root, Missing)}
        memory = {self.groups[value] for value in needed}
        chosen: list[int] = []
        for index in range(len(self.entries) - 1, -1, -1):
            entry = self.entries[index]
            if entry is None or (needed.isdisjoint(entry.results) and memory.isdisjoint(entry.writes)):
                continue
            if entry.missing:
                raise CannotExecute(entry.missing)
            chosen.append(index)
            needed.update(entry.reads)
            memory.update(self.groups[value] for value in entry.reads)
        chosen.reverse()
        return Computation(self, roots, chosen, needed)

    def drop(self, indices: Collection[int]) -> None:
        """Drop these entries, the entries that use their results, those without a result, and what only they hold."""
        gone: set[int] = set()
        read: set[int] = set()
        dropped = set(indices)
        for index, entry in enumerate(self.entries):
            if entry is None:
                continue
            if index in dropped or not (entry.results or entry.writes) or not gone.isdisjoint(entry.reads):
                gone.update(entry.results)
                self.entries[index] = None
            else:
                read.update(entry.reads)
        gone.discard(-1)
        while self.entries and self.entries[-1] is None:
            self.entries.pop()
        self.held = {value: held for value, held in self.held.items() if value in read}
        self.groups = {value: group for value, group in self.groups.items() if value not in gone}

    @property
    def is_empty(self) -> bool:
        """Whether the tape has no entries."""
        return not self.entries


class Computation:
    """A function of leaves and constants, executed from a tape.

    `leaves` are the tensors that require a gradient, each once.
    """

    def __init__(self, tape: Tape, roots: Sequence[Source], indices: list[int], values: set[int]) -> None:
        self.roots = roots
        self.indices = indices
        self._tape = tape
        self._entries: list[Entry] = [entry for index in indices if (entry := tape.entries[index]) is not None]
        self._held = {value: tape.held[value] for value in values if value in tape.held}
        written = {group for entry in self._entries for group in entry.writes}
        self._owned = {value for value in self._held if tape.groups[value] in written}
        self._filled = {tape.groups[value] for value in self._owned}
        self._last_use: dict[int, int] = {}
        for position, entry in enumerate(self._entries):
            for value in (*entry.reads, *entry.results):
                self._last_use[value] = position

    @property
    def entries(self) -> Sequence[Entry]:
        """The operations, in their order."""
        return self._entries

    def part(self, function: CustomFunction) -> Computation:
        """Return the operations of a call of a custom function. Its `free` values are those from outside."""
        indices = [
            index for index, entry in zip(self.indices, self._entries, strict=True) if entry.function is function
        ]
        values = {value for entry in self._entries if entry.function is function for value in entry.reads}
        return Computation(self._tape, list(function.outputs.values()), indices, values)

    def _read_before_write(self, entry: Entry) -> Collection[int]:
        """Return the values that an operation reads from memory which another one may fill later: autograd saves them.
        A view stays one, because the program may write to it."""
        groups = self._filled.difference(entry.writes)
        values = {value for value in entry.reads if self._tape.groups[value] in groups}
        return () if values and returns_view(entry.op) else values

    @property
    def free(self) -> set[int]:
        """The numbers of values that the operations take, and that are neither held nor results of them."""
        results = {value for entry in self._entries for value in entry.results}
        return {value for entry in self._entries for value in entry.reads} - results - self._held.keys()

    def group_of(self, value: int) -> int:
        """Return the group of values that share memory with this value."""
        return self._tape.groups[value]

    def numbers_of(self, tensors: Iterable[torch.Tensor]) -> set[int]:
        """Return the numbers of the values that these leaves or constants have."""
        chosen = {id(tensor) for tensor in tensors}
        return {value for value, held in self._held.items() if id(held.tensor) in chosen}

    @property
    def leaves(self) -> list[torch.Tensor]:
        """The tensors that require a gradient, each once."""
        tensors = {id(held.tensor): held.tensor for held in self._held.values() if held.leaf}
        return list(tensors.values())

    def execute(
        self,
        replacements: Iterable[tuple[torch.Tensor, torch.Tensor]] = (),
        dtype: torch.dtype | None = None,
        *,
        shifts: Iterable[tuple[torch.Tensor, torch.Tensor]] = (),
        values: Mapping[int, torch.Tensor] | None = None,
        keep: Collection[int] = (),
        differentiable: bool = False,
    ) -> Execution:
        """Execute the operations; return the values of the roots, and of the values in `keep`.

        `replacements` are pairs of a leaf or constant and its value, `shifts` of one and what is added to its value.
        (A leaf may have several values, where the program changed it between two uses.) `values` are values by number,
        see `part`. With a `dtype`, all
        floating-point numbers have this type, and complex ones the corresponding type. `differentiable` records
        gradients, for replacements and shifts that require them.

        Raises CannotExecute. Known limitations: a replaced constant changes nothing that the program computed from
        the constant alone. An operation without a kernel for `dtype` is executed in its own type.
        """
        execution = Execution(replacements, shifts, dtype)
        execution.values.update(values or {})
        with hidden_from_modes(), torch._C._DisableAutocast(), torch.set_grad_enabled(differentiable):
            kept = {source.value for source in self.roots if not isinstance(source, Missing)}.union(keep)
            for value in (kept & self._held.keys()) - execution.values.keys():
                execution.load(value, self._held[value], copy=value in self._owned)
            for position, entry in enumerate(self._entries):
                for value in entry.reads:
                    if value not in execution.values and value in self._held:
                        execution.load(value, self._held[value], copy=value in self._owned)
                execution.run(entry, self._read_before_write(entry) if differentiable and self._filled else ())
                for value in (*entry.reads, *entry.results):
                    if self._last_use[value] == position and value not in kept:
                        execution.values.pop(value, None)
            execution.roots = [execution.value_of(root) for root in self.roots]
        return execution


_COMPLEX = {torch.float64: torch.complex128, torch.float32: torch.complex64}


class Execution:
    """The values of an execution, by number, and those of its roots."""

    def __init__(
        self,
        replacements: Iterable[tuple[torch.Tensor, torch.Tensor]],
        shifts: Iterable[tuple[torch.Tensor, torch.Tensor]],
        dtype: torch.dtype | None,
    ) -> None:
        self.values: dict[int, torch.Tensor] = {}
        self.roots: list[torch.Tensor] = []
        self.own_type: set[str] = set()
        """Operations that had no kernel for the requested dtype."""
        self._replacements = {id(tensor): value for tensor, value in replacements}
        self._shifts = {id(tensor): shift for tensor, shift in shifts}
        self._dtype = dtype

    def load(self, value: int, held: Held, *, copy: bool) -> None:
        """Load a leaf or a constant; a copy where an operation will write to it."""
        tensor = self._replacements.get(id(held.tensor))
        if tensor is None:
            tensor = held.current().detach()
        converted = self._convert(tensor)
        shift = self._shifts.get(id(held.tensor))
        if shift is not None:
            converted = converted + shift
        needs_copy = (copy or held.scratch) and (converted is tensor or converted.requires_grad)
        self.values[value] = converted.clone() if needs_copy else converted

    def value_of(self, source: Source) -> torch.Tensor:
        """Return the current value of a tensor."""
        if isinstance(source, Missing):
            raise CannotExecute(source.reason)
        tensor = self.values.get(source.value)
        if tensor is None:
            raise CannotExecute("a value that it uses is not available")
        return tensor if isinstance(source, Ref) else tensor.as_strided(source.size, source.stride, source.offset)

    def run(self, entry: Entry, copied: Collection[int] = ()) -> None:
        """Execute an entry, with copies of some values. Raises CannotExecute."""
        args = [self._argument(arg, copied) for arg in entry.args]
        kwargs = {name: self._argument(arg, copied) for name, arg in entry.kwargs.items()}
        try:
            output = self._in_dtype(entry, args, kwargs) if self._dtype is not None else entry.op(*args, **kwargs)
        except CannotExecute:
            raise
        except Exception as error:  # an operation that the program could execute: memory is short, say
            raise CannotExecute(f"{entry.op} raised {type(error).__name__}: {first_line(error)}") from error
        for value, tensor in zip(entry.results, flat_results(output), strict=True):
            if value >= 0 and tensor is not None:
                self.values[value] = tensor

    def _argument(self, arg: Any, copied: Collection[int]) -> Any:
        if isinstance(arg, Ref | StridedRef):
            value = self.value_of(arg)
            return value.clone() if arg.value in copied else value
        if isinstance(arg, tuple | list):
            return [self._argument(item, copied) for item in arg]
        if self._dtype is not None and isinstance(arg, torch.dtype):
            return self._converted_type(arg)
        return arg

    # -- in another dtype ------------------------------------------------------------------------------------------

    def _converted_type(self, dtype: torch.dtype) -> torch.dtype:
        if self._dtype is None:
            return dtype
        if dtype.is_complex:
            return _COMPLEX.get(self._dtype, dtype)
        return self._dtype if dtype.is_floating_point else dtype

    def _convert(self, tensor: torch.Tensor) -> torch.Tensor:
        dtype = self._converted_type(tensor.dtype)
        return tensor if tensor.dtype == dtype else tensor.to(dtype)

    def _in_dtype(self, entry: Entry, args: list[Any], kwargs: dict[str, Any]) -> Any:
        op = entry.op
        if op is torch.ops.aten.view.dtype:
            raise CannotExecute("it reads the bits of a tensor as another type")
        for position in _positions(op, "half_to_float"):
            args[position] = False
        try:
            return op(*args, **kwargs)
        except (RuntimeError, NotImplementedError):
            if entry.writes:
                raise
        substitute = _substitute(op)
        if substitute is not None:
            return substitute(*args, **kwargs)
        self.own_type.add(str(op))
        args = [_of_type(arg, source) for arg, source in zip(args, entry.args, strict=True)]
        kwargs = {name: _of_type(arg, entry.kwargs[name]) for name, arg in kwargs.items()}
        output = op(*args, **kwargs)
        if isinstance(output, torch.Tensor):
            return self._convert(output)
        return [self._convert(item) if isinstance(item, torch.Tensor) else item for item in output]


def _substitute(op: Callable[..., Any]) -> Callable[..., Any] | None:
    """Return a function of other operations that computes the same as `op`."""
    from torch._decomp import decomposition_table  # imports symbolic shapes, which are slow to import

    table: Mapping[Any, Callable[..., Any]] = decomposition_table
    return fused_attention(op) or table.get(op)


def _of_type(arg: Any, source: Any) -> Any:
    """Return an argument in the type that it had in the program."""
    if isinstance(source, Ref | StridedRef):
        return arg.to(source.dtype)
    if isinstance(source, tuple | list):
        return [_of_type(item, own) for item, own in zip(arg, source, strict=True)]
    return source


def _positions(op: Any, name: str) -> Iterator[int]:
    schema = getattr(op, "_schema", None)
    for position, argument in enumerate(() if schema is None else schema.arguments):
        if argument.name == name:
            yield position


def flat_tensors(values: Any) -> list[torch.Tensor]:
    """Return the tensors in the arguments of an operation, in their order."""
    if isinstance(values, torch.Tensor):
        return [values]
    if isinstance(values, tuple | list):
        return [tensor for item in values for tensor in flat_tensors(item)]
    return []


def flat_results(output: Any) -> list[torch.Tensor | None]:
    """Return the tensors that an operation returned, in their order, and None for each result without a tensor."""
    if isinstance(output, tuple | list):
        return [tensor for item in output for tensor in flat_results(item)]
    return [output if isinstance(output, torch.Tensor) else None]


def first_line(error: Exception) -> str:
    """The first line of the message of an error, shortened."""
    return str(error).partition("\n")[0][:200]
