"""Reports how a program treats the parameters of each model, and what its modules are, at some updates.

Note [Programs that train again]
A program may train a second model, or the same one again after a restart in the same process. Between two updates of
the schedule, such a phase would not be described. A checked run takes descriptions again after a gap, so it would
describe a phase that the good runs did not, and report it. The schedule therefore begins again with each new optimizer.
For programs that build many optimizers, the schedule applies to their number as well.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

from traincheck.sources.modules.module_attributes import ModuleAttributes
from traincheck.sources.modules.variables import VariableCatalog
from traincheck.sources.optimizers.hyperparameters import SOURCE, settings
from traincheck.sources.optimizers.parameter_treatment import ParameterTreatment
from traincheck.sources.recording.descriptions import Descriptions, Schedule
from traincheck.sources.recording.recorder import Recorder
from traincheck.sources.tensors.device_transfers import NextSeq
from traincheck.sources.tensors.reading import hidden_from_modes
from traincheck.vocab.demand import MODEL, MODULES, PARAMETERS
from traincheck.vocab.facts import FactValue

SCHEDULE = Schedule(often=5, seldom=50)
"""Of the updates at which models are described, and of the optimizers with which it begins again."""
MAX_MODELS = 32
"""Descriptions that are reported at an update. Those of other models follow at later ones."""


class ModelDescriptions:
    """Takes a reading for each model whose description is new."""

    def __init__(self, catalog: VariableCatalog, recorder: Recorder) -> None:
        self._catalog = catalog
        self._recorder = recorder
        self._first_settings: weakref.WeakKeyDictionary[Any, list[dict[str, FactValue]]] = weakref.WeakKeyDictionary()
        self._module_attributes = ModuleAttributes()
        self._treatment = ParameterTreatment(catalog)
        self._descriptions = Descriptions(recorder, MODEL)
        self._optimizers: weakref.WeakSet[Any] = weakref.WeakSet()
        self._built = self._updates = 0

    def forget_reported(self) -> None:
        """Report descriptions again at the next update that no reader of windows has got."""
        if self._descriptions.forget_unread():
            self._updates = 0

    def update_begins(self, call: int, optimizer: Any, attributes: Sequence[str]) -> None:
        """Describe these attributes of the models, if this is an update at which they are described."""
        if optimizer not in self._optimizers:
            self._optimizers.add(optimizer)
            self._built += 1
            if SCHEDULE.includes(self._built):
                self._updates = 0
        self._updates += 1
        if SCHEDULE.includes(self._updates):
            self._describe_models(call, attributes)

    def _describe_models(self, call: int, attributes: Sequence[str]) -> None:
        with hidden_from_modes():
            new = self._treatment.first_values() if PARAMETERS in attributes else {}

            def conclude(fetched: list[int | None], next_seq: NextSeq) -> None:
                self._treatment.keep_first_values(dict(zip(new, fetched, strict=True)))
                self._report(call, attributes, next_seq)

            self._recorder.transfers.when_ready(SOURCE, list(new.values()), conclude, events=MAX_MODELS)

    def _report(self, call: int, attributes: Sequence[str], next_seq: NextSeq) -> None:
        """Report the descriptions that are new."""
        descriptions: dict[str, dict[str, tuple[str, ...]]] = {}
        with hidden_from_modes():
            groups_by_optimizer = {name: self._at_first(optimizer) for name, optimizer in self._catalog.optimizers()}
            if PARAMETERS in attributes:
                descriptions[PARAMETERS] = self._treatment.describe(groups_by_optimizer)
            if MODULES in attributes:
                descriptions[MODULES] = self._module_attributes.describe(self._catalog)
        left = MAX_MODELS
        for attribute, lines_by_model in descriptions.items():
            for model, lines in lines_by_model.items():
                if left:
                    left -= self._descriptions.report(call, model, attribute, "\n".join(lines), next_seq=next_seq)

    def _at_first(self, optimizer: Any) -> list[dict[str, FactValue]]:
        """The settings of each group of an optimizer when it was first seen here."""
        groups = self._first_settings.setdefault(optimizer, [])
        groups += [settings(group) for group in optimizer.param_groups[len(groups) :]]
        return groups
