"""Finds state of a model that its own calls change and that its state dict leaves out.

Note [Only what calls change]
A program that resumes builds the model again, with the first values of its attributes and non-persistent buffers. What
the training loop sets (a temperature of the epoch, say), the resumed loop sets again. What calls of the model change
(averages, counters) is lost, unless it is saved elsewhere. State that has the size of a batch belongs to the batch, as
the hidden state of a recurrent model does.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import nn

from traincheck.sources.modules.live_modules import plain_name
from traincheck.sources.replay.state_snapshot import MODULE_INTERNALS
from traincheck.sources.tensors.reading import is_copyable

MAX_BYTES = 64 << 20
"""Bytes of first values that are kept; state beyond it is not judged."""

MAX_ENTRIES = 64
"""Entries of a list or dict; longer ones are logs."""

_NUMBERS = (bool, int, float, type(None))
MISSING = object()
"""The value of an attribute that does not exist."""


class Place(NamedTuple):
    """Where a model keeps something: in an attribute of a module, or in a buffer that its state dict leaves out."""

    module: str
    attribute: str
    is_buffer: bool

    @property
    def name(self) -> str:
        """The name in the model."""
        return ".".join(filter(None, (plain_name(self.module), self.attribute)))


class UnsavedState:
    """The first values of unsaved state of a model, and which of it calls of the model have changed since.

    Create it before the first call. It does not keep the model alive. Call under `hidden_from_modes`.
    """

    def __init__(self, model: nn.Module) -> None:
        self._first: dict[Place, Any] = {}
        self._changed: set[Place] = set()
        self._marks: dict[Place, Any] = {}
        left = MAX_BYTES
        for place, value in _unsaved(model):
            left -= _size(value)
            if left < 0:
                break
            self._first[place] = _copied(value)
        self._is_complete = left >= 0

    def call_begins(self, model: nn.Module) -> None:
        """Note the state at the beginning of a call."""
        self._marks = {place: _mark(value) for place, value in _unsaved(model)}

    def call_ends(self, model: nn.Module) -> None:
        """Note what the call has changed."""
        self._changed.update(
            place for place, value in _unsaved(model) if self._marks.get(place, MISSING) != _mark(value)
        )
        self._marks = {}

    def lost(self, model: nn.Module, saved: Any, batch: int) -> list[Place]:
        """Return what calls have changed and neither `saved` holds nor belongs to a batch of this size."""
        leaves = list(_leaves(saved))
        return [
            place
            for place, value in _unsaved(model)
            if place in self._changed
            and (self._is_complete or place in self._first)
            and not _belongs_to_batch(value, batch)
            and not _is_among(value, leaves)
        ]

    def first_value(self, place: Place) -> Any:
        """Return a copy of the first value, `MISSING` if there was none."""
        return _copied(self._first.get(place, MISSING))


def _unsaved(model: nn.Module) -> Iterator[tuple[Place, Any]]:
    """Yield numbers and tensors that a state dict leaves out, with their places."""
    for name, module in model.named_modules():
        if type(module).get_extra_state is not nn.Module.get_extra_state:
            continue  # it saves what it wants
        for attribute, value in vars(module).items():
            if attribute not in MODULE_INTERNALS and attribute != "training" and _is_plain(value):
                yield Place(name, attribute, is_buffer=False), value
        for attribute in sorted(module._non_persistent_buffers_set):
            value = module._buffers.get(attribute)
            if _is_plain(value):
                yield Place(name, attribute, is_buffer=True), value


def _is_plain(value: Any) -> bool:
    """Whether a value consists of numbers and tensors."""
    if isinstance(value, torch.Tensor):
        return not isinstance(value, nn.Parameter) and is_copyable(value)
    if isinstance(value, (list, tuple, deque)):
        return type(value) in (list, tuple, deque) and len(value) <= MAX_ENTRIES and all(map(_is_plain, value))
    if isinstance(value, dict):
        return type(value) is dict and len(value) <= MAX_ENTRIES and all(map(_is_plain, value.values()))
    return isinstance(value, _NUMBERS)


def _copied(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    if isinstance(value, (list, tuple, deque)):
        return type(value)(map(_copied, value))
    if isinstance(value, dict):
        return {key: _copied(entry) for key, entry in value.items()}
    return value


def _mark(value: Any) -> Any:
    """A value that is another one after a change."""
    if isinstance(value, torch.Tensor):
        return id(value), -1 if value.is_inference() else value._version
    if isinstance(value, (list, tuple, deque)):
        return [_mark(entry) for entry in value]
    if isinstance(value, dict):
        return {key: _mark(entry) for key, entry in value.items()}
    return repr(value)  # NaN equals itself


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, Mapping):
        for entry in value.values():
            yield from _leaves(entry)
    elif isinstance(value, (list, tuple, deque, set)):
        for entry in value:
            yield from _leaves(entry)
    elif isinstance(value, (torch.Tensor, *_NUMBERS)):
        yield value


def _size(value: Any) -> int:
    return sum(leaf.nbytes for leaf in _leaves(value) if isinstance(leaf, torch.Tensor))


def _belongs_to_batch(value: Any, batch: int) -> bool:
    return any(isinstance(leaf, torch.Tensor) and batch in leaf.shape for leaf in _leaves(value))


def _is_among(value: Any, saved: list[Any]) -> bool:
    """Whether each tensor and number of a value is saved."""

    def equal(mine: Any, theirs: Any) -> bool:
        if isinstance(mine, torch.Tensor) and isinstance(theirs, torch.Tensor):
            return mine.shape == theirs.shape and bool(torch.equal(mine.detach().cpu(), theirs.detach().cpu()))
        return type(mine) is type(theirs) and not isinstance(mine, torch.Tensor) and mine == theirs

    leaves = [leaf for leaf in _leaves(value) if leaf is not None]
    return bool(leaves) and all(any(equal(leaf, other) for other in saved) for leaf in leaves)
