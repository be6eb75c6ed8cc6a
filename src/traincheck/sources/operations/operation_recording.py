"""Records the operations of one step, with sketches of what they take and return.

Note [Forward and backward]
A dispatch mode sees the operations of the forward. Under a mode, torch would choose other formulas for a backward, so
there the mode is off, and hooks on the nodes of the graph see the gradients that each node gets and returns. A node has
the number of its forward operation, and with it the module and the line. (Operations without a node have the number of
the last node. So only the first operation with a number counts, and what runs without gradients behind it.) A call of
`torch.autograd.grad` is one operation.

Note [Values]
A value is what a tensor holds at one time. A tensor that an operation writes gets a new value. Tensors that show the
same elements in another form (`t`, `view`, `expand`) have one value. What comes from before the recording is a value of
the phase *before*: a parameter, a buffer or an input.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import nn
from torch._C._functorch import is_functorch_wrapped_tensor
from torch.multiprocessing.reductions import StorageWeakRef

from traincheck.sources.modules.variables import VariableCatalog
from traincheck.sources.operations.sketches import sketches
from traincheck.sources.recording.dispatch_recording import DispatchRecording
from traincheck.sources.tensors.reading import PLAIN, dtype_name, hidden_from_modes
from traincheck.sources.tensors.storages import version_of
from traincheck.vocab.operations import (
    BACKWARD,
    BEFORE,
    BUFFER,
    FORWARD,
    INPUT,
    PARAMETER,
    SUM,
    Operation,
    Sketch,
    StepOperations,
)

MAX_OPERATIONS = 50_000
MAX_SETTINGS = 120
"""Characters of the settings of an operation."""

UNINITIALIZED = ("empty", "new_empty", "set_", "resize_")
"""Begins of names of operations that return memory as it is: its values mean nothing until something is written."""

SCRATCH = "uint8"
"""The type of the scratch memory that a kernel returns next to its results for its backward. Parts of it are unused."""

_RANDOM = torch.Tag.nondeterministic_seeded
_LEAF = "torch::autograd::AccumulateGrad"
_PLAIN = (bool, int, float, str, complex, torch.dtype, torch.layout, torch.memory_format)


class _Known(NamedTuple):
    """The value of a tensor, or of some elements of a memory. `weak` keeps the key from being used again.

    `versions` are those that it may have: torch counts a write after the operation.
    """

    value: int
    versions: tuple[int | None, ...]
    weak: Any

    def is_of(self, tensor: torch.Tensor) -> bool:
        """Whether the tensor, which has the key of this entry, has the value still."""
        return not self.weak.expired() and version_of(tensor) in self.versions


class _Kind(NamedTuple):
    """What is known about an operation of torch by its schema."""

    name: str
    random: bool
    writes: tuple[int, ...]  # positions of arguments
    is_view: bool


class Variable(NamedTuple):
    """A tensor with a name, the settings with which it is updated, and the values from which it comes."""

    name: str
    tensor: torch.Tensor
    settings: str = ""
    inputs: tuple[int, ...] = ()


class OperationRecording(DispatchRecording):
    """Records one step of the thread that makes it. `incomplete` is why operations are missing."""

    def __init__(self, step: int, catalog: VariableCatalog, site: Callable[[], str]) -> None:
        super().__init__()
        self.step = step
        self.incomplete = ""
        self._catalog, self._site = catalog, site
        self._process, self._thread = os.getpid(), threading.get_ident()
        self._modules: list[nn.Module] = []
        self._values: list[Sketch] = []
        self._operations: list[Operation] = []
        self._known: dict[int, _Known] = {}  # by tensor
        self._memory: dict[tuple[Any, ...], _Known] = {}  # by the elements
        self._kinds: dict[Any, _Kind] = {}
        self._by_sequence: dict[int, list[Operation]] = {}
        self._inputs = 0
        self._hooks: list[Any] = []
        self._arrived: dict[int, list[int]] = {}  # by leaf: the gradients that the backward gave it

    @property
    def is_of_this_thread(self) -> bool:
        """Whether this thread is the one that is recorded."""
        return threading.get_ident() == self._thread and os.getpid() == self._process

    def finish(self) -> StepOperations:
        """End the recording, and return what it has."""
        self.turn_off()
        self.remove_hooks()
        return StepOperations(self.step, tuple(self._values), tuple(self._operations), self.incomplete)

    # -- on and off ------------------------------------------------------------------------------------------------

    def _is_over(self) -> bool:
        return len(self._operations) >= MAX_OPERATIONS

    def _collides(self, reason: str) -> None:
        self._miss(reason)

    def remove_hooks(self) -> None:
        """Remove the hooks on nodes of the graph."""
        while self._hooks:
            self._hooks.pop().remove()

    def _miss(self, reason: str) -> None:
        self.incomplete = self.incomplete or reason

    # -- forward ---------------------------------------------------------------------------------------------------

    def call_begins(self, module: nn.Module) -> None:
        """Note the begin of a call of a module."""
        self._modules.append(module)

    def call_ends(self, module: nn.Module) -> None:
        """Note the end of a call, and of the calls inside it that were interrupted."""
        if module in self._modules:
            while self._modules.pop() is not module:
                pass

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        sequence, grad = torch.autograd._get_sequence_nr() - 1, torch.is_grad_enabled()
        inputs = self._guarded(self._take_inputs, func, args, kwargs)
        result = func(*args, **kwargs)
        if inputs is not None:
            self._guarded(self._add_forward, func, args, kwargs, result, inputs, sequence, grad)
        return result

    def _guarded(self, function: Callable[..., Any], *args: Any) -> Any:
        if self.incomplete and len(self._operations) >= MAX_OPERATIONS:
            return None
        try:
            with hidden_from_modes():
                return function(*args)
        except Exception as error:
            self._miss(f"the recording raised {type(error).__name__}: {error}")
        return None

    def _take_inputs(self, func: Any, args: Any, kwargs: Any) -> tuple[int, ...] | None:
        if not self.is_of_this_thread:
            self._miss("another thread computed a part of it")
            return None
        if len(self._operations) >= MAX_OPERATIONS:
            self._miss(f"it has more than {MAX_OPERATIONS:,} operations")
            return None
        kind = self._kinds.get(func)
        if kind is None:
            kind = self._kinds[func] = _kind(func)
        return tuple(self._values_of(_tensors((args, kwargs))))

    def _add_forward(
        self, func: Any, args: Any, kwargs: Any, result: Any, inputs: tuple[int, ...], sequence: int, grad: bool
    ) -> None:
        kind = self._kinds[func]
        written = [tensor for position in kind.writes for tensor in _tensors(args[position : position + 1])]
        results = [tensor for tensor in _tensors(result) if written or not self._is_view(tensor)]
        outputs = list({id(tensor): tensor for tensor in (*results, *written)}.values())
        if not outputs:
            return
        settings = _settings((*args, *kwargs.values()))
        unset = kind.name.startswith(UNINITIALIZED) or (
            kind.is_view and bool(inputs) and all(map(self._is_unset, inputs))
        )
        place = self._module(), self._site()
        self._add(FORWARD, kind.name, *place, settings, inputs, outputs, kind.random, bool(written), unset)
        if sequence not in self._by_sequence or not grad:  # the forward of a custom function
            self._by_sequence.setdefault(sequence, []).append(self._operations[-1])

    def _add(
        self,
        phase: str,
        name: str,
        module: str,
        site: str,
        settings: str,
        inputs: Sequence[int],
        outputs: Sequence[torch.Tensor],
        random: bool = False,
        writes: bool = False,
        meaningless: bool = False,
    ) -> tuple[int, ...]:
        numbers = []
        made = sketches(outputs)
        scratch = any(sketch.dtype.startswith("float") for sketch in made)
        for tensor, sketch in zip(outputs, made, strict=True):
            numbers.append(len(self._values))
            unused = meaningless or (scratch and sketch.dtype == SCRATCH)
            self._values.append(Sketch(sketch.dtype, sketch.shape) if unused else sketch)
            self._remember(tensor, numbers[-1], writes)
        self._operations.append(Operation(phase, name, module, site, settings, tuple(inputs), tuple(numbers), random))
        return tuple(numbers)

    def _remember(self, tensor: torch.Tensor, value: int, writes: bool) -> None:
        version = version_of(tensor)
        versions = (version, version + 1) if writes and version is not None else (version,)
        self._known[tensor._cdata] = _Known(value, versions, torch._C._WeakTensorRef(tensor))
        elements = _elements(tensor)
        if elements:
            self._memory[elements] = _Known(value, versions, StorageWeakRef(_local(tensor).untyped_storage()))

    def _find(self, tensor: torch.Tensor) -> int | None:
        """The number of the value of a tensor, if it is known."""
        for known in (self._known.get(tensor._cdata), self._memory.get(_elements(tensor))):
            if known is not None and known.is_of(tensor):
                return known.value
        return None

    def _is_view(self, result: torch.Tensor) -> bool:
        """Whether a result shows the elements of an argument (torch counts its versions later)."""
        known = self._memory.get(_elements(result))
        return known is not None and not known.weak.expired()

    def _is_unset(self, value: int) -> bool:
        """Whether a value is memory that nothing was written to."""
        sketch = self._values[value]
        return sketch.size > 0 and not sketch.packed_projections

    def _values_of(self, tensors: Iterable[torch.Tensor]) -> Iterator[int]:
        """The number of the value of each tensor; a new one of the phase *before* if it is not known."""
        for tensor in tensors:
            number = self._find(tensor)
            if number is not None:
                yield number
            else:
                yield from self._add_before(tensor)

    def _add_before(self, tensor: torch.Tensor) -> tuple[int, ...]:
        variable = self._catalog.find(tensor)
        if variable is not None:
            kind = PARAMETER if isinstance(tensor, nn.Parameter) or tensor.requires_grad else BUFFER
            return self._add(BEFORE, kind, variable.name, "", "", (), [tensor])
        self._inputs += 1
        return self._add(BEFORE, INPUT, f"input {self._inputs}", self._site(), dtype_name(tensor.dtype), (), [tensor])

    # -- backward, gradients and updates ---------------------------------------------------------------------------

    def backward_begins(self, roots: Sequence[torch.Tensor]) -> None:
        """Follow the gradients through the graph of these losses."""
        seen: set[Any] = set()
        waiting = [root.grad_fn for root in roots if root.grad_fn is not None]
        while waiting:
            node = waiting.pop()
            if node in seen or len(seen) > MAX_OPERATIONS:
                continue
            seen.add(node)
            waiting += [following for following, _ in node.next_functions if following is not None]
            if node.name() != _LEAF:
                self._hooks.append(node.register_hook(self._node_hook(node)))

    def arrived(self, leaf: torch.Tensor) -> tuple[int, ...]:
        """The gradients that backwards gave a leaf in this step."""
        return tuple(self._arrived.get(id(leaf), ()))

    def _node_hook(self, node: Any) -> Callable[..., None]:
        name, sequence = node.name(), node._sequence_nr()
        leaves = {
            index: id(following.variable)
            for index, (following, _) in enumerate(node.next_functions)
            if following is not None and following.name() == _LEAF
        }
        forward = self._by_sequence.get(sequence, [])

        def on_backward(returned: Sequence[torch.Tensor | None], got: Sequence[torch.Tensor | None]) -> None:
            self._guarded(self._add_backward, name, forward, returned, got)
            self._guarded(self._note_leaves, leaves, returned)

        return on_backward

    def _add_backward(self, name: str, forward: Sequence[Operation], returned: Any, got: Any) -> None:
        """Add what a node computes from gradients, and from what its forward operations took and returned."""
        inputs = self._values_of_gradients(_tensors(got))
        inputs += [value for operation in forward for value in (*operation.inputs, *operation.outputs)]
        outputs = [tensor for tensor in _tensors(returned) if self._find(tensor) is None]
        if outputs:  # else it only passes gradients on
            module, site = (forward[-1].module, forward[-1].site) if forward else ("", "")
            self._add(BACKWARD, name, module, site, "", inputs, outputs)

    def _note_leaves(self, leaves: dict[int, int], returned: Sequence[torch.Tensor | None]) -> None:
        for index, leaf in leaves.items():
            gradient = returned[index]
            number = None if gradient is None else self._find(gradient)
            if number is not None:
                self._arrived.setdefault(leaf, []).append(number)

    def _values_of_gradients(self, tensors: Iterable[torch.Tensor]) -> list[int]:
        """The values of gradients. Autograd adds up gradients where they meet, so the sum is a value of its own."""
        values: list[int] = []
        for tensor in tensors:
            number = self._find(tensor)
            values += self._add(BACKWARD, SUM, "", "", "", (), [tensor]) if number is None else (number,)
        return values

    def add_call(self, name: str, arguments: Any, result: Any) -> None:
        """Add a call whose operations are not recorded, as one operation."""
        with hidden_from_modes():
            outputs = list(_tensors(result))
            if outputs:
                inputs = list(self._values_of(_tensors(arguments)))
                self._add(FORWARD, name, self._module(), self._site(), "", inputs, outputs)

    def _module(self) -> str:
        """The name of the innermost module under way."""
        return self._catalog.module_name(self._modules[-1]) if self._modules else ""

    def add_variables(self, phase: str, name: str, variables: Sequence[Variable]) -> None:
        """Add the values of variables in a phase: their gradients, or what an update of this name wrote."""
        with hidden_from_modes():
            values = sketches([variable.tensor for variable in variables])
        for variable, sketch in zip(variables, values, strict=True):
            self._remember(variable.tensor, len(self._values), False)
            self._values.append(sketch)
            outputs = (len(self._values) - 1,)
            self._operations.append(
                Operation(phase, name, variable.name, "", variable.settings, variable.inputs, outputs)
            )


def _kind(func: Any) -> _Kind:
    schema = func._schema
    writes = tuple(
        position
        for position, argument in enumerate(schema.arguments)
        if argument.alias_info is not None and argument.alias_info.is_write
    )
    is_view = not writes and any(each.alias_info is not None for each in schema.returns)
    return _Kind(schema.name.partition("::")[2], _RANDOM in func.tags, writes, is_view)


def _local(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor whose memory is shown: of a DTensor, the part of this rank."""
    return tensor if type(tensor) in PLAIN else getattr(tensor, "_local_tensor", tensor)


def _elements(tensor: torch.Tensor) -> tuple[Any, ...]:
    """Which elements of which memory a tensor shows, in whatever order; empty if that is not known."""
    tensor = _local(tensor)
    if type(tensor) not in PLAIN or tensor.layout is not torch.strided or is_functorch_wrapped_tensor(tensor):
        return ()
    dims: list[list[int]] = []
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True), reverse=True):
        if size == 1 or stride == 0:
            continue
        if dims and dims[-1][0] == stride * size:
            dims[-1] = [stride, dims[-1][1] * size]
        else:
            dims.append([stride, size])
    layout = tuple(number for dim in dims for number in dim)
    return (tensor.untyped_storage()._cdata, tensor.storage_offset(), tensor.dtype, *layout)


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    """The tensors in arguments or results, in their order."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, tuple | list):
        for item in value:
            yield from _tensors(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from _tensors(item)


def _settings(arguments: Sequence[Any]) -> str:
    """The arguments that are no tensors, as text."""
    plain = [value for value in arguments if value is None or isinstance(value, _PLAIN) or _is_plain_list(value)]
    while plain and plain[-1] is None:
        plain.pop()
    text = ", ".join(str(value).removeprefix("torch.") for value in plain)
    return text if len(text) <= MAX_SETTINGS else text[: MAX_SETTINGS - 3] + "..."


def _is_plain_list(value: Any) -> bool:
    return isinstance(value, tuple | list) and all(isinstance(item, _PLAIN) for item in value)
