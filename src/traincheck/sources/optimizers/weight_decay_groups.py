"""Finds parameter groups that separate vectors from matrices and give the vectors too much weight decay.

Programs put biases and normalization weights (vectors) into a group of their own to give them less weight decay than
matrices. It is an error if the settings are exchanged, or if all groups have the same settings. Each optimizer is
judged once, when it steps for the first time, because programs add groups after the optimizer is built.

Many programs have groups for another reason, so both judgements ask for more:

* All trained vectors are in other groups than all trained matrices, and at least two of each.
* The vectors belong to the matrices: most have the length of one of their dimensions. A library that flattens
  parameters (fully sharded training, fused networks) has vectors of other lengths.
* Exchanged: nothing but the decay differs, as a group may choose another algorithm (Muon for matrices). An optimizer of
  torch has only one, so there the learning rates may differ as well.
* Without effect: the program set the decay of a group, so the groups are there for the decay. (Others differ later in
  their learning rates.) Libraries that make a group for each parameter separate nothing.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from traincheck.sources.optimizers.hyperparameters import OPTIMIZER, plain
from traincheck.sources.recording.recorder import Recorder
from traincheck.sources.tensors.reading import hidden_from_modes
from traincheck.vocab.builtin_rules import DECAY_OF_GROUPS
from traincheck.vocab.events import Reading
from traincheck.vocab.facts import facts

DECAY = "weight_decay"
_PARAMETERS = ("params", "param_names")

FEWEST = 2
"""Vectors, and matrices, that make a separation. One of each may be a layer with a group for each of its parameters."""

MOST_GROUPS = 4
"""Groups of a program that separates kinds of parameters: weights, biases, normalization, scalars. More are layers."""

MUCH_LESS = 0.1
"""Decay of matrices over that of vectors from which on the two are exchanged. A program may tune both in one order."""


@dataclass(frozen=True, slots=True)
class _Side:
    """The groups of vectors, or those of matrices: the shapes of the trained parameters, the decay of each group, and
    the product with its learning rate."""

    shapes: list[torch.Size]
    decays: list[float]
    strengths: list[float]


class WeightDecayGroups:
    """Judges the groups of each optimizer at its first step."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._unjudged: weakref.WeakKeyDictionary[Any, tuple[str, bool]] = weakref.WeakKeyDictionary()

    def group_added(self, optimizer: Any, group: Any) -> None:
        """Note that a program builds an optimizer, or adds a group to it; the defaults are not filled in yet."""
        if isinstance(group, dict):
            site, has_own_decay = self._unjudged.get(optimizer) or (self._recorder.sites.here(), False)
            # A wrapper passes on groups that another optimizer has filled in.
            is_filled = all(name in group for name in getattr(optimizer, "defaults", ()))
            self._unjudged[optimizer] = site, has_own_decay or (DECAY in group and not is_filled)

    def step_begins(self, optimizer: Any, name: str, call: int) -> None:
        """Judge an optimizer that has not been judged; `call` is the position of its step."""
        site, has_own_decay = self._unjudged.pop(optimizer, ("", False))
        if not site or len(optimizer.param_groups) == 1:
            return
        with hidden_from_modes():
            text = misplaced_decay(optimizer, has_own_decay=has_own_decay)
        if text:
            seq, context = self._recorder.next_seq(), facts(site=site)
            self._recorder.record_reading(Reading(seq, call, name, OPTIMIZER, DECAY_OF_GROUPS, text, context=context))


def misplaced_decay(optimizer: Any, *, has_own_decay: bool) -> str:
    """Say which weight decay vectors and matrices get, if it is wrong; otherwise nothing. `has_own_decay` says whether
    the program set the decay of a group. Call inside `hidden_from_modes()`."""
    groups = [(group, _trained_shapes(group)) for group in optimizer.param_groups]
    groups = [(group, shapes) for group, shapes in groups if shapes]
    if any(len({len(shape) > 1 for shape in shapes}) > 1 for _, shapes in groups):
        return ""  # vectors and matrices in one group
    vectors = _side([(group, shapes) for group, shapes in groups if len(shapes[0]) <= 1])
    matrices = _side([(group, shapes) for group, shapes in groups if len(shapes[0]) > 1])
    if vectors is None or matrices is None or not _belong(vectors.shapes, matrices.shapes):
        return ""
    kinds = f"{len(vectors.shapes)} vectors (biases, normalization weights)", f"{len(matrices.shapes)} matrices"
    same = _same_settings([group for group, _ in groups])
    if _is_exchanged(vectors, matrices) and (same or type(optimizer).__module__.startswith("torch.optim.")):
        least, most = min(vectors.decays), max(matrices.decays)
        return f"the weight decay is {least:g} for {kinds[0]} and {most:g} for {kinds[1]}"
    separates = len(groups) <= MOST_GROUPS and all(len(shapes) >= FEWEST for _, shapes in groups)
    decays = {*vectors.decays, *matrices.decays}
    if separates and same and has_own_decay and len(decays) == 1 and min(decays) > 0:
        return f"groups separate {kinds[0]} from {kinds[1]}, and all have the weight decay {min(decays):g}"
    return ""


def _trained_shapes(group: Mapping[str, Any]) -> list[torch.Size]:
    """The shapes of the parameters of a group that are trained."""
    return [parameter.shape for parameter in group["params"] if parameter.requires_grad]


def _side(groups: Sequence[tuple[Mapping[str, Any], list[torch.Size]]]) -> _Side | None:
    """Describe groups; None if a decay or a learning rate is no number, or too few parameters are in them."""
    shapes = [shape for _, of_group in groups for shape in of_group]
    try:
        decays, rates = ([float(group[name]) for group, _ in groups] for name in (DECAY, "lr"))
    except (KeyError, TypeError, ValueError):
        return None
    strengths = [decay * rate for decay, rate in zip(decays, rates, strict=True)]
    return _Side(shapes, decays, strengths) if len(shapes) >= FEWEST else None


def _belong(vectors: Sequence[torch.Size], matrices: Sequence[torch.Size]) -> bool:
    """Whether most vectors have the length of a dimension of a matrix. Single numbers say nothing."""
    sizes = {size for shape in matrices for size in shape}
    lengths = [shape.numel() for shape in vectors if shape.numel() > 1]
    return len(lengths) >= FEWEST and 2 * sum(length in sizes for length in lengths) >= len(lengths)


def _is_exchanged(vectors: _Side, matrices: _Side) -> bool:
    """Whether vectors get the decay, and matrices none or much less."""
    least, most = min(vectors.decays), max(matrices.decays)
    return least > 0 and most <= MUCH_LESS * least and max(matrices.strengths) <= min(vectors.strengths)


def _same_settings(groups: Sequence[Mapping[str, Any]]) -> bool:
    """Whether groups differ in nothing but their parameters and their decay."""
    return all(_others(group) == _others(groups[0]) for group in groups[1:])


def _others(group: Mapping[str, Any]) -> dict[str, Any]:
    others = {}
    for name, value in group.items():
        if name not in _PARAMETERS and name != DECAY:
            try:
                others[name] = plain(value)
            except TypeError:
                others[name] = id(value)  # a function, a large tensor
    return others
