"""Describes what a model is called with: names, dtypes, numbers of dimensions, and the range of the values.

Sizes are left out, because another batch size or width must not change a line. Of the values, only their range counts:
`0 to 1`, `no negative value` or `any value`, or that all elements are equal or some are not finite. It shows pixels
that were not scaled, inputs that were not normalised, and an input that is constant. No other bound is a range: few of
the values may lie beyond it, so a small batch stays within it by chance.

The range is that of the first calls together, from the third to the fifth. A single batch may have no negative value by
chance, and what one model makes for another (the samples of a generator) has another range in each step. A part of a
model that the program calls by itself gets features, whose range says nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import torch

from traincheck.sources.recording.descriptions import Descriptions, Schedule
from traincheck.sources.recording.recorder import Recorder
from traincheck.sources.tensors.call_summaries import MAX_NESTED_TENSORS
from traincheck.sources.tensors.deferred_values import DeferredValue, is_on_host
from traincheck.sources.tensors.device_transfers import NextSeq
from traincheck.sources.tensors.reading import form_of, hidden_from_modes
from traincheck.sources.tensors.value_facts import readable_memory
from traincheck.vocab.demand import BATCH, FORM, WITH_GRADIENTS, WITHOUT_GRADIENTS

SOURCE = "modules"

SCHEDULE = Schedule(often=5, seldom=25)
"""Of the calls of a model."""
MIN_ELEMENTS = 8
"""The range of fewer elements is chance."""

LEAST_CALLS = 3
"""Calls that are described before the range counts."""
RANGES = " (values)"
"""In the first line of a description of ranges. A short run with fewer calls has none, so they are no forms."""

_Ends = tuple[float, float]
_RANGES = (
    (0.0, 1.0, "0 to 1"),
    (0.0, math.inf, "no negative value"),
    (-math.inf, math.inf, "any value"),
)


class BatchForms:
    """Takes a reading for each model and form of its input that is new."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._calls: dict[tuple[str, bool], int] = {}
        self._ends: dict[tuple[str, bool, str], _Ends] = {}  # by model, whether gradients are on, and name of the input
        self._forms = Descriptions(recorder, BATCH)

    def forget_reported(self) -> None:
        """Report forms again that no reader of windows has got."""
        self._forms.forget_unread()

    def should_read(self, model: str, *, learns: bool) -> bool:
        """Whether to describe this call of the model. `learns`: gradients are on."""
        if torch.jit.is_tracing():
            return False
        number = self._calls[model, learns] = self._calls.get((model, learns), 0) + 1
        return SCHEDULE.includes(number)

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
            names = [name for name, _ in tensors]
            forms = {f"{name} is {form_of(tensor)}" for name, tensor in tensors}
            ranged = "." not in model and LEAST_CALLS <= self._calls[model, learns] <= SCHEDULE.often
            how = WITH_GRADIENTS if learns else WITHOUT_GRADIENTS

            def conclude(fetched: list[_Ends | None], next_seq: NextSeq) -> None:
                ranges = {
                    f"{name} ranges over {self._widened((model, learns, name), ends)}"
                    for name, ends in zip(names, fetched, strict=True)
                    if ends is not None
                }
                for header, lines in ((how, forms), (f"{how}{RANGES}", ranges if ranged else ())):
                    if lines:
                        text = "\n".join((header, *sorted(lines)))
                        self._forms.report(call, model, FORM, text, next_seq=next_seq)

            self._recorder.transfers.when_ready(SOURCE, [_ends_of(tensor) for _, tensor in tensors], conclude, events=2)

    def _widened(self, key: tuple[str, bool, str], ends: _Ends) -> str:
        """The range of an input in words, with the values of this call."""
        numbers = (*self._ends.get(key, ends), *ends)
        finite = all(map(math.isfinite, numbers))
        low, high = self._ends[key] = (min(numbers), max(numbers)) if finite else (math.nan, math.nan)
        return _in_words(low, high)


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


def _ends_of(tensor: torch.Tensor) -> _Ends | DeferredValue | None:
    """The lowest and the highest value, perhaps deferred; None if they say nothing."""
    memory = readable_memory(tensor)
    if memory is None or memory.numel() < MIN_ELEMENTS or memory.dtype is torch.bool or memory.is_complex():
        return None
    if memory.is_floating_point() and memory.element_size() < 2:
        return None
    ends = memory.aminmax()
    if is_on_host(memory):
        return ends.min.item(), ends.max.item()
    return DeferredValue((ends.min, ends.max), lambda low, high: (low, high))


def _in_words(low: float, high: float) -> str:
    if not (math.isfinite(low) and math.isfinite(high)):
        return "not finite"
    if low == high:
        return "all equal"
    return next(words for least, most, words in _RANGES if least <= low and high <= most)
