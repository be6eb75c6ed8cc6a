"""Saves the state of a training (parameters, gradients, buffers, optimizer, random streams), and restores it.

Objects keep their identity: TrainCheck writes saved values back into the same tensors, dicts and lists.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from traincheck.sources.replay.state_snapshot import AttributeSnapshot, RandomStates

Restore = Callable[[], Any]
"""Returns a saved object, after its contents were restored."""


class TrainingState:
    """The state of a model and its optimizer at the time of construction, with that of all random streams.

    Known limitations: of other objects that the optimizer holds, only tensors, dicts and lists are saved.
    """

    def __init__(self, model: nn.Module, optimizer: Optimizer) -> None:
        self._random = RandomStates()
        self._modules = list(model.modules())
        self._attributes = AttributeSnapshot(self._modules)
        self._memo: dict[int, Restore] = {}
        kept = [(module._parameters, module._buffers) for module in self._modules]
        self._restore = [self._saved(held) for tables in kept for held in tables]
        self._restore.append(self._saved(vars(optimizer)))

    def restore(self) -> None:
        """Restore the state. May be called several times."""
        for restore in self._restore:
            restore()
        self._attributes.restore()
        self._random.restore()

    def _saved(self, held: Any) -> Restore:
        """Save `held` once, however often the state refers to it."""
        if id(held) in self._memo:
            return self._memo[id(held)]
        if isinstance(held, torch.Tensor):
            self._memo[id(held)] = self._saved_tensor(held)
        elif isinstance(held, (dict, list)):
            self._memo[id(held)] = lambda: held  # a cycle leads back here
            self._memo[id(held)] = self._saved_dict(held) if isinstance(held, dict) else self._saved_list(held)
        else:
            return lambda: held
        return self._memo[id(held)]

    def _saved_tensor(self, tensor: torch.Tensor) -> Restore:
        value = tensor.detach().clone()
        is_written = not _overlaps_itself(tensor)  # otherwise the program cannot write to it, either
        is_leaf = tensor.is_leaf
        gradient = tensor.grad if is_leaf else None
        restore_gradient = None if gradient is None else self._saved(gradient)

        def restore() -> torch.Tensor:
            if is_written:
                with torch.no_grad():
                    tensor.copy_(value)
            if is_leaf:
                tensor.grad = restore_gradient() if restore_gradient is not None else None
            return tensor

        return restore

    def _saved_dict(self, held: dict[Any, Any]) -> Restore:
        entries = [(key, self._saved(key), self._saved(value)) for key, value in held.items()]

        def restore() -> dict[Any, Any]:
            restored = {}
            for key, restore_key, restore_value in entries:
                restore_key()
                restored[key] = restore_value()
            held.clear()
            held.update(restored)
            return held

        return restore

    def _saved_list(self, held: list[Any]) -> Restore:
        entries = [self._saved(value) for value in held]

        def restore() -> list[Any]:
            held[:] = [restore_value() for restore_value in entries]
            return held

        return restore


def _overlaps_itself(tensor: torch.Tensor) -> bool:
    """Whether several elements share memory, as after `expand`."""
    if tensor.layout is not torch.strided:
        return False
    return any(size > 1 and stride == 0 for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
