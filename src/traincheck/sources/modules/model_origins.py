"""Follows where the parameters of a model come from: copies of other parameters, and equal random numbers.

Note [A copy that nobody updates]
`copy.deepcopy(model)` is a model of its own. A program that evaluates such a copy, and trains the original, reports the
same figures for ever. A copy is stale if its parameters have the values with which they were copied, an optimizer holds
the originals, and these have changed. It is an error if an evaluation calls stale copies only: a teacher, a reference
or an average is called beside the trained model, or follows it.

Note [Layers that start alike]
A constructor that sets the seed gives each of its layers the same random numbers. Layers with the same weights learn
the same. They may also be equal on purpose, as copies of one layer. So parameters of a model count if they are equal
and no copies, and the random generator was in the same state when their modules had been made. (A patch of
`torch.manual_seed` would not last: torch replaces this function when it imports its compiler.)

Only the generator of the CPU is read, because to read that of an accelerator would wait for the device. So only modules
whose parameters lie on the CPU when they become part of a model count.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import xxhash
from torch import nn
from torch.nn.modules.module import register_module_module_registration_hook

from traincheck.sources.base import replace, wrapping
from traincheck.sources.modules.construction import PerModule
from traincheck.sources.modules.live_modules import plain_name
from traincheck.sources.modules.variables import VariableCatalog
from traincheck.sources.recording.listener import RecorderListener
from traincheck.sources.recording.patches import TensorReference, UndoStack
from traincheck.sources.recording.recorder import Recorder
from traincheck.sources.recording.step_tracker import Cut
from traincheck.sources.tensors.reading import bytes_of, hidden_from_modes, is_varied, leading_floats, starts_with
from traincheck.vocab.builtin_rules import AVERAGE, MODEL, PARAMETER, SAME_START, STALE
from traincheck.vocab.demand import Demand
from traincheck.vocab.events import EVAL, NO_CALL, Reading
from traincheck.vocab.facts import facts

if TYPE_CHECKING:
    from traincheck.sources.modules.weight_averages import WeightAverages

MAX_COPIES = 100_000
"""Copies of parameters that are followed, the first ones."""

MAX_STATES = 100_000
"""States of the random generator that are remembered, the first ones."""


class _Copied(NamedTuple):
    """A copy of a parameter, the original, and elements of the copy when it was made."""

    copy: TensorReference
    original: TensorReference
    elements: torch.Tensor


class GeneratorStates:
    """The state of the random generator when each module with parameters of its own became part of another one.

    `site` is the first line where an earlier state was back.
    """

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._seen: set[int] = set()
        self._states: PerModule[int] = PerModule()
        self.site = ""

    def module_added(self, parent: nn.Module, name: str, module: Any) -> None:
        """A module becomes part of another one."""
        if module is None or not module._parameters or module in self._states or len(self._seen) > MAX_STATES:
            return
        with hidden_from_modes():
            if not all(parameter is None or parameter.is_cpu for parameter in module._parameters.values()):
                return  # no number of the generator of the CPU is in them
            state = xxhash.xxh3_64_intdigest(torch.get_rng_state().numpy().tobytes())
        if state in self._seen and not self.site:
            self.site = self._recorder.sites.here()
        self._seen.add(state)
        self._states.put(module, state)

    def of(self, module: nn.Module) -> int | None:
        """The state, None if it is unknown."""
        return self._states.get(module)


class ModelOrigins(RecorderListener):
    """Takes readings of models that start with equal layers, of stale copies that an evaluation calls, and of averages.

    `copies` are the copies of parameters by id. While there are none, calls of models need not be noted.
    """

    def __init__(self, source: str, catalog: VariableCatalog, demand: Demand, recorder: Recorder) -> None:
        self._source = source
        self._catalog = catalog
        self._recorder = recorder
        self.copies: dict[int, _Copied] = {}
        self._originals: set[int] = set()
        self._states = GeneratorStates(recorder)
        self._called: dict[int, weakref.ref[nn.Module]] = {}  # the models of this window
        self._reported: set[str] = set()
        self._weight_averages: WeightAverages | None = None
        self.set_demand(demand)

    def set_demand(self, demand: Demand) -> None:
        """From now on take the readings that `demand` requests."""
        self._finds_equal = demand.takes_reading(PARAMETER, SAME_START)
        self._finds_stale = demand.takes_reading(MODEL, STALE)
        self._finds_averages = demand.takes_reading(MODEL, AVERAGE)

    @property
    def enabled(self) -> bool:
        """Whether any of these readings is requested."""
        return self._finds_equal or self._finds_stale or self._finds_averages

    def attach(self, undo: UndoStack) -> None:
        """Observe copies of parameters, and the registration of modules."""
        if not self.enabled:
            return
        guarded = self._recorder.guarded
        copied = guarded(self._source, self._copied, always=True)
        replace(
            undo,
            nn.Parameter,
            "__deepcopy__",
            wrapping(lambda parameter, *_: parameter, copied, lambda parameter: None),
        )
        if self._finds_equal:
            added = guarded(self._source, self._states.module_added, always=True)
            undo.callback(register_module_module_registration_hook(added).remove)
        if self._finds_stale:
            self._judge_evaluation = guarded(self._source, self._report_stale)
            self._recorder.at_end(self._judge_evaluation)

    def _copied(self, original: nn.Parameter, copy: Any) -> None:
        if len(self.copies) >= MAX_COPIES or copy is original:
            return
        with hidden_from_modes():
            elements = leading_floats(copy)
            if elements is not None:
                key, copies = id(copy), self.copies
                copies[key] = _Copied(
                    TensorReference(copy, lambda _: copies.pop(key, None)), TensorReference(original), elements.clone()
                )
                self._originals.add(id(original))
                self._recorder.add_listener(self)
                if self._finds_averages:
                    self._averages.note_copy(copy, original)

    @property
    def _averages(self) -> WeightAverages:
        """What watches averages. It is imported for the first copy, because most programs make none."""
        if self._weight_averages is None:
            from traincheck.sources.modules.weight_averages import WeightAverages

            self._weight_averages = WeightAverages(self._source, self._catalog, self._recorder)
        return self._weight_averages

    # -- layers that start alike -----------------------------------------------------------------------------------

    def note_first_call(self, module: nn.Module, outermost: str, call: int) -> None:
        """A model is called for the first time."""
        if self._finds_averages:
            with hidden_from_modes():
                self._catalog.refresh_holders()
                others = [parameter for parameter in module.parameters() if not self._catalog.is_trained(parameter)]
                if others:
                    self._averages.note_first_call(others)
        if self._finds_equal and self._states.site:
            self._report_equal(module, outermost, call)

    def _report_equal(self, module: nn.Module, outermost: str, call: int) -> None:
        """Report the parameters of a new model that have the same random numbers."""
        by_start: dict[tuple[tuple[int, ...], int | None, bytes], dict[int, str]] = {}
        with hidden_from_modes():
            for path, inner in module.named_modules():
                state = self._states.of(inner)
                for name, parameter in inner._parameters.items() if state is not None else ():
                    elements = None if parameter is None or self._is_copied(parameter) else leading_floats(parameter)
                    if elements is not None and is_varied(elements):
                        start = tuple(elements.shape), state, bytes_of(elements)
                        by_start.setdefault(start, {}).setdefault(id(parameter), plain_name(f"{path}.{name}"))
        context = facts(site=self._states.site)
        for names in by_start.values():  # a parameter of two modules is one
            for name in names.values() if len(names) > 1 else ():
                seq, variable = self._recorder.next_seq(), f"{outermost}.{name}"
                reading = Reading(seq, call, variable, PARAMETER, SAME_START, len(names), context=context)
                self._recorder.record_reading(reading)

    def _is_copied(self, parameter: nn.Parameter) -> bool:
        return id(parameter) in self.copies or id(parameter) in self._originals

    # -- stale copies ----------------------------------------------------------------------------------------------

    def note_call(self, module: nn.Module) -> None:
        """Note that a model is called, where there are copies."""
        if self._finds_stale:
            self._called.setdefault(id(module), weakref.ref(module))

    def _original_of_stale(self, module: nn.Module) -> str:
        """The name of the trained model of which a stale copy is one; empty for another model."""
        trained, differ = "", False
        for parameter in module.parameters():
            copied = self.copies.get(id(parameter))
            original = None if copied is None else copied.original()
            if copied is None or original is None or not starts_with(parameter, copied.elements):
                return ""
            variable = self._catalog.find(original)
            if variable is not None and variable.holders:
                trained = trained or variable.name.partition(".")[0]
                differ = differ or not starts_with(original, copied.elements)
        return trained if differ else ""

    def window_closing(self, cut: Cut) -> None:
        if cut.stage == EVAL and self._called:
            self._judge_evaluation()
        self._called = {}

    def _report_stale(self) -> None:
        """Report the copies of an evaluation, or of what follows the training, that called stale ones only."""
        models = [module for reference in self._called.values() if (module := reference()) is not None]
        with hidden_from_modes():
            self._catalog.refresh_holders()
            originals = [self._original_of_stale(module) for module in models]
        if not all(originals):
            return
        for module, original in zip(models, originals, strict=True):
            name = self._catalog.module_name(module)
            if name not in self._reported:
                self._reported.add(name)
                reading = Reading(self._recorder.next_seq(), NO_CALL, name, MODEL, STALE, original)
                self._recorder.record_reading(reading)
