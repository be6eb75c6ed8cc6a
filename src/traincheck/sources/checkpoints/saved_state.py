"""Reads parameters and buffers in a saved or loaded state, and their live counterparts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from traincheck.sources.checkpoints.state_dicts import (
    BUFFER,
    PARAMETER,
    Member,
    ModuleState,
    Pair,
    fingerprint_pairs,
    is_fresh,
    sharded,
)
from traincheck.sources.modules.live_modules import plain_name
from traincheck.sources.modules.variables import NOBODY, THIS, VariableCatalog
from traincheck.sources.recording.recorder import Recorder
from traincheck.sources.tensors.reading import dtype_name, shape_of
from traincheck.vocab.bounded_cache import BoundedCache
from traincheck.vocab.demand import Demand
from traincheck.vocab.events import LIVE, SAVED, Reading
from traincheck.vocab.facts import Facts, FactValue, facts, merged

DATA, DTYPE, SHAPE, REQUIRES_GRAD, PRESENT = "data", "dtype", "shape", "requires_grad", "present"
ATTRIBUTES = (DATA, DTYPE, SHAPE, REQUIRES_GRAD, PRESENT)

Prints = tuple["int | None", "int | None"]


class SavedStateReadings:
    """Records, for each parameter and persistent buffer of a module, its live value and its value in a saved state.

    The attributes are data (a fingerprint), dtype and shape; requires_grad of the live tensor; `present` of the copy. A
    tensor missing from the copy has no other reading there.
    """

    def __init__(self, catalog: VariableCatalog, demand: Demand, recorder: Recorder) -> None:
        self._catalog = catalog
        self._recorder = recorder
        self._contexts: BoundedCache[tuple[Any, ...], Facts] = BoundedCache()
        self._attributes = {
            kind: frozenset(name for name in ATTRIBUTES if demand.takes_reading(kind, name))
            for kind in (PARAMETER, BUFFER)
        }

    @property
    def should_read(self) -> bool:
        """Whether any of these readings is requested."""
        return any(self._attributes.values())

    def record(
        self,
        call: int,
        matched: ModuleState,
        role: str,
        *,
        fresh: bool | None = None,
        missing: Sequence[str] | None = None,
    ) -> None:
        """Record every member of `matched`, in `call`. Call under `hidden_from_modes`.

        `role` is the role of the copy, saved or loaded. If `fresh` is None, TrainCheck determines whether a saved state
        is fresh. `missing` are the names that `load_state_dict` reported as missing; all others were present, under any
        name.
        """
        pairs = list(matched.pairs())
        if any(self._catalog.find(member.tensor) is None for member in matched.members if member.kind == PARAMETER):
            self._catalog.refresh_modules()
        held = [self._held(pair.member) for pair in pairs]
        values: list[Prints] = [(None, None)] * len(pairs)
        if (role == SAVED and fresh is None) or any(DATA in attributes for attributes in self._attributes.values()):
            values = fingerprint_pairs(pairs)
        if role == SAVED and fresh is None:
            fresh = is_fresh(pairs, held, values)
        for index, pair in enumerate(pairs):
            variable = self._name(matched, pair)
            context = self._context(pair.member, held[index], fresh if role == SAVED else None)
            is_present = pair.other is not None or (missing is not None and not set(pair.member.names) & set(missing))
            for attribute, value, reading_role in _readings(pair, values[index], role, present=is_present):
                if attribute in self._attributes[pair.member.kind]:
                    self._recorder.record_reading(
                        Reading(
                            self._recorder.next_seq(),
                            call,
                            variable,
                            pair.member.kind,
                            attribute,
                            value,
                            reading_role,
                            context,
                        )
                    )

    def _held(self, member: Member) -> bool:
        variable = self._catalog.find(member.tensor)
        return variable is not None and bool(variable.holders)

    def _name(self, matched: ModuleState, pair: Pair) -> str:
        variable = self._catalog.find(pair.member.tensor)
        name = plain_name(pair.name)
        if variable is not None and name == pair.member.names[0]:
            return variable.name
        return f"{self._catalog.module_name(matched.module)}.{name}"

    def _context(self, member: Member, held: bool, fresh: bool | None) -> Facts:
        """Return the facts of the variable, with its kind and freshness; equal contexts are the same object."""
        variable = self._catalog.find(member.tensor)
        if variable is not None:
            base = variable.facts(member.tensor, variable.owner)
        else:
            base = facts(
                requires_grad=member.tensor.requires_grad,
                held=THIS if held else NOBODY,
                owned=True,
                tied=member.tied,
            )
        key = (base, member.kind, fresh)
        context = self._contexts.get(key)
        if context is None:
            extra: dict[str, FactValue] = {} if fresh is None else {"fresh": fresh}
            context = self._contexts.put(key, merged(base, kind=member.kind, **extra))
        return context


def _readings(pair: Pair, prints: Prints, role: str, *, present: bool) -> Iterator[tuple[str, FactValue, str]]:
    """Yield the attributes of a member and its counterpart, with the role of each."""
    member, _, other = pair
    live = member.tensor
    yield PRESENT, present, role
    yield REQUIRES_GRAD, live.requires_grad, LIVE
    whole = other is None or not _may_be_shard(live, other)
    for tensor, value, reading_role in ((live, prints[0], LIVE), (other, prints[1], role)):
        if tensor is not None:
            yield DTYPE, dtype_name(tensor.dtype), reading_role
            if whole:
                shape = shape_of(tensor)
                if shape is not None:
                    yield SHAPE, "x".join(map(str, shape)) or "scalar", reading_role
                if value is not None:
                    yield DATA, value, reading_role


def _may_be_shard(live: torch.Tensor, other: torch.Tensor) -> bool:
    """Return whether one tensor may be a shard of the other: in a job of several ranks, sizes differ then."""
    if sharded(live) is not sharded(other):
        return True
    if not torch.distributed.is_available() or not torch.distributed.is_initialized():
        return False
    return bool(torch.distributed.get_world_size() > 1 and live.numel() != other.numel())
