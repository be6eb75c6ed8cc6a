"""Watches copies of trained weights that a program moves towards them: averages, teachers and target networks.

Note [The shares of an average]
Each update of a moving average keeps a share of it and takes one of the trained weights. Both follow from the numbers
before and after the update, if these are combinations of the average and the trained weights. Both should add up to
one. An update that takes everything is a plain copy. One that takes nearly everything (a decay that is swapped with its
complement) is no average, and one that takes nothing (of the average itself) never moves it. These are errors if two
updates in a row have them, and the second keeps no more: an average that starts keeps more and more (1 - 1/n, a power
of it, or a decay that grows). Slow weights of an optimizer take up to `LARGEST_SHARE`. An average is updated after the
trained weights, or before them, in the next step.

A copy is a parameter that no optimizer holds. It is known from `copy.deepcopy`, or because it has the elements of one
that an optimizer holds, when its model is called first. `PER_MODEL` parameters of each model are watched, in the first
`UPDATES` of their updates. Rounding hides small shares. So a copy counts as unmoved only if the trained weights are so
far away that a share of `SMALLEST_SHARE` would show; copies in half precision never are.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import nn

from traincheck.sources.modules.variables import VariableCatalog
from traincheck.sources.recording.listener import RecorderListener
from traincheck.sources.recording.patches import TensorReference
from traincheck.sources.recording.recorder import Recorder
from traincheck.sources.recording.step_tracker import Cut
from traincheck.sources.tensors.reading import bytes_of, hidden_from_modes, is_varied, leading_floats
from traincheck.sources.tensors.storages import version_of
from traincheck.vocab.builtin_rules import AVERAGE, MODEL
from traincheck.vocab.events import NO_CALL, Reading

PER_MODEL, UPDATES = 16, 8
"""Parameters of a model that are watched, and updates of each."""

LARGEST_SHARE, COPY, SMALLEST_SHARE = 0.85, 0.9999, 3e-5

UNMOVED, ELSEWHERE = "unmoved", "moved elsewhere"

_TOLERANCE, _SUM_TOLERANCE, _GROWTH = 0.01, 2e-5, 1.1
"""How far a moved copy may lie beside a combination, and how far the sum of shares may be from one (single precision
rounds to 1e-7); from which factor on a share that is kept grows."""


class _Pair:
    """A copy of a parameter, and the parameter, with their elements at the last look at the memory of the copy."""

    __slots__ = ("before", "copy", "original", "trained", "updates", "version")

    def __init__(self, copy: torch.Tensor, original: torch.Tensor, elements: torch.Tensor) -> None:
        self.copy, self.original = TensorReference(copy), TensorReference(original)
        self.before = self.trained = elements
        self.version, self.updates = version_of(copy), 0

    def has_changed(self) -> bool:
        """Whether the copy is gone, or its memory was written to since the last look."""
        copy = self.copy()
        return copy is None or version_of(copy) != self.version


class _Moved(NamedTuple):
    """Elements of a copy before and after an update, and those of the trained parameter at the same times."""

    before: torch.Tensor
    after: torch.Tensor
    trained_before: torch.Tensor
    trained: torch.Tensor
    rounding: float


class Shares(NamedTuple):
    """How much an update keeps of an average, and how much it takes of the trained weights."""

    kept: float
    taken: float

    def is_copy(self) -> bool:
        """Whether an update takes all."""
        return abs(self.kept) < 1 - COPY

    def add_up(self) -> bool:
        """Whether they add up to one."""
        return abs(self.kept + self.taken - 1) < _SUM_TOLERANCE


class WeightAverages(RecorderListener):
    """Takes a reading for each model with a copy that does not average its weights."""

    def __init__(self, source: str, catalog: VariableCatalog, recorder: Recorder) -> None:
        self._catalog = catalog
        self._recorder = recorder
        self._look = recorder.guarded(source, self._look_at_copies)
        self._pairs: dict[int, _Pair] = {}
        self._last: dict[str, Shares | str | None] = {}  # by model: the last update
        self._moves: set[str] = set()
        self._reported: set[str] = set()

    def note_copy(self, copy: torch.Tensor, original: torch.Tensor) -> None:
        """A parameter is a copy of another one, as which it begins. Call it inside `hidden_from_modes()`."""
        elements = leading_floats(copy)
        if elements is not None and id(copy) not in self._pairs and is_varied(elements):
            self._pairs[id(copy)] = _Pair(copy, original, _exact(elements))
            self._recorder.add_listener(self)

    def note_first_call(self, parameters: Sequence[torch.Tensor]) -> None:
        """A model with these parameters, which no optimizer updates, is called for the first time: find those that
        begin as copies."""
        if any(map(nn.parameter.is_lazy, parameters)):
            return
        shapes = {parameter.shape for parameter in parameters}
        trained: dict[tuple[torch.Size, bytes], torch.Tensor] = {}
        for _, tensor in self._catalog.living():
            if self._catalog.is_trained(tensor) and not nn.parameter.is_lazy(tensor) and tensor.shape in shapes:
                trained[tensor.shape, _bytes_of(tensor)] = tensor
        for parameter in parameters if trained else ():
            original = trained.get((parameter.shape, _bytes_of(parameter)))
            if original is not None:
                self.note_copy(parameter, original)

    def window_closing(self, cut: Cut) -> None:
        self._look()

    def _look_at_copies(self) -> None:
        """Judge the copies that were written to, and forget those that need no further look."""
        moved: dict[str, list[_Moved]] = {}
        with hidden_from_modes():
            if not any(pair.has_changed() for pair in self._pairs.values()):
                return  # as in each step of a program that keeps a frozen copy
            self._catalog.refresh_holders()
            for key, pair in list(self._pairs.items()):
                copy, original = pair.copy(), pair.original()
                is_over = copy is None or original is None or pair.updates > UPDATES
                if is_over or self._catalog.is_trained(copy):
                    del self._pairs[key]
                elif pair.has_changed():
                    self._look_at(pair, copy, original, moved)
            for name, together in moved.items():
                self._judge(name, together)
        if not self._pairs:
            self._recorder.remove_listener(self)

    def _look_at(self, pair: _Pair, copy: Any, original: Any, moved: dict[str, list[_Moved]]) -> None:
        """Note how a copy that was written to moved."""
        pair.version = version_of(copy)
        pair.updates += 1
        after, now = leading_floats(copy), leading_floats(original)
        if after is None or now is None or after.shape != now.shape:
            return
        before, pair.before = pair.before, _exact(after)
        trained_before, pair.trained = pair.trained, _exact(now)
        trained = self._catalog.find(original)
        if trained is not None and self._catalog.is_trained(original):
            together = moved.setdefault(trained.name.partition(".")[0], [])
            if len(together) < PER_MODEL and before.shape == pair.before.shape:
                rounding = torch.finfo(copy.dtype).eps * float(before.norm())
                together.append(_Moved(before, pair.before, trained_before, pair.trained, rounding))

    def _judge(self, name: str, together: Sequence[_Moved]) -> None:
        now = shares_of(together)
        before, self._last[name] = self._last.get(name), now
        if isinstance(now, Shares) or now == ELSEWHERE:
            self._moves.add(name)
        found = ""
        if now == before == UNMOVED and name not in self._moves:
            found = "the updates of a copy of this model leave the copy as it is"
        elif isinstance(now, Shares) and isinstance(before, Shares):
            found = _fault(before, now)
        if found and name not in self._reported:
            self._reported.add(name)
            self._recorder.record_reading(Reading(self._recorder.next_seq(), NO_CALL, name, MODEL, AVERAGE, found))


def _fault(before: Shares, now: Shares) -> str:
    """What is wrong with two updates in a row; empty if nothing is."""
    taken = f"takes {now.taken:.3g} of the trained weights"
    shares = f"each update of a copy of this model keeps {now.kept:.3g} of the copy and {taken}"
    if not now.add_up() and not before.add_up():
        return f"{shares}, which do not add up to one"
    if now.taken > LARGEST_SHARE and not now.is_copy() and now.kept < _GROWTH * before.kept + 1 - COPY:
        return shares
    return ""


def shares_of(together: Sequence[_Moved]) -> Shares | str | None:
    """The shares of an update; `UNMOVED`, `ELSEWHERE`, or None if it cannot be told."""
    before = torch.cat([moved.before for moved in together])
    way = torch.cat([moved.after for moved in together]) - before
    rounding, far = math.hypot(*(moved.rounding for moved in together)), float(way.norm())
    trained = [moved.trained for moved in together], [moved.trained_before for moved in together]
    goals = [
        goal for goal in map(torch.cat, trained) if rounding < _TOLERANCE * float((goal - before).norm()) < math.inf
    ]
    if not goals or not math.isfinite(far):
        return None
    if far <= rounding:
        return UNMOVED if rounding < SMALLEST_SHARE * float((goals[0] - before).norm()) else None
    for goal in goals:
        distance = goal - before
        taken = float(way @ distance) / float(distance @ distance)
        if float((way - taken * distance).norm()) <= _TOLERANCE * far + rounding:
            return Shares(1 - taken, taken)
    for goal in goals if far > rounding / _TOLERANCE else ():
        both = torch.stack((before, goal), dim=1)
        change, taken = torch.linalg.lstsq(both, way[:, None]).solution.flatten().tolist()
        if float((way - change * before - taken * goal).norm()) <= _TOLERANCE * far:
            return Shares(1 + change, taken)
    return ELSEWHERE


def _bytes_of(parameter: torch.Tensor) -> bytes:
    elements = leading_floats(parameter)
    return b"" if elements is None else bytes_of(elements)


def _exact(elements: torch.Tensor) -> torch.Tensor:
    return elements.to("cpu", torch.float64, copy=True)
