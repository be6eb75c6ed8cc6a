"""Kept parameters: whether an update changed each parameter, read as a whole no more often than is needed.

Note [Which parameters are read as a whole]
Small ones always are. A large one (see spot_checks.py) is not read before an update where it was read after the last
one, and since then torch has counted no write and a sample of it has not changed. (Programs write through `.data`,
which is not counted; the sample shows that, unless they write to a few rows.)

Where nobody asks for fingerprints, which tell apart the replicas of several ranks, a sample from before the update and
one from after it do, once the samples of a parameter have shown some updates in a row that changed it. Where a sample
then does not change although the parameter was written to, it may be that other elements did. So the parameter counts
as changed, that once, if it has a gradient and a learning rate to change it, and is read as a whole again from the next
update on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch

from traincheck.sources.gradients.gradients import Held
from traincheck.sources.modules.variables import Variable
from traincheck.sources.tensors.deferred_values import DeferredValue, not_equal
from traincheck.sources.tensors.reading import Fingerprint, deferred_fingerprints
from traincheck.sources.tensors.spot_checks import LARGE_BYTES, sample, samples_differ
from traincheck.sources.tensors.storages import version_of

TRUSTED_UPDATES = 3
"""Updates in a row that the sample of a parameter must have shown before it stands for the whole."""


class ParameterBefore(NamedTuple):
    """What a parameter was before an update. `fingerprint` is None where it could not be read, or was read in part:
    `sample` are some elements of a large one."""

    fingerprint: Fingerprint
    sample: torch.Tensor | None = None
    version: int | None = None


class ParameterAfter(NamedTuple):
    """What it is after the update: its fingerprint if it was read as a whole, whether that is another one, and, where
    samples were taken, the new one with whether it differs."""

    fingerprint: Fingerprint
    differs: bool | DeferredValue
    now: ParameterBefore | None = None
    shows: bool | DeferredValue = False


class ParameterChange(NamedTuple):
    """Whether the update has made it something else, and its fingerprint."""

    changed: bool
    fingerprint: int | None


class SampleHistory:
    """What is kept of a large parameter: how it was after the last update, if it was read as a whole then; how many
    updates in a row its sample has shown; and whether torch counts the writes of its updates (None: not known yet)."""

    __slots__ = ("counted", "last", "shown")

    def __init__(self) -> None:
        self.last: ParameterBefore | None = None
        self.shown = 0
        self.counted: bool | None = None


def read_before(held: Sequence[Held], *, whole: bool) -> list[ParameterBefore]:
    """The parameters before an update; with `whole` the fingerprint of each. Call under `hidden_from_modes`."""
    parameters: dict[int, ParameterBefore] = {}
    sampled: dict[int, ParameterBefore] = {}
    for index, (variable, tensor) in enumerate(held):
        elements = (
            sample(tensor) if tensor.numel() * tensor.element_size() >= LARGE_BYTES else None
        )  # for others no call
        if elements is None:
            continue
        sampled[index] = now = ParameterBefore(None, elements, version_of(tensor))
        if variable.sample_history is None:
            variable.sample_history = SampleHistory()
        # Of what no optimizer holds fingerprints are compared when the step is over, see master_copies.py.
        if (
            variable.sample_history.shown >= TRUSTED_UPDATES
            and now.version is not None
            and variable.holders
            and not whole
        ):
            parameters[index] = now
    parameters |= _untouched(held, {index: now for index, now in sampled.items() if index not in parameters})
    unread = [index for index in range(len(held)) if index not in parameters]
    for index, value in zip(unread, deferred_fingerprints([held[index][1] for index in unread]), strict=True):
        parameters[index] = sampled[index]._replace(fingerprint=value) if index in sampled else ParameterBefore(value)
    return [parameters[index] for index in range(len(held))]


def read_after(held: Sequence[Held], before: Sequence[ParameterBefore], *, whole: bool) -> list[ParameterAfter]:
    """The parameters after the update; with `whole` the fingerprint of each. Call under `hidden_from_modes`."""
    sampled: dict[int, ParameterBefore] = {}
    for index, old in enumerate(before):
        elements = None if old.sample is None else sample(held[index][1])
        if elements is not None:
            sampled[index] = ParameterBefore(None, elements, version_of(held[index][1]))
    shows = _samples_show(before, sampled)
    read = [
        index
        for index in range(len(held))
        if whole
        or index not in sampled
        or not (shows[index] is True or _need_not_read(held[index], before[index], sampled[index]))
    ]
    values: dict[int, Fingerprint] = dict(
        zip(read, deferred_fingerprints([held[index][1] for index in read]), strict=True)
    )
    parameters = []
    for index, old in enumerate(before):
        value = values.get(index)
        parameters.append(
            ParameterAfter(value, not_equal(old.fingerprint, value), sampled.get(index), shows.get(index, False))
        )
    return parameters


def deferred_parts(parameters: Sequence[ParameterAfter]) -> list[Any]:
    """What may be pending in what parameters are, for `became`."""
    return [value for parameter in parameters for value in (parameter.fingerprint, parameter.differs, parameter.shows)]


def conclude(
    variables: Sequence[Variable],
    before: Sequence[ParameterBefore],
    after: Sequence[ParameterAfter],
    fetched: Sequence[Any],
    should_change: Sequence[bool],
) -> list[ParameterChange]:
    """What an update made of parameters; `known` is what was pending in `found`, and `due` says of each whether the
    update had reason to change it."""
    changes: list[ParameterChange] = []
    for index, (old, new) in enumerate(zip(before, after, strict=True)):
        value, differs, shows = fetched[3 * index : 3 * index + 3]
        if new.now is None:
            unknown = old.fingerprint is None and old.sample is not None  # its memory was freed, or is another one
            changes.append(ParameterChange(unknown or differs, value))
            continue
        history: SampleHistory = variables[index].sample_history
        if new.fingerprint is not None:
            history.last = new.now._replace(fingerprint=value) if type(new.fingerprint) is int else None
        elif shows:
            history.last = None
        read = new.fingerprint is not None and old.fingerprint is not None
        is_changed = _is_changed(
            history, old, new.now, differs if read else None, shows=shows, should_change=should_change[index]
        )
        changes.append(ParameterChange(is_changed, value))
    return changes


def _untouched(held: Sequence[Held], sampled: Mapping[int, ParameterBefore]) -> dict[int, ParameterBefore]:
    """Those that nobody seems to have written to since they were read as a whole after the last update."""
    last: dict[int, ParameterBefore] = {}
    for index, now in sampled.items():
        previous: ParameterBefore | None = held[index][0].sample_history.last
        if previous is not None and previous.version is not None and previous.version == now.version:
            last[index] = previous
    shows = _samples_show(sampled, last)
    return {index: previous for index, previous in last.items() if shows[index] is False}


def _samples_show(
    before: Sequence[ParameterBefore] | Mapping[int, ParameterBefore], after: Mapping[int, ParameterBefore]
) -> dict[int, bool | DeferredValue]:
    """Of each that there is a sample of now whether it differs."""
    pairs = [(old, new.sample) for index, new in after.items() if (old := before[index].sample) is not None]
    return dict(zip(after, samples_differ([(old, new) for old, new in pairs if new is not None]), strict=True))


def _need_not_read(held: Held, old: ParameterBefore, now: ParameterBefore) -> bool:
    """Whether a parameter whose sample has not changed need not be read as a whole, as nobody has written to it, or as
    it was not read before."""
    untouched = old.version is not None and now.version == old.version
    return old.fingerprint is None or (untouched and bool(held[0].sample_history.counted or held[1].grad is None))


def _is_changed(
    history: SampleHistory,
    old: ParameterBefore,
    now: ParameterBefore,
    differs: bool | None,
    *,
    shows: bool,
    should_change: bool,
) -> bool:
    """Whether a large parameter has changed; what its sample was worth is kept. `differs` says it of the whole, None
    where that was not read."""
    if shows:
        history.shown += 1
        history.counted = history.counted is not False and now.version != old.version
        return True
    changed = (
        differs if differs is not None else should_change and (now.version != old.version or history.counted is False)
    )
    if changed or differs is None:
        history.shown = 0
    return changed
