"""Execute a workload and record the fingerprint of every result, operation by operation.

Note [Operations and modules]
Each operation that torch dispatches is an entry, so that a difference is reported at the first operation that has it.
Views compute nothing, and allocations return old memory contents: both are skipped. The output of a module is an entry
of its own, because a value can change between two operations (an injected fault does that). An operation in the
backward belongs to the module whose forward created its graph node: torch numbers nodes in order of creation. Recording
does not change the bits of the training.

Without `operations`, the entries are the outputs of modules and the gradients of their inputs. For these gradients each
module call receives its own views, which changes the order in which gradients are summed. The results repeat exactly
between recorded runs, but can differ from those of an unrecorded run.
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
"""Prefixes of the names of operations that only allocate memory."""
RESERVES = "_"
"""Prefix of the names of internal operations. After their result they return buffers for the backward, which may be
only partly filled."""


class _Nodes:
    """Maps graph nodes to the modules that created them, by node number."""

    def __init__(self) -> None:
        self._begins: list[int] = [0]
        self._modules: list[str] = [""]
        # Neither is public: without them, operations in the backward are recorded without their module.
        self._next = getattr(torch._C._autograd, "_get_sequence_nr", None)
        self._running = getattr(torch._C, "_current_autograd_node", None)

    def now(self, module: str) -> None:
        """Assign the nodes that are created from now on to `module`."""
        if self._next is not None:
            self._begins.append(self._next())
            self._modules.append(module)

    def module(self) -> str:
        """Return the module of the graph node that is being executed."""
        node = self._running() if self._running is not None else None
        if node is None:
            return ""
        number = node._sequence_nr()
        # Those that gather gradients of parameters have the highest number there is, and are of no module.
        return self._modules[bisect_right(self._begins, number) - 1] if number < 2**63 else ""

    def clear(self) -> None:
        self._begins, self._modules = [0], [""]


class Recorder(TorchDispatchMode):  # type: ignore[misc]
    """Passes an `Entry` for each result to `emit` while the context is active."""

    def __init__(self, emit: Callable[[Entry], object], operations: bool = True) -> None:
        super().__init__()
        self.step, self.direction = 0, BUILD
        self._emit, self._operations = emit, operations
        self._open: list[str] = []
        self._nodes = _Nodes()

    def stage(self, direction: str, step: int | None = None) -> None:
        """Set the direction, and the step, of the results that follow."""
        self.direction = direction
        self.step = self.step if step is None else step
        if direction == FORWARD:
            self._nodes.clear()

    def add(self, module: str, operation: str, values: Iterable[Any]) -> None:
        """Emit an entry with the fingerprint of these values."""
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
        """Track the running module; record the outputs of modules and the gradients of their inputs."""
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
    """Return the values that an operation computed: its results, or the tensors that it wrote in place."""
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
    """Train for `steps` steps and emit all results; without `operations`, only those of modules.

    `prepared` is called with model and optimizer before the first step; its result is closed after the last one.
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
    """Record a training whose operations are not visible: outputs of submodules, gradients and parameters."""
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
