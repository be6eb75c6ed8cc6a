"""Recording: executes a workload and tells the fingerprint of all that it computes, operation by operation, in order.

Note [Operations and modules]
Every operation that torch dispatches is an entry, so that a difference is named by the first one that has it. Views
compute nothing, and what is only allocated holds what was there before: both are left out. What a module returns is an
entry of its own: a value may go astray between two operations, where a fault is injected, say. The module of an
operation in the backward is that in whose forward its node was made: nodes are numbered in the order in which they are
made. The training computes the same bits as it does unrecorded.

Where operations are not asked for, what each module returns is an entry, and the gradients of what it was given. For
these each call of a module is given views of its own, by which sums of gradients are grouped otherwise than in an
unrecorded training: the same each time, but not the same as there.
"""

from __future__ import annotations

import functools
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
import xxhash
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from traincheck.sdc.autograd_edits import with_input_gradients
from traincheck.sdc.fingerprint_log import BACKWARD, BATCH, BUILD, FORWARD, OPTIMIZER, Entry
from traincheck.sdc.workload.training import Training
from traincheck.sdc.workload.workload import Workload
from traincheck.sources.tensors.reading import fingerprints, hidden_from_modes

ALLOCATES = ("empty", "new_empty", "resize")
"""How the names of operations begin that only get memory."""
RESERVES = "_"
"""How the names of internal operations begin; besides their result they return what is kept for the backward, not all
of which is always filled."""


class _Nodes:
    """Which module made the nodes of the graph, by their numbers."""

    def __init__(self) -> None:
        self._begins: list[int] = [0]
        self._modules: list[str] = [""]
        # Neither is public: without them operations in the backward are told without their module.
        self._next = getattr(torch._C._autograd, "_get_sequence_nr", None)
        self._running = getattr(torch._C, "_current_autograd_node", None)

    def now(self, module: str) -> None:
        """From here on nodes are made by this module."""
        if self._next is not None:
            self._begins.append(self._next())
            self._modules.append(module)

    def module(self) -> str:
        """That of the node that is running."""
        node = self._running() if self._running is not None else None
        if node is None:
            return ""
        number = node._sequence_nr()
        # Those that gather gradients of parameters have the highest number there is, and are of no module.
        return self._modules[bisect_right(self._begins, number) - 1] if number < 2**63 else ""

    def clear(self) -> None:
        self._begins, self._modules = [0], [""]


class Recorder(TorchDispatchMode):  # type: ignore[misc]
    """Hands an `Entry` of all that is computed while it is entered to `emit`."""

    def __init__(self, emit: Callable[[Entry], object], operations: bool = True) -> None:
        super().__init__()
        self.step, self.direction = 0, BUILD
        self._emit, self._operations = emit, operations
        self._open: list[str] = []
        self._nodes = _Nodes()

    def stage(self, direction: str, step: int | None = None) -> None:
        """What is computed from here on."""
        self.direction = direction
        self.step = self.step if step is None else step
        if direction == FORWARD:
            self._nodes.clear()

    def add(self, module: str, operation: str, values: Iterable[Any]) -> None:
        """An entry of these values."""
        self._emit(Entry(self.step, self.direction, module, operation, _fingerprint(values)))

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if self._operations:
            values = _computed(func, args, kwargs, result)
            if values:
                module = self._nodes.module() if self.direction == BACKWARD else self._open[-1] if self._open else ""
                self.add(module, f"aten.{func.overloadpacket.__name__}", values)
        return result

    @contextmanager
    def modules(self, model: torch.nn.Module) -> Iterator[None]:
        """Know which module is running, and record what each returns and the gradients of what it was given."""
        with ExitStack() as undo:
            live = [True]
            undo.callback(live.clear)
            for name, module in model.named_modules():
                label = name or type(model).__name__
                pre, post = functools.partial(self._enter, live, label), functools.partial(self._leave, label)
                # Before other hooks: the gradient comes here last, as it is after all of them.
                undo.callback(module.register_forward_pre_hook(pre, prepend=True, with_kwargs=True).remove)
                undo.callback(module.register_forward_hook(post).remove)
            yield

    def _enter(self, live: list[bool], name: str, _module: Any, args: Any, kwargs: Any) -> Any:
        def seen(number: int, gradient: torch.Tensor) -> None:
            if live:
                self.add(name, f"gradient of input {number}", [gradient])

        self._open.append(name)
        self._nodes.now(name)
        return None if self._operations else with_input_gradients(args, kwargs, seen)

    def _leave(self, name: str, _module: Any, _args: Any, output: Any) -> None:
        self.add(name, "output", _tensors(output))
        self._open.pop()
        self._nodes.now(self._open[-1] if self._open else "")


def _fingerprint(values: Iterable[Any]) -> str:
    values = list(values)
    with hidden_from_modes():
        digests = fingerprints([value for value in values if isinstance(value, torch.Tensor)])
    parts = [f"{print_ or 0:016x}" for print_ in digests]
    parts += [repr(value) for value in values if not isinstance(value, torch.Tensor)]
    return parts[0] if len(parts) == 1 else xxhash.xxh3_64_hexdigest("/".join(parts).encode())


def _tensors(value: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(value) if isinstance(leaf, torch.Tensor)]


def _computed(func: Any, args: Any, kwargs: Any, result: Any) -> list[Any]:
    """What an operation computed: what it returns, and what it wrote into."""
    name = func.overloadpacket.__name__
    if name.startswith(ALLOCATES) or getattr(func, "is_view", False):
        return []
    given = {**kwargs, **dict(zip((argument.name for argument in func._schema.arguments), args, strict=False))}
    computed = [
        leaf
        for argument in func._schema.arguments
        if argument.alias_info is not None and argument.alias_info.is_write
        for leaf in _tensors(given.get(argument.name))
    ]
    if not computed:
        returned = tree_leaves(result)
        reserves = name.startswith(RESERVES) and not name.endswith("backward")
        computed = [
            leaf for leaf in returned[: 1 if reserves else None] if isinstance(leaf, (torch.Tensor, float, int))
        ]
    return computed


def record(
    workload: Workload,
    steps: int,
    emit: Callable[[Entry], object],
    progress: Callable[[int], object] = lambda step: None,
    operations: bool = True,
    prepared: Callable[[torch.nn.Module, torch.optim.Optimizer], Any] | None = None,
) -> None:
    """Train for so many steps and hand all that is computed to `emit`; without `operations` only what modules say.

    `prepared` is called with model and optimizer before the first step, and what it returns is closed after the last.
    """
    recorder = Recorder(emit, operations)
    with ExitStack() as stack:
        stack.enter_context(recorder)
        model = workload.build_model()
        recorder.add("", "parameters", [value.detach() for value in model.state_dict().values()])
        optimizer = workload.build_optimizer(model)
        if prepared is not None:
            stack.enter_context(prepared(model, optimizer))
        stack.enter_context(recorder.modules(model))
        for step in range(1, steps + 1):
            _step(recorder, workload, model, optimizer, step)
            progress(step)


def _step(recorder: Recorder, workload: Workload, model: Any, optimizer: Any, step: int) -> None:
    named = list(model.named_parameters())
    recorder.stage(BATCH, step)
    batch = workload.batch(step)
    recorder.add(
        "", "batch", [leaf for leaf in tree_leaves(batch) if isinstance(leaf, (torch.Tensor, int, float, str))]
    )
    optimizer.zero_grad()
    recorder.stage(FORWARD)
    loss = workload.loss(model, batch)
    recorder.add("", "loss", [loss.detach()])
    recorder.stage(BACKWARD)
    loss.backward()
    for name, parameter in named:
        if parameter.grad is not None:
            recorder.add(name, "gradient", [parameter.grad])
    recorder.stage(OPTIMIZER)
    optimizer.step()
    for name, parameter in named:
        recorder.add(name, "parameter", [parameter.detach()])


def record_submodules(
    training: Training,
    steps: int,
    emit: Callable[[Entry], object],
    progress: Callable[[int], object] = lambda step: None,
) -> None:
    """The same of a training that no operation can be seen of: what its submodules compute, gradients, parameters."""
    step, direction = 0, BUILD

    def emit_entry(module: str, operation: str, *values: Any) -> None:
        emit(Entry(step, direction, module, operation, _fingerprint(values)))

    def seen(module: str, way: str, value: torch.Tensor) -> None:
        emit_entry(module, "output" if way == FORWARD else "gradient of input 0", value)

    emit_entry("", "parameters", *(value.detach() for _, value in training.parameters()))
    with training.watched(seen):
        for step in range(1, steps + 1):
            direction = BATCH
            batch = training.batch(step)
            emit_entry("", "batch", *_tensors(batch))
            direction = FORWARD
            emit_entry("", "loss", training.forward(batch).detach())
            direction = BACKWARD
            training.backward()
            training.gradients(lambda name, value: emit_entry(name, "gradient", value))
            direction = OPTIMIZER
            training.update()
            for name, parameter in training.parameters():
                emit_entry(name, "parameter", parameter.detach())
            progress(step)
