"""Describes what a model is called with: names, dtypes, numbers of dimensions, and the range of the values.

Sizes are left out, because another batch size or width must not change a line. Of the values, only their range counts:
`0 to 1`, `-1 to 1`, `no negative` or `any`, or that all elements are equal or some are not finite. It tells pixels that
were not scaled, inputs that were not normalised, and an input that is constant.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import torch

from traincheck.sources.recording.recorder import Recorder
from traincheck.sources.tensors.call_summaries import MAX_NESTED_TENSORS
from traincheck.sources.tensors.deferred_values import DeferredValue, is_on_host
from traincheck.sources.tensors.device_transfers import NextSeq
from traincheck.sources.tensors.reading import form_of, hidden_from_modes
from traincheck.sources.tensors.value_facts import readable_memory
from traincheck.vocab.demand import BATCH, FORM, WITH_GRADIENTS, WITHOUT_GRADIENTS
from traincheck.vocab.events import Reading
from traincheck.vocab.facts import facts

SOURCE = "modules"

OFTEN, SELDOM = 5, 25
"""The first calls of a model are described, then one in `SELDOM`."""
MIN_ELEMENTS = 8
"""The range of fewer elements is chance."""

_CONTEXT = facts(kind=BATCH)
_RANGES = ((0.0, 1.0, "0 to 1"), (-1.0, 1.0, "-1 to 1"), (0.0, math.inf, "no negative"), (-math.inf, math.inf, "any"))


class BatchForms:
    """Takes a reading for each model and form of its input that is new."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._calls: dict[tuple[str, bool], int] = {}
        self.forget_reported()

    def forget_reported(self) -> None:
        """Report forms again that were reported before."""
        self._reported: set[tuple[str, bool, tuple[str, ...]]] = set()

    def should_read(self, model: str, *, learns: bool) -> bool:
        """Whether to describe this call of the model. `learns`: gradients are on."""
        if torch.jit.is_tracing():
            return False
        number = self._calls[model, learns] = self._calls.get((model, learns), 0) + 1
        return number <= OFTEN or number % SELDOM == 0

    def read(
        self,
        call: int,
        model: str,
        args: Sequence[Any],
        keywords: Mapping[str, Any],
        *,
        learns: bool,
    ) -> None:
        """Describe what the model gets in `call`."""
        with hidden_from_modes():
            tensors = list(_named_tensors(args, keywords))
            ranges = [_range_of(tensor) for _, tensor in tensors]
            begins = [f"{name} is {form_of(tensor)}" for name, tensor in tensors]

            def conclude(fetched: list[str], next_seq: NextSeq) -> None:
                described = {f"{begin}, {span}" if span else begin for begin, span in zip(begins, fetched, strict=True)}
                lines = tuple(sorted(described))
                key = model, learns, lines
                if lines and key not in self._reported:
                    self._reported.add(key)
                    text = "\n".join((WITH_GRADIENTS if learns else WITHOUT_GRADIENTS, *lines))
                    reading = Reading(next_seq(), call, model, BATCH, FORM, text, context=_CONTEXT)
                    self._recorder.record_reading(reading)

            self._recorder.transfers.when_ready(SOURCE, ranges, conclude, events=1)


def _named_tensors(args: Sequence[Any], keywords: Mapping[str, Any]) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors of a call with their names, including those in a list, a tuple or a dict."""
    named = [(f"input {position}", value) for position, value in enumerate(args, 1)]
    for name, value in (*named, *keywords.items()):
        if isinstance(value, torch.Tensor):
            yield name, value
        elif isinstance(value, (list, tuple)):
            items = islice(value, MAX_NESTED_TENSORS)
            yield from ((f"{name}[*]", item) for item in items if isinstance(item, torch.Tensor))
        elif isinstance(value, Mapping):
            entries = islice(value.items(), MAX_NESTED_TENSORS)
            yield from ((f"{name}[{key}]", item) for key, item in entries if isinstance(item, torch.Tensor))


def _range_of(tensor: torch.Tensor) -> str | DeferredValue:
    """The range of the values in words, perhaps deferred; empty if it says nothing."""
    memory = readable_memory(tensor)
    if memory is None or memory.numel() < MIN_ELEMENTS or memory.dtype is torch.bool or memory.is_complex():
        return ""
    if memory.is_floating_point() and memory.element_size() < 2:
        return ""
    ends = memory.aminmax()
    if is_on_host(memory):
        return _in_words(ends.min.item(), ends.max.item())
    return DeferredValue((ends.min, ends.max), _in_words)


def _in_words(low: float, high: float) -> str:
    if not (math.isfinite(low) and math.isfinite(high)):
        return "not finite"
    if low == high:
        return "all equal"
    return next(words for least, most, words in _RANGES if least <= low and high <= most)
