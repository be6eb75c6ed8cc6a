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
from typing import NamedTuple

import torch

from traincheck.sources.gradients import Held
from traincheck.sources.spot_checks import LARGE, differ, sample
from traincheck.sources.storages import version_of
from traincheck.sources.tensors import fingerprints

TRUSTED = 3
"""Updates in a row that the sample of a parameter must have shown before it stands for the whole."""


class Was(NamedTuple):
    """What a parameter was before an update. `fingerprint` is None where it could not be read, or was read in part:
    `sample` are some elements of a large one."""

    fingerprint: int | None
    sample: torch.Tensor | None = None
    version: int | None = None


class Became(NamedTuple):
    """What it was after the update, and whether that is something else."""

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
        # Of what no optimizer holds fingerprints are compared when the step is over, see settling.py.
        if variable.kept.shown >= TRUSTED and now.version is not None and variable.holders and not whole:
            found[place] = now
    found |= _untouched(held, {place: now for place, now in taken.items() if place not in found})
    unread = [place for place in range(len(held)) if place not in found]
    for place, value in zip(unread, fingerprints([held[place][1] for place in unread]), strict=True):
        found[place] = taken[place]._replace(fingerprint=value) if place in taken else Was(value)
    return [found[place] for place in range(len(held))]


def after(held: Sequence[Held], was: Sequence[Was], due: Sequence[bool], *, whole: bool) -> list[Became]:
    """What an update made of them; with `whole` the fingerprint of each. `due` says of each whether the update had
    reason to change it. Call under `unseen`."""
    now: dict[int, Was] = {}
    for place, old in enumerate(was):
        elements = None if old.sample is None else sample(held[place][1])
        if elements is not None:
            now[place] = Was(None, elements, version_of(held[place][1]))
    shows = _shows(was, now)
    read = [
        place
        for place in range(len(held))
        if whole or place not in now or not (shows[place] or _is_settled(held[place], was[place], now[place]))
    ]
    values = dict(zip(read, fingerprints([held[place][1] for place in read]), strict=True))
    found: list[Became] = []
    for place, old in enumerate(was):
        value = values.get(place)
        if place not in now:
            unknown = old.fingerprint is None and old.sample is not None  # its memory was freed, or is another one
            found.append(Became(unknown or old.fingerprint != value, value))
            continue
        kept: Kept = held[place][0].kept
        if place in values:
            kept.last = now[place]._replace(fingerprint=value)
        elif shows[place]:
            kept.last = None
        so = _changed(kept, old, now[place], value, shows=shows[place], due=due[place])
        found.append(Became(so, value))
    return found


def _untouched(held: Sequence[Held], taken: Mapping[int, Was]) -> dict[int, Was]:
    """Those that nobody seems to have written to since they were read as a whole after the last update."""
    last: dict[int, Was] = {}
    for place, now in taken.items():
        known: Was | None = held[place][0].kept.last
        if known is not None and known.version is not None and known.version == now.version:
            last[place] = known
    shows = _shows(taken, last)
    return {place: known for place, known in last.items() if not shows[place]}


def _shows(was: Sequence[Was] | Mapping[int, Was], now: Mapping[int, Was]) -> dict[int, bool]:
    """Of each that there is a sample of now whether it differs."""
    pairs = [(old, new.sample) for place, new in now.items() if (old := was[place].sample) is not None]
    return dict(zip(now, differ([(old, new) for old, new in pairs if new is not None]), strict=True))


def _is_settled(held: Held, old: Was, now: Was) -> bool:
    """Whether a parameter whose sample has not changed need not be read as a whole, as nobody has written to it, or as
    it was not read before."""
    untouched = old.version is not None and now.version == old.version
    return old.fingerprint is None or (untouched and bool(held[0].kept.counted or held[1].grad is None))


def _changed(kept: Kept, old: Was, now: Was, value: int | None, *, shows: bool, due: bool) -> bool:
    """Whether a large parameter has changed; what its sample was worth is kept."""
    if shows:
        kept.shown += 1
        kept.counted = kept.counted is not False and now.version != old.version
        return True
    if value is not None and old.fingerprint is not None:
        changed = value != old.fingerprint
    else:
        changed = due and (now.version != old.version or kept.counted is False)
    if changed or value is None:
        kept.shown = 0
    return changed
