"""Inject a fault into a training, as defective hardware would, and remove all hooks afterwards.

Seed, step, name and occasion alone decide when the fault strikes, so the same training is hit in the same way again.
TrainCheck does not consume random numbers of the program.
"""

from __future__ import annotations

import functools
import os
import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch.utils._pytree import tree_map

from traincheck.errors import BadOption
from traincheck.sdc.autograd_edits import replace_in_graph, with_input_gradients
from traincheck.sdc.faults.bits import can_be_hit, corrupted
from traincheck.sdc.faults.fault import BACKWARD, COMMUNICATION, FORWARD, GRADIENT, OPTIMIZER, Fault
from traincheck.sources.tensors.reading import hidden_from_modes

COLLECTIVES = {
    "all_reduce": "tensor",
    "broadcast": "tensor",
    "reduce": "tensor",
    "recv": "tensor",
    "all_gather": "tensor_list",
    "all_gather_into_tensor": "output_tensor",
    "reduce_scatter": "output",
    "reduce_scatter_tensor": "output",
    "all_to_all": "output_tensor_list",
    "all_to_all_single": "output",
}
"""Functions of torch.distributed, each with the name of its first argument, into which it writes."""
GRADIENT_EXCHANGE = "gradients"
"""The name, among the collectives, of the gradient exchange inside DistributedDataParallel."""

KEPT = 10_000
"""Number of hits to store individually; all hits are counted."""


class Hit(NamedTuple):
    """One hit: training step, site, name of the target, and number of elements."""

    step: int
    site: str
    name: str
    elements: int


@dataclass
class Injected:
    """Counts the hits of a fault. `step` is the current training step: one more than the optimizer has made.

    `repetition` numbers the executions of a whole training. Each repetition is hit otherwise, but a lasting defect
    stays at its places.
    """

    fault: Fault
    repetition: int = 0
    step: int = 1
    times: int = 0
    hits: list[Hit] = field(default_factory=list)
    _occasions: Counter[tuple[int, str]] = field(default_factory=Counter, repr=False)

    def comes(self, name: str) -> random.Random | None:
        """Register an occasion; return the stream that selects elements, or None if the fault does not strike."""
        fault = self.fault
        if not fault.active(self.step, self.repetition):
            return None
        self._occasions[self.step, name] += 1
        draws = fault.draws(self.step, name, self._occasions[self.step, name], repetition=self.repetition)
        return draws if fault.strikes(draws) else None

    def struck(self, name: str, tensor: torch.Tensor, draws: random.Random) -> torch.Tensor:
        """Return the tensor after a hit."""
        fault = self.fault
        # Hardware faults are no operations, so no mode of the program or of a recording may see them.
        with hidden_from_modes():
            result, elements = corrupted(tensor, fault, draws, fault.draws("lasting", name))
        self.times += 1
        if len(self.hits) < KEPT:
            self.hits.append(Hit(self.step, fault.site, name, elements))
        return result

    def strike(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        """Register an occasion and return the tensor: unchanged if the fault does not strike."""
        draws = self.comes(name)
        return tensor if draws is None else self.struck(name, tensor, draws)

    def next_step(self) -> None:
        """Start the next training step. Called automatically if an optimizer was given."""
        self._occasions.clear()
        self.step += 1


@contextmanager
def inject(
    model: torch.nn.Module | None,
    optimizer: torch.optim.Optimizer | None,
    fault: Fault,
    rank: int | None = None,
    repetition: int = 0,
) -> Iterator[Injected]:
    """Inject `fault` while the block runs; yields an object that counts the hits.

    The optimizer counts the steps. It may be None: call `next_step` in that case. The model may be None for faults in
    communication. On ranks other than the fault's nothing happens; `rank` overrides the rank of torch.distributed.
    `repetition` is the number of earlier executions of this training on the same device; see `Injected`. Raises
    BadOption if the pattern matches nothing.

    Known limitations: a model that was compiled before (`torch.compile`) does not call hooks. Faults inside kernels and
    inside DistributedDataParallel's exchange are injected at their end, in the gradients before the step. A collective
    that is hit is waited for. Elements of fp8, integer and complex tensors are not hit.
    """
    injected = Injected(fault, repetition)
    if fault.rank is not None and fault.rank != (own_rank() if rank is None else rank):
        yield injected
        return
    with ExitStack() as undo:
        if fault.site == COMMUNICATION:
            _in_communication(model, optimizer, injected, undo)
        elif model is not None:
            named = _SITES[fault.site](model, optimizer, injected, undo)
            if not named:
                pairs = model.named_parameters() if fault.of_parameters else model.named_modules()
                raise none_matches(fault, [name for name, _ in pairs if name])
        if optimizer is not None:
            undo.callback(optimizer.register_step_post_hook(lambda *_: injected.next_step()).remove)
        yield injected


def own_rank() -> int:
    """Return the rank in torch.distributed, or the launcher's rank, or 0."""
    if dist.is_available() and dist.is_initialized():
        return int(dist.get_rank())
    text = os.environ.get("RANK", "0")
    return int(text) if text.isdigit() else 0


def _modules(model: torch.nn.Module, fault: Fault) -> dict[str, torch.nn.Module]:
    """Return the modules that match the pattern, by name; the root module is named by its class."""
    modules = {name or type(module).__name__: module for name, module in model.named_modules()}
    matches = functools.partial(fnmatchcase, pat=fault.pattern)
    return {name: module for name, module in modules.items() if matches(name) or matches(type(module).__name__)}


def _parameters(model: torch.nn.Module, fault: Fault) -> dict[str, torch.nn.Parameter]:
    return {name: parameter for name, parameter in model.named_parameters() if fnmatchcase(name, fault.pattern)}


def none_matches(fault: Fault, names: Sequence[str]) -> BadOption:
    """Return the error for a pattern that matches none of these modules or parameters."""
    some = ", ".join([*names[:6], *(["..."] if len(names) > 6 else [])])
    of = "parameter" if fault.of_parameters else "module"
    return BadOption("pattern of a fault", fault.pattern, f"one that matches a {of} of the model ({some})")


def _in_forward(model: torch.nn.Module, _: object, injected: Injected, undo: ExitStack) -> int:
    def hook(name: str, _module: Any, _args: Any, output: Any) -> Any:
        def changed(value: Any) -> Any:
            if not can_be_hit(value):
                return value
            struck = injected.strike(name, value)
            return value if struck is value else replace_in_graph(value, struck)

        return tree_map(changed, output)

    return _hooked(
        model, injected.fault, undo, lambda module, name: module.register_forward_hook(functools.partial(hook, name))
    )


def _hooked(model: torch.nn.Module, fault: Fault, undo: ExitStack, hook: Callable[[torch.nn.Module, str], Any]) -> int:
    modules = _modules(model, fault)
    for name, module in modules.items():
        undo.callback(hook(module, name).remove)
    return len(modules)


def _in_backward(model: torch.nn.Module, _: object, injected: Injected, undo: ExitStack) -> int:
    live = [True]
    undo.callback(live.clear)  # hooks of tensors stay as long as their graph does

    def pre_hook(name: str, _module: Any, args: Any, kwargs: Any) -> Any:
        # Drawn before the call: views regroup the sums of gradients, so only a call that is hit is given some.
        draws = injected.comes(name)
        if draws is None:
            return None

        def seen(_number: int, gradient: torch.Tensor) -> torch.Tensor | None:
            return injected.struck(name, gradient, draws) if live and can_be_hit(gradient) else None

        return with_input_gradients(args, kwargs, seen)

    def hook(module: torch.nn.Module, name: str) -> Any:
        return module.register_forward_pre_hook(functools.partial(pre_hook, name), with_kwargs=True)

    return _hooked(model, injected.fault, undo, hook)


def _in_gradients(model: torch.nn.Module, _: object, injected: Injected, undo: ExitStack) -> int:
    def hook(name: str, gradient: torch.Tensor) -> torch.Tensor | None:
        return injected.strike(name, gradient) if can_be_hit(gradient) else None

    parameters = _parameters(model, injected.fault)
    for name, parameter in parameters.items():
        if parameter.requires_grad:
            undo.callback(parameter.register_hook(functools.partial(hook, name)).remove)
    return len(parameters)


def _in_optimizer(model: torch.nn.Module, optimizer: Any, injected: Injected, undo: ExitStack) -> int:
    if optimizer is None:
        raise BadOption("site of a fault", OPTIMIZER, "an optimizer in addition, because the fault hits its steps")
    parameters = _parameters(model, injected.fault)

    def hook(*_: object) -> None:
        for name, parameter in parameters.items():
            _write(injected, name, parameter)

    undo.callback(optimizer.register_step_post_hook(hook).remove)
    return len(parameters)


def _write(injected: Injected, name: str, tensor: torch.Tensor) -> None:
    """Apply the fault to a tensor in memory."""
    if can_be_hit(tensor):
        struck = injected.strike(name, tensor)
        if struck is not tensor:
            with hidden_from_modes():
                tensor.detach().copy_(struck)


_SITES: dict[str, Callable[[torch.nn.Module, Any, Injected, ExitStack], int]] = {
    FORWARD: _in_forward,
    BACKWARD: _in_backward,
    GRADIENT: _in_gradients,
    OPTIMIZER: _in_optimizer,
}


def _in_communication(
    model: torch.nn.Module | None, optimizer: torch.optim.Optimizer | None, injected: Injected, undo: ExitStack
) -> None:
    """Patch the functions of torch.distributed; for DistributedDataParallel, hit the gradients before the step."""
    named = [name for name in (*COLLECTIVES, GRADIENT_EXCHANGE) if fnmatchcase(name, injected.fault.pattern)]
    if not named:
        supported = ", ".join((*COLLECTIVES, GRADIENT_EXCHANGE))
        raise BadOption("pattern of a fault", injected.fault.pattern, f"one that matches some of {supported}")
    for name in named:
        if name in COLLECTIVES and hasattr(dist, name):
            _wrap_collective(name, injected, undo)
    exchanged = isinstance(model, torch.nn.parallel.DistributedDataParallel)
    if exchanged and GRADIENT_EXCHANGE in named and optimizer is not None and model is not None:
        parameters = dict(model.named_parameters())

        def hook(*_: object) -> None:
            for name, parameter in parameters.items():
                if parameter.grad is not None:
                    _write(injected, name, parameter.grad)

        undo.callback(optimizer.register_step_pre_hook(hook).remove)


def _wrap_collective(name: str, injected: Injected, undo: ExitStack) -> None:
    original = getattr(dist, name)

    @functools.wraps(original)
    def struck(*args: Any, **kwargs: Any) -> Any:
        work = original(*args, **kwargs)
        if work is not None and hasattr(work, "wait"):
            work.wait()
        written = args[0] if args else kwargs[COLLECTIVES[name]]
        for tensor in written if isinstance(written, (list, tuple)) else [written]:
            _write(injected, name, tensor)
        return work

    setattr(dist, name, struck)
    undo.callback(setattr, dist, name, original)
