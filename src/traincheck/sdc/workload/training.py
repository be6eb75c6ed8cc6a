"""Define the training that a study executes on a worker, in parts between which the study compares values.

Values are torch tensors on any device. The study receives them through a function (`Seen`). A tensor that the function
returns replaces the value; None keeps it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any, Protocol

import torch
from torch.utils._pytree import tree_map

from traincheck.sdc.autograd_edits import replace_in_graph, with_input_gradients
from traincheck.sdc.faults.fault import BACKWARD, FORWARD, Fault
from traincheck.sdc.faults.inject import Injected, inject
from traincheck.sdc.workload.workload import Workload, evaluation, submodules_of

Seen = Callable[[str, torch.Tensor], torch.Tensor | None]
"""Receives the name of a value and the value."""
SeenInside = Callable[[str, str, torch.Tensor], torch.Tensor | None]
"""Receives the name of a submodule, the direction (output, or gradient of the input) and the value."""


class Training(Protocol):
    """A training at its start; every training of a workload starts equally."""

    @property
    def kinds(self) -> Mapping[str, str]:
        """The compared submodules by name, each with its kind."""

    def faulty(self, faults: Sequence[Fault], rank: int | None = None) -> AbstractContextManager[list[Injected]]:
        """Inject these faults in the block. Raises BadOption if a pattern matches nothing.

        `rank` overrides the rank of torch.distributed, which faults can be limited to.
        """

    def watched(self, seen: SeenInside) -> AbstractContextManager[None]:
        """Pass the results of each submodule to `seen` in the block, after faults were applied."""

    def batch(self, step: int) -> Any:
        """Return the batch of a training step, counted from 1."""

    def forward(self, batch: Any) -> torch.Tensor:
        """Return the loss."""

    def backward(self) -> None:
        """Compute the gradients of the last loss."""

    def gradients(self, seen: Seen) -> None:
        """Pass each parameter's gradient to `seen`, if it has one."""

    def update(self) -> None:
        """Take an optimizer step."""

    def parameters(self) -> Iterable[tuple[str, torch.Tensor]]:
        """Yield each parameter with its name."""

    def state(self, seen: Seen) -> None:
        """Pass all state that the next step depends on to `seen`: parameters, buffers and optimizer state."""

    def evaluate(self) -> float:
        """Return the quality of the parameters; lower is better."""


class TorchTraining:
    """A workload that torch executes, module by module."""

    def __init__(self, workload: Workload) -> None:
        self._workload = workload
        self._model = workload.build_model()
        self._optimizer = workload.build_optimizer(self._model)
        self._loss: torch.Tensor | None = None

    @functools.cached_property
    def kinds(self) -> Mapping[str, str]:
        return submodules_of(self._workload, self._model)

    @contextmanager
    def faulty(self, faults: Sequence[Fault], rank: int | None = None) -> Iterator[list[Injected]]:
        with ExitStack() as stack:
            yield [stack.enter_context(inject(self._model, self._optimizer, fault, rank)) for fault in faults]

    @contextmanager
    def watched(self, seen: SeenInside) -> Iterator[None]:
        # After the hooks of faults on the way forward, and before them: back, they are called the other way round.
        with ExitStack() as undo:
            for name in self.kinds:
                module = self._model.get_submodule(name)
                pre, post = functools.partial(_enter, seen, name), functools.partial(_leave, seen, name)
                undo.callback(module.register_forward_pre_hook(pre, prepend=True, with_kwargs=True).remove)
                undo.callback(module.register_forward_hook(post).remove)
            yield

    def batch(self, step: int) -> Any:
        return self._workload.batch(step)

    def forward(self, batch: Any) -> torch.Tensor:
        self._optimizer.zero_grad()
        self._loss = self._workload.loss(self._model, batch)
        return self._loss

    def backward(self) -> None:
        assert self._loss is not None, "backward comes after forward"
        self._loss.backward()
        self._loss = None

    def gradients(self, seen: Seen) -> None:
        for name, parameter in self._model.named_parameters():
            if parameter.grad is not None:
                _overwrite(parameter.grad, seen(name, parameter.grad))

    def update(self) -> None:
        self._optimizer.step()

    def parameters(self) -> Iterable[tuple[str, torch.Tensor]]:
        named: Iterable[tuple[str, torch.Tensor]] = self._model.named_parameters()
        return named

    def state(self, seen: Seen) -> None:
        for name, value in {**dict(self._model.named_parameters()), **dict(self._model.named_buffers())}.items():
            _overwrite(value, seen(name, value))
        for number, parameter in enumerate(
            tensor for group in self._optimizer.param_groups for tensor in group["params"]
        ):
            kept = self._optimizer.state.get(parameter, {})
            for name in sorted(kept):
                if isinstance(kept[name], torch.Tensor):
                    _overwrite(kept[name], seen(f"{name} of parameter {number}", kept[name]))

    def evaluate(self) -> float:
        return evaluation(self._workload, self._model)


def _overwrite(tensor: torch.Tensor, other: torch.Tensor | None) -> None:
    if other is not None:
        with torch.no_grad():
            tensor.copy_(other)


def _enter(seen: SeenInside, name: str, _module: Any, args: Any, kwargs: Any) -> Any:
    def seen_back(_number: int, gradient: torch.Tensor) -> torch.Tensor | None:
        other = seen(name, BACKWARD, gradient)
        return None if other is None else other.to(gradient.device)

    return with_input_gradients(args, kwargs, seen_back)


def _leave(seen: SeenInside, name: str, _module: Any, _args: Any, output: Any) -> Any:
    def left(value: Any) -> Any:
        other = seen(name, FORWARD, value) if isinstance(value, torch.Tensor) else None
        return value if other is None else replace_in_graph(value, other.to(value.device))

    return tree_map(left, output)
