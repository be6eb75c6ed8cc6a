"""Finds optimizers that replace an equal one and begin without its state.

A program that builds its optimizer in the loop over epochs loses the momentum at each of them. The optimizer is built
at the same line, by the same class, with the same settings, for the same parameters. Nothing but the former one has
changed the parameters, which had a state, and stepped within a single pass over the data. A new phase of training
has other settings, restores a state or lasts for several passes. A program that prunes trains again after each round.

A loader shows passes, or else the samples of the first pass that come again (data/trained_samples.py). Whether both
optimizers learned from one loader is left to the relation (relations/periodic/reported_errors.py).
"""

from __future__ import annotations

from collections import Counter
from typing import Any, NamedTuple

import torch

from traincheck.sources.data.trained_samples import TrainedSamples
from traincheck.sources.recording.patches import TensorReference
from traincheck.sources.tensors.deferred_values import is_on_host
from traincheck.sources.tensors.reading import leading_floats, local_tensor, starts_with
from traincheck.sources.tensors.storages import version_of
from traincheck.vocab.facts import FactValue

MAX_SITES = 256
"""Lines at which optimizers are built that are followed, the first ones."""

MAX_ELEMENTS = 4_000_000
"""Elements of parameters that are searched for zeros, when an optimizer steps first."""

_WITH_LAST_STEP = 2


class Replaced(NamedTuple):
    """The name of an optimizer that was replaced without its state, and the line that builds both; whether samples that
    came again show that a pass had ended."""

    name: str
    site: str
    over_samples: bool


class _Life:
    """An optimizer: how it was built, and what its steps so far have shown. `steps` counts them by the passes over data
    that had ended. `batches` are those before the optimizer was built, and those up to its last step.
    `version` and `leading` are the writes to its first parameter up to that step, and the first elements it left."""

    __slots__ = (
        "batches",
        "cls",
        "first",
        "has_state",
        "last",
        "leading",
        "name",
        "number",
        "settings",
        "site",
        "steps",
        "version",
        "zeros",
    )

    def __init__(self, name: str, optimizer: Any, site: str, settings: list[dict[str, FactValue]]) -> None:
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        self.name, self.cls, self.site, self.settings = name, type(optimizer), site, settings
        self.number = len(parameters)
        self.first, self.last = TensorReference(parameters[0]), TensorReference(parameters[-1])
        self.has_state = False
        self.zeros = 0
        self.batches = (0, 0)
        self.steps: Counter[int] = Counter()
        self.version: int | None = None
        self.leading: torch.Tensor | None = None

    def lasted_one_pass(self) -> bool:
        """Whether the optimizer stepped in a single pass. A loader that fetches ahead ends it before the last step."""
        return len(self.steps) == 1 or (len(self.steps) == _WITH_LAST_STEP and min(self.steps.values()) == 1)

    def note_values(self) -> None:
        """Note the values that a step leaves. This runs in each step."""
        first = self.first()
        try:
            self.version = None if first is None else first._version
            elements = None if first is None or not is_on_host(first) else leading_floats(first)
            self.leading = None if elements is None else elements.clone()
        except RuntimeError:
            self.version = None

    def is_unchanged(self) -> bool:
        """Whether the first parameter is as the last step left it. torch does not count writes through `.data`."""
        first = self.first()
        if first is None or self.version is None or version_of(first) != self.version:
            return False
        return self.leading is None or starts_with(first, self.leading)

    def is_succeeded_by(self, other: _Life) -> bool:
        """Whether another optimizer was built in the same way for the same parameters."""
        first, last = other.first(), other.last()
        return (
            first is not None
            and (self.cls, self.settings, self.number) == (other.cls, other.settings, other.number)
            and self.first() is first
            and self.last() is last
        )


class ReplacedOptimizers:
    """Follows the optimizers of each line; all methods are called inside `hidden_from_modes()`.

    `unstepped` are the names of those that have not stepped.
    """

    def __init__(self, samples: TrainedSamples) -> None:
        self.samples = samples
        self.unstepped: set[str] = set()
        self._living: dict[str, _Life] = {}
        self._latest: dict[str, _Life] = {}  # by site: the latest that has stepped

    def forget(self) -> None:
        """Drop all optimizers, because steps were not observed."""
        self.unstepped.clear()
        self._living.clear()
        self._latest.clear()

    def built(self, name: str, optimizer: Any, site: str, settings: list[dict[str, FactValue]]) -> None:
        """Note an optimizer that was built at a line of the program."""
        if any(group["params"] for group in optimizer.param_groups) and len(self._living) < MAX_SITES:
            self._living[name] = life = _Life(name, optimizer, site, settings)
            life.batches = (self.samples.batches, 0)
            self.unstepped.add(name)

    def gone(self, name: str) -> None:
        """An optimizer is gone."""
        self._living.pop(name, None)
        self.unstepped.discard(name)

    def first_step_begins(self, name: str, optimizer: Any, passes: int) -> Replaced | None:
        """Return the optimizer that this one replaces without its state, if any. `passes` over the data have ended so
        far."""
        self.unstepped.discard(name)
        life = self._living.get(name)
        former = None if life is None else self._latest.get(life.site)
        if life is None or former is None or optimizer.state or not former.is_succeeded_by(life):
            return None
        in_next_pass = former.lasted_one_pass() and passes > former.steps.most_common(1)[0][0]
        over_samples = self.samples.came_again(*former.batches)
        if not former.has_state or not (in_next_pass or over_samples) or not former.is_unchanged():
            return None
        return Replaced(former.name, life.site, not in_next_pass) if _zeros(optimizer) <= former.zeros else None

    def step_ends(self, name: str, optimizer: Any, passes: int) -> None:
        """Note the state that a step leaves."""
        life = self._living.get(name)
        if life is None:
            return
        if not life.steps:
            life.has_state = _has_state(optimizer)
            life.zeros = _zeros(optimizer)
            if life.site in self._latest or len(self._latest) < MAX_SITES:
                self._latest[life.site] = life
        if len(life.steps) <= _WITH_LAST_STEP:  # with more, it has lasted for several passes
            life.steps[passes] += 1
        life.batches = (life.batches[0], self.samples.batches)
        if life.lasted_one_pass():
            life.note_values()


def _has_state(optimizer: Any) -> bool:
    """Whether an optimizer keeps numbers for the elements of its parameters."""
    return any(
        isinstance(value, torch.Tensor) and value.dim() > 0
        for state in optimizer.state.values()
        if isinstance(state, dict)
        for value in state.values()
    )


def _zeros(optimizer: Any) -> int:
    """The number of elements that are zero, in parameters on the host up to a total size."""
    left, zeros = MAX_ELEMENTS, 0
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            left -= parameter.numel()
            dense = local_tensor(parameter) if left >= 0 else None
            if dense is not None and is_on_host(dense):
                zeros += dense.numel() - int(torch.count_nonzero(dense))
    return zeros
