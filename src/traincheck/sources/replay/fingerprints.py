"""Fingerprints the results of an executed call or update, so that two executions can be compared."""

from __future__ import annotations

import weakref
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

import torch

from traincheck.sources.recording.patches import TensorReference
from traincheck.sources.tensors.deferred_values import fetch_values
from traincheck.sources.tensors.reading import Fingerprint, deferred_fingerprints, hidden_from_modes, same_bits
from traincheck.vocab.replayed_computations import BACKWARD, FORWARD, UPDATE


class CannotReplay(Exception):
    """A call or update cannot be executed again; the message is the reason."""


class Fingerprints:
    """The bits of tensors by name, in order.

    A tensor is either fingerprinted (on an accelerator, fetched in one transfer at the comparison), or held where
    comparing all bits is cheaper.
    """

    def __init__(self) -> None:
        self._tensors: dict[str, torch.Tensor] = {}
        self._prints: dict[str, Fingerprint] = {}
        self._last: tuple[weakref.ref[torch.Tensor], int, str] | None = None
        """The last tensor added, by weak reference: autograd copies gradients that others hold."""

    def __bool__(self) -> bool:
        return bool(self._prints)

    def add(self, name: str, tensor: torch.Tensor) -> None:
        """Fingerprint a tensor as it is now; a repeated name gets a number."""
        key = self._unique_name(name)
        version = -1 if tensor.is_inference() else tensor._version
        if self._last is not None and self._last[0]() is tensor and self._last[1] == version >= 0:
            last = self._last[2]  # a container returns the output of its last module
            self._prints[key] = self._prints[last]
            return
        self._last = TensorReference(tensor), version, key
        with hidden_from_modes():
            (self._prints[key],) = deferred_fingerprints([tensor])

    def hold(self, name: str, tensor: torch.Tensor) -> None:
        """Hold a tensor that nobody writes to before the comparison."""
        name = self._unique_name(name)
        self._prints[name] = None
        self._tensors[name] = tensor

    def _unique_name(self, name: str) -> str:
        count, key = 1, name
        while key in self._prints:
            count += 1
            key = f"{name} (call {count})"
        return key

    def update(self, prints: Mapping[str, int | None]) -> None:
        """Add fingerprints taken elsewhere."""
        self._prints.update(prints)

    def resolve(self, but: Collection[str] = ()) -> dict[str, int | None]:
        """Return the fingerprints, without the names in `but`."""
        names = [name for name in self._prints if name not in but]
        held = [name for name in names if name in self._tensors and self._prints[name] is None]
        with hidden_from_modes():
            self._prints.update(zip(held, deferred_fingerprints([self._tensors[name] for name in held]), strict=True))
            resolved = dict(zip(names, fetch_values([self._prints[name] for name in names]), strict=True))
        self._prints.update(resolved)
        return resolved

    def first_mismatch(self, other: Fingerprints) -> str | None:
        """Return the first name whose bits differ, among names in both."""
        held = self._tensors.keys() & other._tensors.keys()
        mine, theirs = self.resolve(but=held), other.resolve(but=held)
        with hidden_from_modes():
            for name in self._prints:
                if name in held:
                    if not same_bits(self._tensors[name], other._tensors[name]):
                        return name
                elif name in theirs and mine[name] != theirs[name]:
                    return name
        return None


class ExecutionResult:
    """The results of an execution: module outputs in the forward, parameters in the backward and in the update."""

    def __init__(self) -> None:
        self.results, self.gradients, self.updates = Fingerprints(), Fingerprints(), Fingerprints()

    @classmethod
    def from_prints(cls, results: Mapping[str, int | None], gradients: Mapping[str, int | None]) -> ExecutionResult:
        """Build the result of an execution in another process from its fingerprints."""
        result = cls()
        result.results.update(results)
        result.gradients.update(gradients)
        return result

    def prints(self) -> dict[str, dict[str, int | None]]:
        """Return the fingerprints for another process, as arguments of `from_prints`."""
        return {"results": self.results.resolve(), "gradients": self.gradients.resolve()}

    def first_difference(self, other: ExecutionResult) -> tuple[str, str] | None:
        """Return the first part in which two executions differ, and the name; None where they are equal."""
        for part, mine, theirs in (
            (FORWARD, self.results, other.results),
            (BACKWARD, self.gradients, other.gradients),
            (UPDATE, self.updates, other.updates),
        ):
            mismatch = mine.first_mismatch(theirs)
            if mismatch is not None:
                return part, mismatch
        return None


class PeerCall(NamedTuple):
    """A call sent to another rank: its inputs, and fingerprints of its results.

    It holds only tensors, texts, numbers and containers of these.
    """

    arguments: Any
    streams: dict[str, torch.Tensor]
    buffers: list[torch.Tensor]
    result_grads: dict[int, torch.Tensor]
    one_backward: bool
    parameters: list[int | None]
    results: dict[str, int | None]
    gradients: dict[str, int | None]

    def executed(self) -> ExecutionResult:
        """Return the results of the rank that sent it."""
        return ExecutionResult.from_prints(self.results, self.gradients)
