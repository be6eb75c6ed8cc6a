"""Finds autocast regions that have no effect on what is trained.

A program computes its loss inside a region, and the layers of its model outside. So the region has nothing to cast: the
graph of the loss has matrix products in single precision, and no cast. Only the loss itself must lie in the region, by
the numbers that autograd gives its operations: another region, for a teacher or an evaluation, does not count.

Known limitations: compiled code and custom functions hide their operations, so nothing is reported of them.
"""

from __future__ import annotations

import threading
from typing import Any

import torch

from traincheck.sources.recording.context_facts import autocast_dtype
from traincheck.sources.recording.listener import RecorderListener
from traincheck.sources.recording.recorder import Recorder
from traincheck.sources.tensors.reading import hidden_from_modes
from traincheck.vocab.builtin_rules import AUTOCAST, IDLE_REGION
from traincheck.vocab.events import Reading
from traincheck.vocab.facts import facts

BACKWARDS = 3
"""Backwards of losses from a region whose graphs are looked at: casts are in each of them, or in none."""

MAX_NODES = 20_000
"""Larger graphs are left out."""

MAX_REGIONS = 64
"""Regions since the last backward that are remembered, the latest ones."""


class _Regions(threading.local):
    def __init__(self) -> None:
        self.starts: list[int] = []
        self.spans: list[tuple[int, int]] = []  # since the last backward


class IdleAutocast(RecorderListener):
    """Reports the first such region. `has_regions`: backwards are looked at, because the program uses autocast."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._regions = _Regions()
        self._left = BACKWARDS
        self.has_regions = False
        self._site = ""

    def autocast_changed(self, *, entered: bool) -> None:
        if entered:
            self._entered()
        else:
            self._exited()

    def _entered(self) -> None:
        if self._left:
            casts = torch.is_grad_enabled() and autocast_dtype() != "off"
            self._regions.starts.append(torch.autograd._get_sequence_nr() if casts else -1)
            self.has_regions = self.has_regions or casts
            self._site = self._recorder.sites.here() if casts else self._site

    def _exited(self) -> None:
        if self._regions.starts:
            start = self._regions.starts.pop()
            if start >= 0:
                spans = self._regions.spans
                spans.append((start, torch.autograd._get_sequence_nr()))
                del spans[:-MAX_REGIONS]  # no backward may ever follow

    def backward_begins(self, tensors: Any, call: int) -> None:
        """Look at the graph of a loss that was computed in a region."""
        spans = self._regions.spans
        if not spans or not self._left:
            return
        self._regions.spans = []
        several = tensors if isinstance(tensors, (list, tuple)) else (tensors,)
        with hidden_from_modes():
            roots = [loss.grad_fn for loss in several if isinstance(loss, torch.Tensor) and loss.grad_fn is not None]
            inside = [root for root in roots if any(start <= root._sequence_nr() < end for start, end in spans)]
            if not inside:
                return
            self._left -= 1
            self.has_regions = self._left > 0
            is_idle = len(inside) == len(roots) and _has_products_without_casts(roots)
        if is_idle:
            self._left, self.has_regions = 0, False
            seq, context = self._recorder.next_seq(), facts(site=self._site)
            reading = Reading(seq, call, AUTOCAST, AUTOCAST, IDLE_REGION, True, context=context)
            self._recorder.record_reading(reading)


def _has_products_without_casts(roots: list[Any]) -> bool:
    """Whether a graph has matrix products in single precision and casts nothing."""
    from traincheck.sources.tensors.autograd_operations import CAST, PRODUCTS  # not before a backward after autocast

    waiting, seen, has_products = list(roots), set(roots), False
    while waiting:
        node = waiting.pop()
        name = node.name()
        if name.startswith(CAST) or len(seen) > MAX_NODES:
            return False
        if name.startswith(PRODUCTS):
            metadata = getattr(node, "_input_metadata", ())
            if not metadata or metadata[0].dtype is not torch.float32:
                return False
            has_products = True
        for taken, _ in node.next_functions:
            if taken is not None and taken not in seen:
                seen.add(taken)
                waiting.append(taken)
    return has_products
