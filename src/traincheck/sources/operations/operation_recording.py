"""Records the operations of one step, with sketches of what they take and return.

Note [Forward and backward]
A dispatch mode sees the operations of the forward. Under a mode, torch would choose other formulas for a backward, so
there the mode is off, and hooks on the nodes of the graph see the gradients that each node gets and returns. A node has
the number of its forward operation, and with it the module and the line. (Operations without a node have the number of
the last node. So only the first operation with a number counts, and what runs without gradients behind it.) A call of
`torch.autograd.grad` is one operation.

Between the backward and the end of the step, the mode is on again, but for the update itself: it sees clipping,
unscaling, and averages of parameters.

Note [State]
What comes from before the recording is a value of the phase *before*: a parameter, a buffer or an input. The gradients
of parameters are values after each backward and again before the update, so that a wrong sum or reduction is no
difference of the backward. At the end of the step, the parameters and buffers that no update wrote have a value.
"""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import msgspec
import torch
from torch import nn

from traincheck.sources.modules.variables import VariableCatalog
from traincheck.sources.operations.values import ValueTable
from traincheck.sources.operations.whole_values import WholeValues
from traincheck.sources.recording.dispatch_recording import DispatchRecording
from traincheck.sources.tensors.reading import PLAIN, dtype_name, hidden_from_modes
from traincheck.vocab.operations import (
    ACCUMULATED,
    AFTER,
    BACKWARD,
    BEFORE,
    BUFFER,
    FORWARD,
    GRADIENT,
    INPUT,
    PARAMETER,
    ROOTS,
    STATE,
    SUM,
    UPDATE,
    Operation,
    Sketch,
    StepOperations,
)

MAX_OPERATIONS = 50_000
MAX_SETTINGS = 120
"""Characters of the settings of an operation."""

UNINITIALIZED = ("empty", "new_empty", "set_", "resize_")
"""Begins of names of operations that return memory as it is: its values mean nothing until something is written."""

COLLECTIVES = "c10d"
"""Namespace of operations that communicate."""

SCRATCH = "uint8"
"""The type of the scratch memory that a kernel returns next to its results for its backward. Parts of it are unused."""

_RANDOM = torch.Tag.nondeterministic_seeded
_LEAF = "torch::autograd::AccumulateGrad"
_PLAIN = (bool, int, float, str, complex, torch.dtype, torch.layout, torch.memory_format)


class _Kind(NamedTuple):
    """What is known about an operation of torch by its schema."""

    name: str
    random: bool
    writes: tuple[int, ...]  # positions of arguments
    is_view: bool
    is_collective: bool


class Variable(NamedTuple):
    """A parameter that an optimizer holds, with its name and hyperparameters."""

    name: str
    tensor: torch.Tensor
    settings: str = ""


class OperationRecording(DispatchRecording):
    """Records one step of the thread that makes it. `incomplete` is why operations are missing.

    `site` returns the current line of the program. Nothing is recorded while `pauses` is true. `last` are sketches of
    the step before, and `whole_values` keeps all elements of some values.
    """

    def __init__(
        self,
        step: int,
        catalog: VariableCatalog,
        site: Callable[[], str],
        pauses: Callable[[], bool] = lambda: False,
        last: dict[int, Sketch] | None = None,
        whole_values: WholeValues | None = None,
    ) -> None:
        super().__init__()
        self.step = step
        self.incomplete = ""
        self._catalog, self._site, self._pauses, self._whole_values = catalog, site, pauses, whole_values
        self._process, self._thread = os.getpid(), threading.get_ident()
        self._modules: list[nn.Module] = []
        self._values = ValueTable({} if last is None else last)
        self._operations: list[Operation] = []
        self._by_sequence: dict[int, list[Operation]] = {}
        self._inputs = 0
        self._hooks: list[Any] = []
        self._arrived: dict[int, list[int]] = {}  # by leaf: the gradients that backwards gave it

    @property
    def is_of_this_thread(self) -> bool:
        """Whether this thread is the one that is recorded."""
        return threading.get_ident() == self._thread and os.getpid() == self._process

    @property
    def sketches(self) -> dict[int, Sketch]:
        """The sketches of this step, by fingerprint."""
        return self._values.by_fingerprint

    def finish(self) -> StepOperations:
        """End the recording, and return what it has."""
        self.turn_off()
        self.remove_hooks()
        self._guarded(self._add_state)
        return _without_idle_end(
            StepOperations(self.step, tuple(self._values.sketches), tuple(self._operations), self.incomplete)
        )

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
        if self.lingers or self._pauses():
            return func(*args, **kwargs)
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
        inputs = tuple(self._values_of(_tensors((args, kwargs))))
        if self._whole_values is not None:  # before the operation writes to them
            self._keep_whole(self._module(), _tensors((args, kwargs)), inputs)
        return inputs

    def _add_forward(
        self, func: Any, args: Any, kwargs: Any, result: Any, inputs: tuple[int, ...], sequence: int, grad: bool
    ) -> None:
        kind = _kind(func)
        if kind.is_collective:  # what it writes may arrive later
            self._values.forget(_tensors(args))
            return
        written = [tensor for position in kind.writes for tensor in _tensors(args[position : position + 1])]
        results = [tensor for tensor in _tensors(result) if written or not self._values.shows_known_elements(tensor)]
        outputs = list({id(tensor): tensor for tensor in (*results, *written)}.values())
        if not outputs:
            return
        settings = _settings((*args, *kwargs.values()))
        unset = kind.name.startswith(UNINITIALIZED) or (
            kind.is_view and bool(inputs) and all(map(self._values.is_unset, inputs))
        )
        values = self._values.add(outputs, written=bool(written))
        self._forget_meaningless(values, all_of_them=unset)
        module = self._module()
        self._keep_whole(module, outputs, values)
        self._add(FORWARD, kind.name, module, self._site(), settings, inputs, values, kind.random)
        if sequence not in self._by_sequence or not grad:  # the forward of a custom function
            self._by_sequence.setdefault(sequence, []).append(self._operations[-1])

    def _keep_whole(self, module: str, tensors: Iterable[torch.Tensor], values: Sequence[int]) -> None:
        """Keep all elements of these values, if they were requested for the module or variable."""
        whole = self._whole_values
        if whole is not None and whole.wants(self.step, module):
            whole.add(tensors, (self._values.sketches[value] for value in values))

    def _add(
        self,
        phase: str,
        name: str,
        module: str,
        site: str,
        settings: str,
        inputs: Sequence[int],
        values: Sequence[int],
        random: bool = False,
    ) -> None:
        self._operations.append(Operation(phase, name, module, site, settings, tuple(inputs), tuple(values), random))

    def _forget_meaningless(self, values: Sequence[int], *, all_of_them: bool) -> None:
        """Forget the sketches of memory that nothing was written to, and of scratch memory."""
        sketches = self._values.sketches
        has_floats = any(sketches[value].dtype.startswith("float") for value in values)
        for value in values:
            sketch = sketches[value]
            if all_of_them or (has_floats and sketch.dtype == SCRATCH):
                sketches[value] = Sketch(sketch.dtype, sketch.shape)

    def _values_of(self, tensors: Iterable[torch.Tensor]) -> Iterator[int]:
        """The number of the value of each tensor; a new one of the phase *before* if it is not known."""
        for tensor in tensors:
            number = self._values.find(tensor)
            if number is not None:
                yield number
            else:
                yield from self._add_before(tensor)

    def _add_before(self, tensor: torch.Tensor) -> tuple[int, ...]:
        values = self._values.add([tensor])
        variable = self._catalog.find(tensor)
        if variable is not None:
            self._keep_whole(variable.name, [tensor], values)
            self._add(BEFORE, PARAMETER, variable.name, "", "", (), values)
        elif id(tensor) in self._buffers:
            self._add(BEFORE, BUFFER, self._buffers[id(tensor)], "", "", (), values)
        else:
            self._inputs += 1
            self._add(BEFORE, INPUT, f"input {self._inputs}", self._site(), dtype_name(tensor.dtype), (), values)
        return values

    @functools.cached_property
    def _buffers(self) -> dict[int, str]:
        """The names of the buffers with which the step begins, by identity. Their modules hold them."""
        return {id(buffer): name for name, buffer in self._catalog.named_buffers()}

    # -- backward --------------------------------------------------------------------------------------------------

    def backward_begins(self, roots: Sequence[torch.Tensor]) -> None:
        """Follow the gradients through the graph of these losses."""
        self._guarded(self._add_roots, roots)
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

    def _add_roots(self, roots: Sequence[torch.Tensor]) -> None:
        self._add(BACKWARD, ROOTS, "", self._site(), "", tuple(self._values_of(roots)), ())

    def backward_ends(self) -> None:
        """Add the gradients that parameters have now."""
        self.remove_hooks()
        self._guarded(self._add_accumulated)

    def _add_accumulated(self) -> None:
        for variable, tensor in self._catalog.living():
            gradient = tensor.grad if tensor.is_leaf else None
            if gradient is not None and id(tensor) in self._arrived:
                arrived = self._arrived[id(tensor)]
                self._add(BACKWARD, ACCUMULATED, variable.name, "", "", arrived, self._values.add([gradient]))

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
        outputs = [tensor for tensor in _tensors(returned) if self._values.find(tensor) is None]
        if outputs:  # else it only passes gradients on
            module, site = (forward[-1].module, forward[-1].site) if forward else ("", "")
            values = self._values.add(outputs)
            taken = list(_tensors(got))
            self._keep_whole(module, (*taken, *outputs), (*inputs[: len(taken)], *values))
            self._add(BACKWARD, name, module, site, "", inputs, values)

    def _note_leaves(self, leaves: dict[int, int], returned: Sequence[torch.Tensor | None]) -> None:
        for index, leaf in leaves.items():
            gradient = returned[index]
            number = None if gradient is None else self._values.find(gradient)
            if gradient is not None and number is not None:
                if not self._values.has_form(number, gradient):  # the gradient of a view, such as `weight.t()`
                    (viewed,) = self._values.add([gradient])
                    self._add(BACKWARD, "view", "", "", "", (number,), (viewed,))
                    number = viewed
                self._arrived.setdefault(leaf, []).append(number)

    def _values_of_gradients(self, tensors: Iterable[torch.Tensor]) -> list[int]:
        """The values of gradients. Autograd adds up gradients where they meet, so the sum is a value of its own."""
        values: list[int] = []
        for tensor in tensors:
            number = self._values.find(tensor)
            if number is None:
                (number,) = self._values.add([tensor])
                self._add(BACKWARD, SUM, "", "", "", (), (number,))
            values.append(number)
        return values

    # -- after the backward ----------------------------------------------------------------------------------------

    def add_call(self, name: str, arguments: Any, result: Any) -> None:
        """Add a call whose operations are not recorded, as one operation."""
        self._guarded(self._add_call, name, arguments, result)

    def _add_call(self, name: str, arguments: Any, result: Any) -> None:
        outputs = list(_tensors(result))
        if outputs:
            inputs = list(self._values_of(_tensors(arguments)))
            self._add(FORWARD, name, self._module(), self._site(), "", inputs, self._values.add(outputs))

    def _module(self) -> str:
        """The name of the innermost module under way."""
        return self._catalog.module_name(self._modules[-1]) if self._modules else ""

    def add_gradients(self, held: Sequence[Variable]) -> None:
        """Add the gradients that an optimizer is about to use."""
        self._guarded(self._add_gradients, held)

    def _add_gradients(self, held: Sequence[Variable]) -> None:
        for variable in held:
            gradient = variable.tensor.grad
            if gradient is None:
                continue
            known = self._values.find(gradient)
            inputs = self._arrived.get(id(variable.tensor), ()) if known is None else (known,)
            values = self._values.add([gradient])
            self._keep_whole(variable.name, [gradient], values)
            self._add(GRADIENT, "gradient", variable.name, "", variable.settings, inputs, values)

    def add_update(self, name: str, held: Sequence[Variable]) -> None:
        """Add the parameters that an update of this name wrote."""
        self._guarded(self._add_update, name, held)

    def _add_update(self, name: str, held: Sequence[Variable]) -> None:
        values = self._values.add([variable.tensor for variable in held], written=True)
        for variable, value in zip(held, values, strict=True):
            self._keep_whole(variable.name, [variable.tensor], (value,))
            self._add(UPDATE, name, variable.name, "", variable.settings, (), (value,))

    def _add_state(self) -> None:
        """Add the parameters and buffers at the end of the step, but for those that are as an update wrote them."""
        last = {value: operation for operation in self._operations for value in operation.outputs}
        parameters = [(variable.name, tensor) for variable, tensor in self._catalog.living()]
        buffers = {id(tensor): (name, tensor) for name, tensor in self._catalog.named_buffers() if _has_memory(tensor)}
        for name, tensor in (*parameters, *buffers.values()):
            known = self._values.find(tensor)
            if known is None:
                self._add(AFTER, STATE, name, "", "", (), self._values.add([tensor]))
            elif last[known].phase != UPDATE:
                self._add(AFTER, STATE, name, "", "", (known,), ())


def _has_memory(tensor: torch.Tensor) -> bool:
    """Whether a buffer holds numbers. Exported graphs have buffers without, of symbolic sizes."""
    return type(tensor) in PLAIN or hasattr(tensor, "_local_tensor")


def _without_idle_end(step: StepOperations) -> StepOperations:
    """The step without operations behind the last update that write no parameter and no buffer.

    The program prepares its next batch there. What the next step takes is in the next recording.
    """
    operations = list(step.operations)
    last_update = max((index for index, each in enumerate(operations) if each.phase == UPDATE), default=len(operations))
    used: set[int] = set()
    kept: list[Operation] = []
    for index in reversed(range(len(operations))):
        operation = operations[index]
        if index <= last_update or operation.phase == AFTER or used.intersection(operation.outputs):
            kept.append(operation)
            used.update(operation.inputs, operation.outputs)
    kept.reverse()
    numbers = {old: new for new, old in enumerate(sorted(used))}
    renumbered = (
        msgspec.structs.replace(
            each,
            inputs=tuple(map(numbers.__getitem__, each.inputs)),
            outputs=tuple(map(numbers.__getitem__, each.outputs)),
        )
        for each in kept
    )
    return StepOperations(step.step, tuple(step.values[old] for old in numbers), tuple(renumbered), step.incomplete)


@functools.cache
def _kind(func: Any) -> _Kind:
    schema = func._schema
    writes = tuple(
        position
        for position, argument in enumerate(schema.arguments)
        if argument.alias_info is not None and argument.alias_info.is_write
    )
    is_view = not writes and any(each.alias_info is not None for each in schema.returns)
    namespace, _, name = schema.name.partition("::")
    return _Kind(name, _RANDOM in func.tags, writes, is_view, namespace == COLLECTIVES)


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
