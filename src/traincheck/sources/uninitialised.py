"""Readings of parameters that nothing has written since `Module.to_empty` allocated their memory.

A parameter counts as written if its version or its contents differ at the first call of the model. Writing through
`.data` leaves the version as it was, and fresh memory often holds zeros: so nothing is reported of memory of zeros,
which may have been zeroed with intent.
"""

from __future__ import annotations

import weakref
from typing import Any, NamedTuple

import torch
from torch import nn

from traincheck.sources.base import replace, wrapping
from traincheck.sources.known_modules import plain_name
from traincheck.sources.recorder import Recorder
from traincheck.sources.replaced import Undo
from traincheck.sources.storages import version_of
from traincheck.sources.tensors import beginning, local, unseen
from traincheck.vocab.builtin_rules import PARAMETER, UNINITIALISED
from traincheck.vocab.demand import Demand
from traincheck.vocab.events import Reading
from traincheck.vocab.facts import facts


class _Allocated(NamedTuple):
    """A parameter after `to_empty`: what of it a write changes, and where it was called."""

    parameter: weakref.ref[nn.Parameter]
    versions: tuple[int | None, int | None]
    contents: torch.Tensor
    site: str


class UninitialisedReadings:
    """Follows the parameters that `to_empty` has allocated until their model is called."""

    def __init__(self, demand: Demand, recorder: Recorder) -> None:
        self._recorder = recorder
        self._allocated: dict[int, _Allocated] = {}
        self.ask(demand)

    def ask(self, demand: Demand) -> None:
        """From now on take the readings if `demand` asks for them."""
        self.wanted = demand.wants_reading(PARAMETER, UNINITIALISED)

    def attach(self, undo: Undo, source: str) -> None:
        """Watch `Module.to_empty`, on behalf of `source`."""
        if self.wanted:
            noted = self._recorder.guarded(source, self._note, always=True)
            replace(
                undo, nn.Module, "to_empty", wrapping(lambda me, *a, **k: me, lambda me, _: noted(me), lambda me: None)
            )

    def forget(self) -> None:
        """What has been written since is not known."""
        self._allocated.clear()

    def _note(self, module: nn.Module) -> None:
        site = self._recorder.sites.here()
        with unseen():
            for parameter in module.parameters():
                read = _read(parameter)
                if read is not None:
                    self._allocated[id(parameter)] = _Allocated(weakref.ref(parameter), *read, site)

    def introduce(self, module: nn.Module, outermost: str, call: int) -> None:
        """Report the parameters of a model, which is called for the first time, that nothing has written."""
        if not self._allocated:
            return
        found = []
        with unseen():
            for name, parameter in module.named_parameters():
                known = self._allocated.pop(id(parameter), None)
                if known is not None and known.parameter() is parameter and _is_unwritten(known, _read(parameter)):
                    found.append((f"{outermost}.{plain_name(name)}", known.site))
        for variable, site in found:
            seq, context = self._recorder.next_seq(), facts(site=site)
            self._recorder.reading(Reading(seq, call, variable, PARAMETER, UNINITIALISED, True, context=context))


def _read(parameter: nn.Parameter) -> tuple[tuple[int | None, int | None], torch.Tensor] | None:
    dense: Any = local(parameter)
    if dense is None or not dense.is_floating_point() or not dense.numel():
        return None
    contents = beginning(dense).detach().clone().view(torch.uint8)  # NaN equals nothing
    return (version_of(parameter), version_of(dense)), contents


def _is_unwritten(known: _Allocated, now: tuple[tuple[int | None, int | None], torch.Tensor] | None) -> bool:
    if now is None or None in known.versions or now[0] != known.versions:
        return False
    return torch.equal(known.contents, now[1]) and bool(known.contents.any())
