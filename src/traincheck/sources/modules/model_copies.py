"""Source `copies`: compares the weights of copies of a model with those of the model that is trained.

A copy is a model that no optimizer of its process holds, and that has the parameters of a trained model: a reference, a
target network, or the model of a rollout worker in another process of the run. When a copy is called without gradients,
and its weights or those of the trained model are new, they are compared. A line says whether the copy has the newest
weights of the trained model, earlier ones, its own first ones, or some that the trained model never had.

Note [Weights by a sample]
Weights are compared by up to 1,024 elements of each parameter, rounded to bfloat16. So a copy in lower precision equals
its model. An update changes some of so many elements, even if most changes are lost in rounding.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any, Protocol

import torch
import xxhash
from torch import nn

from traincheck.sources.modules.live_modules import plain_name, wrapped_model
from traincheck.sources.modules.module_calls import ModuleCalls
from traincheck.sources.modules.variables import VariableCatalog
from traincheck.sources.recording.descriptions import Descriptions
from traincheck.sources.recording.listener import RecorderListener
from traincheck.sources.recording.patches import UndoStack
from traincheck.sources.recording.recorder import Recorder
from traincheck.sources.tensors.reading import hidden_from_modes
from traincheck.sources.tensors.spread_elements import readable, spread_elements
from traincheck.sources.tensors.storages import version_of
from traincheck.vocab.demand import MODEL, WEIGHTS, Demand
from traincheck.vocab.events import NO_CALL

NEWEST = "it has the newest weights of the trained model"
EARLIER = "it has earlier weights of the trained model"
FIRST = "it has the weights that it had at first"
OTHER = "it has weights that the trained model never had"

OFTEN, SELDOM = 20, 50
"""A search for other processes takes place at the first calls and updates, and then at one in `SELDOM`."""


MAX_KNOWN = 256
"""Earlier weights of a model that are remembered."""


class Versions(Protocol):
    """What processes of a run know of each other's models, see trace/weight_versions.py."""

    def announce(self) -> None: ...
    def look_for_others(self, *, search: bool) -> bool: ...
    def publish(self, signature: str, digest: str) -> None: ...
    def state(self) -> tuple[int, ...]: ...
    def of_others(self) -> list[Any]: ...


class _Copy:
    """A model: its state when it was last compared, and its first digest."""

    def __init__(self) -> None:
        self.state: tuple[object, ...] = ()
        self.first = ""


class ModelCopies(RecorderListener):
    """Takes a reading for each model and line that is new. `versions` connects it with other processes of the run."""

    name = "copies"

    def __init__(self, calls: ModuleCalls, catalog: VariableCatalog, versions: Versions | None) -> None:
        self._calls = calls
        self._catalog = catalog
        self._versions = versions
        self._copies: dict[str, _Copy] = {}  # by the name of the model
        self._history: dict[str, dict[str, int]] = {}  # digests of trained models by signature, with the update
        self._updates = self._looks = 0
        self._lines: Descriptions
        self._demanded = False

    def offers(self) -> str | None:
        return None

    def attach(self, demand: Demand, recorder: Recorder) -> ExitStack:
        undo = UndoStack()
        self._recorder = recorder
        if not recorder.reattaching:
            self._lines = Descriptions(recorder, MODEL)
        self._demanded = demand.takes_reading(MODEL, WEIGHTS)
        if self._demanded:
            self._note_update = recorder.guarded(self.name, self._publish)
            recorder.after_gap(self.name, self._lines.forget_unread, undo=undo, repeatable=True)
            recorder.add_listener(self)
            self._calls.add_listener(recorder.guarded(self.name, self._begins), outermost=True)
        return undo

    # -- the trained model -----------------------------------------------------------------------------------------

    def optimizer_stepped(self) -> None:
        self._updates = self._recorder.steps.updates_made
        if self._demanded:
            self._note_update()

    def _publish(self) -> None:
        """Keep the weights after an update, if there is a copy of the model here or in another process."""
        shared = self._versions is not None and self._versions.look_for_others(search=_is_time(self._updates))
        if not shared and not self._history:
            return
        with hidden_from_modes():
            trained = list(self._trained())
        for signature, digest in trained:
            if shared or signature in self._history:
                history = self._history.setdefault(signature, {})
                history[digest] = self._updates
                if len(history) > MAX_KNOWN:
                    history.pop(next(iter(history)))
            if shared and self._versions is not None:
                self._versions.publish(signature, digest)

    def _trained(self) -> Iterator[tuple[str, str]]:
        """The signature and the digest of each model that an optimizer of this process holds."""
        self._catalog.refresh_holders()
        for model in self._catalog.models():
            if self._is_held(model):
                version = _version(model)
                if version is not None:
                    yield version

    def _is_held(self, model: nn.Module) -> bool:
        variables = (self._catalog.find(parameter) for parameter in model.parameters())
        return any(variable is not None and variable.holders for variable in variables)

    # -- its copies ------------------------------------------------------------------------------------------------

    def _begins(self, module: nn.Module, args: Any) -> None:
        if torch.is_grad_enabled() or torch.jit.is_tracing():
            return
        with hidden_from_modes():
            self._look_at(module)

    def _look_at(self, module: nn.Module) -> None:
        """Compare a model that is called without gradients, if it or a trained model may have changed."""
        model = wrapped_model(module)
        first = next(iter(model.parameters()), None)
        if first is None or nn.parameter.is_lazy(first):
            return
        name = self._catalog.model_name(model)
        copy = self._copies.get(name)
        if copy is None:
            copy = self._copies[name] = _Copy()
        worker = not self._recorder.steps.optimizers
        versions = self._versions if worker and self._has_others() else None
        state = (self._updates, version_of(first), versions.state() if versions is not None else ())
        if copy.state == state:
            return
        copy.state = state
        self._catalog.refresh_holders()
        if not self._is_held(model):
            self._compare(name, model, copy, versions)

    def _has_others(self) -> bool:
        if self._versions is None:
            return False
        self._looks += 1
        if self._looks == 1:
            self._versions.announce()
        return self._versions.look_for_others(search=_is_time(self._looks))

    def _compare(self, name: str, model: nn.Module, copy: _Copy, versions: Versions | None) -> None:
        version = _version(model)
        if version is None:
            return
        signature, digest = version
        copy.first = copy.first or digest
        history = self._history.get(signature)
        if versions is not None:
            published = [version.digest for version in versions.of_others() if version.signature == signature]
            history = dict(zip(published, range(len(published)), strict=True))
        elif history is None:
            history = self._history[signature] = {}
            for trained, newest in self._trained():
                if trained == signature:
                    history[newest] = self._updates
        if history:
            line = _line(digest, copy.first, history)
            call = self._recorder.innermost_call()
            self._lines.report(NO_CALL if call is None else call.seq, name, WEIGHTS, line)


def _is_time(number: int) -> bool:
    return number <= OFTEN or number % SELDOM == 0


def _line(digest: str, first: str, history: dict[str, int]) -> str:
    number = history.get(digest)
    if number is not None and number == max(history.values()):
        return NEWEST
    if digest == first:
        return FIRST
    return OTHER if number is None else EARLIER


def _version(model: nn.Module) -> tuple[str, str] | None:
    """The signature of the parameters of a model, and a digest of their values; None if some cannot be read."""
    with hidden_from_modes():
        named = sorted((plain_name(name), parameter) for name, parameter in model.named_parameters())
        if any(nn.parameter.is_lazy(parameter) for _, parameter in named):
            return None
        tensors = [readable(parameter.detach()) for _, parameter in named]
        present = [tensor for tensor in tensors if tensor is not None]
        if not present or len(present) < len(tensors):
            return None
        rounded = spread_elements(present).to(torch.bfloat16).view(torch.int16).cpu()
        digest = xxhash.xxh3_64_hexdigest(rounded.numpy().tobytes())
    form = "\n".join(f"{name} {tuple(parameter.shape)}" for name, parameter in named)
    return hashlib.sha256(form.encode()).hexdigest()[:16], digest
