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
from traincheck.sources.tensors.deferred_values import Pending, unlike
from traincheck.sources.tensors.reading import Computed, computed
from traincheck.sources.tensors.spot_checks import LARGE, differ, sample
from traincheck.sources.tensors.storages import version_of

TRUSTED = 3
"""Updates in a row that the sample of a parameter must have shown before it stands for the whole."""


class Was(NamedTuple):
    """What a parameter was before an update. `fingerprint` is None where it could not be read, or was read in part:
    `sample` are some elements of a large one."""

    fingerprint: Computed
    sample: torch.Tensor | None = None
    version: int | None = None


class Is(NamedTuple):
    """What it is after the update: its fingerprint if it was read as a whole, whether that is another one, and, where
    samples were taken, the new one with whether it differs."""

    fingerprint: Computed
    differs: bool | Pending
    now: Was | None = None
    shows: bool | Pending = False


class Became(NamedTuple):
    """Whether the update has made it something else, and its fingerprint."""

    changed: bool
    fingerprint: int | None


class Kept:
    """What is kept of a large parameter: how it was after the last update, if it was read as a whole then; how many
    updates in a row its sample has shown; and whether torch counts the writes of its updates (None: not known yet)."""

    __slots__ = ("counted", "last", "shown")

    def __init__(self) -> None:
        self.last: Was | None = None
        self.shown = 0
        self.counted: bool | None = None


def before(held: Sequence[Held], *, whole: bool) -> list[Was]:
    """The parameters before an update; with `whole` the fingerprint of each. Call under `unseen`."""
    found: dict[int, Was] = {}
    taken: dict[int, Was] = {}
    for place, (variable, tensor) in enumerate(held):
        elements = sample(tensor) if tensor.numel() * tensor.element_size() >= LARGE else None  # for others no call
        if elements is None:
            continue
        taken[place] = now = Was(None, elements, version_of(tensor))
        if variable.kept is None:
            variable.kept = Kept()
        # Of what no optimizer holds fingerprints are compared when the step is over, see master_copies.py.
        if variable.kept.shown >= TRUSTED and now.version is not None and variable.holders and not whole:
            found[place] = now
    found |= _untouched(held, {place: now for place, now in taken.items() if place not in found})
    unread = [place for place in range(len(held)) if place not in found]
    for place, value in zip(unread, computed([held[place][1] for place in unread]), strict=True):
        found[place] = taken[place]._replace(fingerprint=value) if place in taken else Was(value)
    return [found[place] for place in range(len(held))]


def after(held: Sequence[Held], was: Sequence[Was], *, whole: bool) -> list[Is]:
    """The parameters after the update; with `whole` the fingerprint of each. Call under `unseen`."""
    now: dict[int, Was] = {}
    for place, old in enumerate(was):
        elements = None if old.sample is None else sample(held[place][1])
        if elements is not None:
            now[place] = Was(None, elements, version_of(held[place][1]))
    shows = _shows(was, now)
    read = [
        place
        for place in range(len(held))
        if whole or place not in now or not (shows[place] is True or _is_settled(held[place], was[place], now[place]))
    ]
    values: dict[int, Computed] = dict(zip(read, computed([held[place][1] for place in read]), strict=True))
    found = []
    for place, old in enumerate(was):
        value = values.get(place)
        found.append(Is(value, unlike(old.fingerprint, value), now.get(place), shows.get(place, False)))
    return found


def pending_in(found: Sequence[Is]) -> list[Any]:
    """What may be pending in what parameters are, for `became`."""
    return [value for one in found for value in (one.fingerprint, one.differs, one.shows)]


def became(
    variables: Sequence[Variable], was: Sequence[Was], found: Sequence[Is], known: Sequence[Any], due: Sequence[bool]
) -> list[Became]:
    """What an update made of parameters; `known` is what was pending in `found`, and `due` says of each whether the
    update had reason to change it."""
    told: list[Became] = []
    for place, (old, one) in enumerate(zip(was, found, strict=True)):
        value, differs, shows = known[3 * place : 3 * place + 3]
        if one.now is None:
            unknown = old.fingerprint is None and old.sample is not None  # its memory was freed, or is another one
            told.append(Became(unknown or differs, value))
            continue
        kept: Kept = variables[place].kept
        if one.fingerprint is not None:
            kept.last = one.now._replace(fingerprint=value) if type(one.fingerprint) is int else None
        elif shows:
            kept.last = None
        read = one.fingerprint is not None and old.fingerprint is not None
        so = _changed(kept, old, one.now, differs if read else None, shows=shows, due=due[place])
        told.append(Became(so, value))
    return told


def _untouched(held: Sequence[Held], taken: Mapping[int, Was]) -> dict[int, Was]:
    """Those that nobody seems to have written to since they were read as a whole after the last update."""
    last: dict[int, Was] = {}
    for place, now in taken.items():
        known: Was | None = held[place][0].kept.last
        if known is not None and known.version is not None and known.version == now.version:
            last[place] = known
    shows = _shows(taken, last)
    return {place: known for place, known in last.items() if shows[place] is False}


def _shows(was: Sequence[Was] | Mapping[int, Was], now: Mapping[int, Was]) -> dict[int, bool | Pending]:
    """Of each that there is a sample of now whether it differs."""
    pairs = [(old, new.sample) for place, new in now.items() if (old := was[place].sample) is not None]
    return dict(zip(now, differ([(old, new) for old, new in pairs if new is not None]), strict=True))


def _is_settled(held: Held, old: Was, now: Was) -> bool:
    """Whether a parameter whose sample has not changed need not be read as a whole, as nobody has written to it, or as
    it was not read before."""
    untouched = old.version is not None and now.version == old.version
    return old.fingerprint is None or (untouched and bool(held[0].kept.counted or held[1].grad is None))


def _changed(kept: Kept, old: Was, now: Was, differs: bool | None, *, shows: bool, due: bool) -> bool:
    """Whether a large parameter has changed; what its sample was worth is kept. `differs` says it of the whole, None
    where that was not read."""
    if shows:
        kept.shown += 1
        kept.counted = kept.counted is not False and now.version != old.version
        return True
    changed = differs if differs is not None else due and (now.version != old.version or kept.counted is False)
    if changed or differs is None:
        kept.shown = 0
    return changed
