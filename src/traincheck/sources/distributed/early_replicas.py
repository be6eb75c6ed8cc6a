"""Reads parameters before and after their first change, and first gradients, so that ranks of one model compare them.

relations/consistent/ranks/one_model.py compares them. A reading has the fingerprint of the parameter before the first
update that finds it changed: the rate may be zero at first. Its context has the fingerprint before the first update
(`first`), the norm of the first gradient, and whether the parameter began with different elements (`random`). It also
has the loss of the first backward of the rank, if that was called on one (a stage of a pipeline may have none).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from traincheck.sources.gradients.gradients import Gradients, Held
from traincheck.sources.recording.recorder import Recorder
from traincheck.sources.tensors.deferred_values import DeferredValue, is_on_host
from traincheck.sources.tensors.device_transfers import NextSeq
from traincheck.sources.tensors.reading import PLAIN, Fingerprint
from traincheck.vocab.builtin_rules import PARAMETER, REPLICA
from traincheck.vocab.events import Reading
from traincheck.vocab.facts import facts, merged

SOURCE = "optimizers"

MAX_UPDATES = 16
"""First updates that are looked at: a program has few optimizers."""


class _First(NamedTuple):
    """A parameter before its first update."""

    value: int
    norm: float
    is_random: bool


class EarlyReplicas:
    """Follows each variable from its first update with a finite gradient until it has changed."""

    def __init__(self, recorder: Recorder, gradients: Gradients) -> None:
        self._recorder = recorder
        self._gradients = gradients
        self._updates = 0
        self._first: dict[str, _First] = {}
        self._done: set[str] = set()

    @property
    def is_over(self) -> bool:
        """Whether the first updates are over."""
        return self._updates >= MAX_UPDATES

    def step_begins(self, held: Sequence[Held], data: Sequence[Fingerprint], call: int) -> None:
        """Read the variables of an optimizer, whose fingerprints are `data`. Call under `hidden_from_modes`."""
        self._updates += 1
        if self._updates > MAX_UPDATES:
            return
        trained = [
            (variable.name, tensor, value)
            for (variable, tensor), value in zip(held, data, strict=True)
            if value is not None and variable.name not in self._done and _is_plain(tensor)
        ]
        self._read_changed([(name, value) for name, _, value in trained if name in self._first], call)
        self._read_first([(name, tensor, value) for name, tensor, value in trained if name not in self._first])

    def _read_first(self, trained: Sequence[tuple[str, torch.Tensor, Fingerprint]]) -> None:
        if not trained:
            return
        count, values = len(trained), [value for _, _, value in trained]
        norms = [_number(torch.linalg.vector_norm(tensor.grad, dtype=torch.float32)) for _, tensor, _ in trained]
        spreads = [_number((tensor.detach().max() - tensor.detach().min()).float()) for _, tensor, _ in trained]

        def conclude(resolved: list[Any], _: NextSeq) -> None:
            names = [name for name, _, _ in trained]
            read = zip(names, resolved[:count], resolved[count:-count], resolved[-count:], strict=True)
            for name, value, norm, spread in read:
                if value is not None and math.isfinite(norm) and math.isfinite(spread):
                    self._first[name] = _First(value, norm, spread > 0)

        self._recorder.transfers.when_ready(SOURCE, [*values, *norms, *spreads], conclude, events=0)

    def _read_changed(self, followed: Sequence[tuple[str, Fingerprint]], call: int) -> None:
        names = [name for name, _ in followed]

        def conclude(resolved: list[Any], next_seq: NextSeq) -> None:
            *values, loss = resolved
            of_rank = facts(loss=loss) if loss is not None else ()
            for name, value in zip(names, values, strict=True):
                first = self._first[name]
                if value != first.value and name not in self._done:
                    self._done.add(name)
                    context = merged(of_rank, first=first.value, norm=first.norm, random=first.is_random)
                    self._recorder.record_reading(
                        Reading(next_seq(), call, name, PARAMETER, REPLICA, value, context=context)
                    )

        if names:
            read = [*(value for _, value in followed), self._gradients.first_loss]
            self._recorder.transfers.when_ready(SOURCE, read, conclude, events=len(names))


def loss_of_rank(loss: Any) -> float | DeferredValue | None:
    """The value of a loss, perhaps pending, if it is precise enough to be the same on two ranks only where they compute
    one model.

    Call under `hidden_from_modes`.
    """
    if type(loss) is not torch.Tensor or loss.numel() != 1 or loss.dtype not in (torch.float32, torch.float64):
        return None
    value = loss.detach().reshape(())
    numbers = value, value.bfloat16().to(loss.dtype)
    return _precise(*map(float, numbers)) if is_on_host(value) else DeferredValue(numbers, _precise)


def _precise(value: float, rounded: float) -> float | None:
    return value if value != rounded and math.isfinite(value) else None


def _is_plain(tensor: torch.Tensor) -> bool:
    gradient = tensor.grad
    return (
        type(tensor) in PLAIN
        and type(gradient) in PLAIN
        and tensor.numel() > 1
        and tensor.is_floating_point()
        and gradient.layout is torch.strided
    )


def _number(value: torch.Tensor) -> float | DeferredValue:
    return float(value) if is_on_host(value) else DeferredValue((value,), float)
