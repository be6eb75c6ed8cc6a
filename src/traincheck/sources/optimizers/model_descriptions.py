"""Reports how a program treats the parameters of each model, and what its modules are, at some updates."""

from __future__ import annotations

import weakref
from typing import Any

from traincheck.sources.modules.variables import VariableCatalog
from traincheck.sources.optimizers.hyperparameters import SOURCE, settings
from traincheck.sources.recording.recorder import Recorder
from traincheck.sources.tensors.device_transfers import NextSeq
from traincheck.sources.tensors.reading import hidden_from_modes
from traincheck.vocab.demand import MODEL, MODULES, PARAMETERS, Demand
from traincheck.vocab.events import Reading
from traincheck.vocab.facts import FactValue, facts

OFTEN, SELDOM = 5, 50
"""Models are described at the first updates, then at one in `SELDOM`."""
MAX_MODELS = 32
"""Descriptions that are reported at an update. Those of other models follow at later ones."""

_CONTEXT = facts(kind=MODEL)


class ModelDescriptions:
    """Takes a reading for each model whose description is new."""

    def __init__(self, catalog: VariableCatalog, demand: Demand, recorder: Recorder) -> None:
        self._catalog = catalog
        self._recorder = recorder
        self._first_settings: weakref.WeakKeyDictionary[Any, list[dict[str, FactValue]]] = weakref.WeakKeyDictionary()
        self._module_attributes: Any = None  # neither is imported before the first update
        self._treatment: Any = None
        self.set_demand(demand)
        self.forget_reported()

    def set_demand(self, demand: Demand) -> None:
        """From now on take the readings that `demand` requests."""
        self._described = [name for name in (PARAMETERS, MODULES) if demand.takes_reading(MODEL, name)]

    def forget_reported(self) -> None:
        """Report all descriptions again at the next update."""
        self._reported: set[tuple[str, str, tuple[str, ...]]] = set()
        self._updates = 0

    def update_begins(self, call: int) -> None:
        """Describe the models, if this is an update at which they are described."""
        if not self._described:
            return
        self._updates += 1
        if self._updates <= OFTEN or self._updates % SELDOM == 0:
            self._describe_models(call)

    def _describe_models(self, call: int) -> None:
        from traincheck.sources.modules.module_attributes import ModuleAttributes
        from traincheck.sources.optimizers.parameter_treatment import ParameterTreatment

        if self._module_attributes is None:
            self._module_attributes, self._treatment = ModuleAttributes(), ParameterTreatment(self._catalog)
        with hidden_from_modes():
            new = self._treatment.first_values() if PARAMETERS in self._described else {}

            def conclude(fetched: list[int | None], next_seq: NextSeq) -> None:
                self._treatment.keep_first_values(dict(zip(new, fetched, strict=True)))
                self._report(call, next_seq)

            self._recorder.transfers.when_ready(SOURCE, list(new.values()), conclude, events=MAX_MODELS)

    def _report(self, call: int, next_seq: NextSeq) -> None:
        """Report the descriptions that are new."""
        descriptions: dict[str, dict[str, tuple[str, ...]]] = {}
        with hidden_from_modes():
            groups_by_optimizer = {name: self._at_first(optimizer) for name, optimizer in self._catalog.optimizers()}
            if PARAMETERS in self._described:
                descriptions[PARAMETERS] = self._treatment.describe(groups_by_optimizer)
            if MODULES in self._described:
                descriptions[MODULES] = self._module_attributes.describe(self._catalog)
        new = [
            (attribute, model, lines)
            for attribute, lines_by_model in descriptions.items()
            for model, lines in lines_by_model.items()
            if (attribute, model, lines) not in self._reported
        ]
        for attribute, model, lines in new[:MAX_MODELS]:
            self._reported.add((attribute, model, lines))
            reading = Reading(next_seq(), call, model, MODEL, attribute, "\n".join(lines), context=_CONTEXT)
            self._recorder.record_reading(reading)

    def _at_first(self, optimizer: Any) -> list[dict[str, FactValue]]:
        """The settings of each group of an optimizer when it was first seen here."""
        groups = self._first_settings.setdefault(optimizer, [])
        groups += [settings(group) for group in optimizer.param_groups[len(groups) :]]
        return groups
