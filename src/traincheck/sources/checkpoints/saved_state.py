"""Readings of parameters and buffers where a program saves or loads them: each as it is live and in the copy."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from traincheck.sources.checkpoints.state_dicts import (
    BUFFER,
    PARAMETER,
    Member,
    Owned,
    Pair,
    compared,
    is_fresh,
    sharded,
)
from traincheck.sources.modules.variables import NOBODY, THIS, Catalog
from traincheck.sources.optimizers.hyperparameters import dtype_name
from traincheck.sources.recording.recorder import Recorder
from traincheck.sources.tensors.reading import shape_of
from traincheck.vocab.bounded_cache import Kept
from traincheck.vocab.demand import Demand
from traincheck.vocab.events import LIVE, SAVED, Reading
from traincheck.vocab.facts import Facts, FactValue, facts, merged

DATA, DTYPE, SHAPE, REQUIRES_GRAD, PRESENT = "data", "dtype", "shape", "requires_grad", "present"
ATTRIBUTES = (DATA, DTYPE, SHAPE, REQUIRES_GRAD, PRESENT)

Prints = tuple["int | None", "int | None"]


class StateReadings:
    """Tells, for each parameter and persistent buffer of a module, how it is live and how it is in a state of it.

    The attributes are data (a fingerprint), dtype, shape; requires_grad of the live one; `present` of the copy. One
    that is missing from the copy has no other reading there.
    """

    def __init__(self, catalog: Catalog, demand: Demand, recorder: Recorder) -> None:
        self._catalog = catalog
        self._recorder = recorder
        self._told: Kept[tuple[Any, ...], Facts] = Kept()
        self._attributes = {
            kind: frozenset(name for name in ATTRIBUTES if demand.wants_reading(kind, name))
            for kind in (PARAMETER, BUFFER)
        }

    @property
    def wanted(self) -> bool:
        """Whether any of these readings is to be taken."""
        return any(self._attributes.values())

    def tell(
        self,
        call: int,
        owned: Owned,
        role: str,
        *,
        fresh: bool | None = None,
        missing: Sequence[str] | None = None,
    ) -> None:
        """Tell of every member of `owned`, taken in `call`; call under `unseen`.

        `role` is that of the copy, saved or loaded. Whether what is saved is fresh is found out where it is not given.
        `missing` are the names that `load_state_dict` reported as missing: all others were there, under any name.
        """
        pairs = list(owned.pairs())
        if any(self._catalog.find(member.tensor) is None for member in owned.members if member.kind == PARAMETER):
            self._catalog.refresh_modules()
        held = [self._held(pair.member) for pair in pairs]
        values: list[Prints] = [(None, None)] * len(pairs)
        if (role == SAVED and fresh is None) or any(DATA in wanted for wanted in self._attributes.values()):
            values = compared(pairs)
        if role == SAVED and fresh is None:
            fresh = is_fresh(pairs, held, values)
        for place, pair in enumerate(pairs):
            variable = self._name(owned, pair)
            context = self._context(pair.member, held[place], fresh if role == SAVED else None)
            there = pair.other is not None or (missing is not None and not set(pair.member.names) & set(missing))
            for attribute, value, of in _readings(pair, values[place], role, present=there):
                if attribute in self._attributes[pair.member.kind]:
                    self._recorder.reading(
                        Reading(
                            self._recorder.next_seq(), call, variable, pair.member.kind, attribute, value, of, context
                        )
                    )

    def _held(self, member: Member) -> bool:
        variable = self._catalog.find(member.tensor)
        return variable is not None and bool(variable.holders)

    def _name(self, owned: Owned, pair: Pair) -> str:
        variable = self._catalog.find(pair.member.tensor)
        if variable is not None and pair.name == pair.member.names[0]:
            return variable.name
        return f"{self._catalog.module_name(owned.module)}.{pair.name}"

    def _context(self, member: Member, held: bool, fresh: bool | None) -> Facts:
        """The facts of the variable, with its kind and whether the copy is fresh; equal ones are the same object."""
        variable = self._catalog.find(member.tensor)
        if variable is not None:
            base = variable.facts(member.tensor, variable.owner)
        else:
            base = facts(
                requires_grad=member.tensor.requires_grad,
                held=THIS if held else NOBODY,
                owned=True,
                tied=len(member.names) > 1,
            )
        key = (base, member.kind, fresh)
        found = self._told.get(key)
        if found is None:
            extra: dict[str, FactValue] = {} if fresh is None else {"fresh": fresh}
            found = self._told.put(key, merged(base, kind=member.kind, **extra))
        return found


def _readings(pair: Pair, prints: Prints, role: str, *, present: bool) -> Iterator[tuple[str, FactValue, str]]:
    """The attributes of a member and of its counterpart, with the role of each."""
    member, _, other = pair
    live = member.tensor
    yield PRESENT, present, role
    yield REQUIRES_GRAD, live.requires_grad, LIVE
    whole = other is None or not _of_another_part(live, other)
    for tensor, value, of in ((live, prints[0], LIVE), (other, prints[1], role)):
        if tensor is not None:
            yield DTYPE, dtype_name(tensor.dtype), of
            if whole:
                shape = shape_of(tensor)
                if shape is not None:
                    yield SHAPE, "x".join(map(str, shape)) or "scalar", of
                if value is not None:
                    yield DATA, value, of


def _of_another_part(live: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether one of the two may be a shard: in a group of processes, tensors of other sizes are no copies."""
    if sharded(live) is not sharded(other):
        return True
    if not torch.distributed.is_available() or not torch.distributed.is_initialized():
        return False
    return bool(torch.distributed.get_world_size() > 1 and live.numel() != other.numel())
