"""Detects whether an update changed each parameter, while reading whole parameters as rarely as possible.

Note [Which parameters are read as a whole]
TrainCheck always reads small parameters as a whole. A large one (see spot_checks.py) is not read before an update if it
was read after the last one, torch has counted no write since, and a sample of it is unchanged. The sample is needed
because torch does not count writes through `.data`; it detects them unless they cover a few rows.

Fingerprints serve to compare the replicas of several ranks. If no rule needs them, TrainCheck relies on a sample before
and after the update, once the samples of a parameter have shown some updates in a row. Then a sample may stay unchanged
although torch counted a write, because other elements changed. So the parameter counts as changed this once, if it has
a gradient and a learning rate to change it. From the next update on, TrainCheck reads it as a whole again.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch

from traincheck.sources.gradients.gradients import Held
from traincheck.sources.modules.variables import Variable
from traincheck.sources.tensors.deferred_values import DeferredValue, not_equal
from traincheck.sources.tensors.reading import Fingerprint, deferred_fingerprints
from traincheck.sources.tensors.spot_checks import LARGE_BYTES, samples, samples_differ
from traincheck.sources.tensors.storages import version_of

TRUSTED_UPDATES = 3
"""Updates in a row that a sample must have shown before it stands for the whole parameter."""


class ParameterBefore(NamedTuple):
    """The state of a parameter before an update. `fingerprint` is None if it is unreadable or was read in part;
    `sample` holds some elements of a large parameter. `version` counts the writes to one that was not read as a whole.
    """

    fingerprint: Fingerprint
    sample: torch.Tensor | None = None
    version: int | None = None


class ParameterAfter(NamedTuple):
    """The state of a parameter after an update: its fingerprint if it was read as a whole, and whether it differs. If
    samples were taken, `now` is the new one and `shows` says whether it differs."""

    fingerprint: Fingerprint
    differs: bool | DeferredValue
    now: ParameterBefore | None = None
    shows: bool | DeferredValue = False


class ParameterChange(NamedTuple):
    """Whether the update changed a parameter, and its fingerprint."""

    changed: bool
    fingerprint: int | None


class SampleHistory:
    """History of a large parameter: `last` is its state after the last update, if it was read as a whole then. `shown`
    counts updates in a row that its sample has shown. `counted` says whether torch counts the writes of its updates
    (None: not known yet)."""

    __slots__ = ("counted", "last", "shown")

    def __init__(self) -> None:
        self.last: ParameterBefore | None = None
        self.shown = 0
        self.counted: bool | None = None


def read_before(held: Sequence[Held], *, whole: bool) -> list[ParameterBefore]:
    """Read the parameters before an update; with `whole`, fingerprint each. Call inside `hidden_from_modes()`."""
    parameters: dict[int, ParameterBefore] = {}
    sampled: dict[int, ParameterBefore] = {}
    large = []
    for index, (_, tensor) in enumerate(held):
        # The size is checked here to save a call for each small parameter.
        if tensor.numel() * tensor.element_size() >= LARGE_BYTES:
            large.append(index)
    for index, elements in _samples(held, large) if large else ():
        variable, tensor = held[index]
        sampled[index] = now = ParameterBefore(None, elements, version_of(tensor))
        if variable.sample_history is None:
            variable.sample_history = SampleHistory()
        # Without a holder, fingerprints are compared at the end of the step, see master_copies.py.
        trusted = variable.sample_history.shown >= TRUSTED_UPDATES and now.version is not None
        if trusted and variable.holders and not whole:
            parameters[index] = now
    parameters |= _untouched(held, {index: now for index, now in sampled.items() if index not in parameters})
    unread = [index for index in range(len(held)) if index not in parameters]
    for index, value in zip(unread, deferred_fingerprints([held[index][1] for index in unread]), strict=True):
        if index in sampled:
            parameters[index] = sampled[index]._replace(fingerprint=value)
        else:
            parameters[index] = ParameterBefore(value, version=version_of(held[index][1]) if value is None else None)
    return [parameters[index] for index in range(len(held))]


def read_after(held: Sequence[Held], before: Sequence[ParameterBefore], *, whole: bool) -> list[ParameterAfter]:
    """Read the parameters after the update; with `whole`, fingerprint each. Call inside `hidden_from_modes()`."""
    sampled: dict[int, ParameterBefore] = {}
    large = []
    for index, old in enumerate(before):
        if old.sample is not None:
            large.append(index)
    for index, elements in _samples(held, large) if large else ():
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
        differs = not_equal(old.fingerprint, value)
        if value is None and old.fingerprint is None and index not in sampled:  # torch counts the writes
            differs = version_of(held[index][1]) != old.version
        parameters.append(ParameterAfter(value, differs, sampled.get(index), shows.get(index, False)))
    return parameters


def deferred_parts(parameters: Sequence[ParameterAfter]) -> list[Any]:
    """The parts of readings that may be deferred, for `conclude`."""
    return [value for parameter in parameters for value in (parameter.fingerprint, parameter.differs, parameter.shows)]


def conclude(
    variables: Sequence[Variable],
    before: Sequence[ParameterBefore],
    after: Sequence[ParameterAfter],
    fetched: Sequence[Any],
    should_change: Sequence[bool],
) -> list[ParameterChange]:
    """How an update changed parameters. `fetched` are the fetched parts of `after`, see `deferred_parts`;
    `should_change` says for each parameter whether the update had reason to change it."""
    changes: list[ParameterChange] = []
    for index, (old, new) in enumerate(zip(before, after, strict=True)):
        value, differs, shows = fetched[3 * index : 3 * index + 3]
        if new.now is None:
            unknown = old.fingerprint is None and old.sample is not None  # its memory was freed or replaced
            changes.append(ParameterChange(unknown or differs, value))
            continue
        history: SampleHistory = variables[index].sample_history
        if new.fingerprint is not None:
            history.last = new.now._replace(fingerprint=value) if type(value) is int else None
        elif shows:
            history.last = None
        read = new.fingerprint is not None and old.fingerprint is not None
        is_changed = _is_changed(
            history, old, new.now, differs if read else None, shows=shows, should_change=should_change[index]
        )
        changes.append(ParameterChange(is_changed, value))
    return changes


def _samples(held: Sequence[Held], indices: Sequence[int]) -> list[tuple[int, torch.Tensor]]:
    """The samples of the parameters at these indices that can be sampled."""
    taken = zip(indices, samples([held[index][1] for index in indices]), strict=True)
    return [(index, elements) for index, elements in taken if elements is not None]


def _untouched(held: Sequence[Held], sampled: Mapping[int, ParameterBefore]) -> dict[int, ParameterBefore]:
    """The parameters that seem unchanged since they were read as a whole after the last update. On an accelerator a
    deferred sample decides; if it differs, the fingerprint is unknown."""
    last: dict[int, ParameterBefore] = {}
    for index, now in sampled.items():
        previous: ParameterBefore | None = held[index][0].sample_history.last
        if previous is not None and previous.version is not None and previous.version == now.version:
            last[index] = previous
    untouched = {}
    for index, shows in _samples_show(sampled, last).items():
        if shows is False:
            untouched[index] = last[index]
        elif type(shows) is DeferredValue:
            interpret = functools.partial(_unless, last[index].fingerprint)
            untouched[index] = sampled[index]._replace(fingerprint=DeferredValue(shows.numbers, interpret))
    return untouched


def _unless(fingerprint: Fingerprint, is_different: bool) -> Fingerprint:
    return None if is_different else fingerprint


def _samples_show(
    before: Sequence[ParameterBefore] | Mapping[int, ParameterBefore], after: Mapping[int, ParameterBefore]
) -> dict[int, bool | DeferredValue]:
    """Whether each parameter's new sample differs from the old one."""
    pairs = [(old, new.sample) for index, new in after.items() if (old := before[index].sample) is not None]
    return dict(zip(after, samples_differ([(old, new) for old, new in pairs if new is not None]), strict=True))


def _need_not_read(held: Held, old: ParameterBefore, now: ParameterBefore) -> bool:
    """Whether a parameter with an unchanged sample need not be read as a whole, because it was not written to or not
    read before."""
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
    """Whether a large parameter has changed; updates its history. `differs` is the result for the whole parameter, None
    if that was not read."""
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
