"""Readings of an optimizer's hyperparameters, class and step counters, and of the dtype and `requires_grad` of
parameters."""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from traincheck.sources.modules.variables import VariableCatalog
from traincheck.sources.recording.api_names import class_name
from traincheck.sources.recording.recorder import Recorder
from traincheck.sources.tensors.deferred_values import DeferredValue, is_on_host
from traincheck.sources.tensors.device_transfers import NextSeq
from traincheck.sources.tensors.reading import dtype_name, hidden_from_modes, local_tensor
from traincheck.vocab.bounded_cache import BoundedCache
from traincheck.vocab.builtin_rules import UNREAD_SETTINGS
from traincheck.vocab.demand import Demand
from traincheck.vocab.events import LIVE, LOADED, SAVED, Reading
from traincheck.vocab.facts import Facts, FactValue, facts, merged

SOURCE = "optimizers"
HYPERPARAMETER, OPTIMIZER, STATE = "hyperparameter", "optimizer", "optimizer_state"
PARAMETER_ATTRIBUTES = ("dtype", "requires_grad")
KEYS = "keys"
STEP, LOWEST_STEP = "step", "lowest_step"

_CONTEXTS = {kind: facts(kind=kind) for kind in (HYPERPARAMETER, OPTIMIZER, STATE)}
_PARAMS = ("params", "param_names")
"""Entries of a parameter group that are not settings."""

_PLAIN = (bool, int, float, str)


def plain(value: Any) -> FactValue:
    """Return `value` as a number, a flag, a text or None. Call inside `hidden_from_modes()`.

    A tensor of one element becomes its number, a tuple of plain values its text. Raises TypeError for everything else.
    """
    if value is None or type(value) in _PLAIN:
        scalar: FactValue = value
        return scalar
    for kind in (int, float, str):
        if isinstance(value, kind):  # numbers of numpy, enumerations
            return kind(value)
    dense = local_tensor(value) if isinstance(value, torch.Tensor) else None
    if dense is not None and dense.numel() == 1:
        number: FactValue = dense.item()
        return number
    if isinstance(value, (tuple, list)):
        return str(tuple(plain(entry) for entry in value))
    raise TypeError(type(value).__name__)


def settings(group: Mapping[str, Any]) -> dict[str, FactValue]:
    """The plain entries of a parameter group by name, and under `keys` the names of all its entries."""
    entries: dict[str, FactValue] = {}
    for name, value in group.items():
        if name not in _PARAMS:
            try:
                entries[name] = plain(value)
            except TypeError:
                continue
    entries[KEYS] = "+".join(sorted(str(name) for name in group if name not in _PARAMS))
    return entries


class OptimizerReadings:
    """Takes the readings of optimizers; `call` is the position of the call that they belong to.

    At a step it reports only values that changed since the last reading.
    """

    def __init__(self, catalog: VariableCatalog, demand: Demand, recorder: Recorder) -> None:
        self._catalog = catalog
        self._recorder = recorder
        self._last_settings: weakref.WeakKeyDictionary[Any, list[dict[str, FactValue]]] = weakref.WeakKeyDictionary()
        self._own_state: weakref.WeakKeyDictionary[Any, set[str]] = weakref.WeakKeyDictionary()
        self._attribute_names: weakref.WeakKeyDictionary[Any, frozenset[str]] = weakref.WeakKeyDictionary()
        self.set_demand(demand)

    def set_demand(self, demand: Demand) -> None:
        """From now on take the readings that `demand` requests."""
        self._demand = demand
        self._reads_settings = demand.takes_readings(HYPERPARAMETER)
        self._reads_unread = demand.takes_reading(OPTIMIZER, UNREAD_SETTINGS)
        self._reads_class = demand.takes_reading(OPTIMIZER, "class")
        self._counters = [name for name in (STEP, LOWEST_STEP) if demand.takes_reading(STATE, name)]
        self._attributes = [name for name in PARAMETER_ATTRIBUTES if demand.takes_reading("parameter", name)]

    def forget_reported(self) -> None:
        """Report all values again at the next step."""
        self._last_settings.clear()
        for variable, _ in self._catalog.living():
            for attribute in self._attributes:
                variable.last_readings.pop(attribute, None)

    def step_begins(self, optimizer: Any, name: str, call: int) -> None:
        """Read the hyperparameters, and attributes of all parameters, before a step."""
        first = optimizer not in self._last_settings
        last = self._last_settings.setdefault(optimizer, [])
        if self._reads_class and first:
            self._report(call, name, OPTIMIZER, "class", class_name(type(optimizer)), LIVE)
        if self._reads_settings:
            with hidden_from_modes():
                now = self._settings_of(optimizer)
            if now != last:
                for number, group in enumerate(now):
                    self._report_settings(call, name, number, group, LIVE, last[number] if number < len(last) else {})
                self._last_settings[optimizer] = now
        if self._reads_unread and len(optimizer.__dict__) != len(self._attribute_names.get(optimizer, ())):
            self._report_unread(optimizer, name, call)
        if self._attributes:
            self._read_parameters(call, name)

    def _settings_of(self, optimizer: Any) -> list[dict[str, FactValue]]:
        groups = [settings(group) for group in optimizer.param_groups]
        for name in self._own_state.get(optimizer, ()):
            for group in groups:
                group.pop(name, None)
        return groups

    def _report_unread(self, optimizer: Any, name: str, call: int) -> None:
        """Report settings that the program wrote to the optimizer itself, where torch does not read them."""
        known = self._attribute_names.get(optimizer)
        self._attribute_names[optimizer] = names = frozenset(optimizer.__dict__)
        if known is None and not type(optimizer).__module__.startswith("torch.optim."):
            return  # its class may keep its settings there
        for attribute in sorted(names - (known or frozenset())):
            if any(attribute in group for group in optimizer.param_groups) and not hasattr(type(optimizer), attribute):
                self._report(call, name, OPTIMIZER, UNREAD_SETTINGS, attribute, LIVE)

    def step_ends(self, optimizer: Any, name: str, call: int) -> None:
        """Read the optimizer's step counters after a step."""
        last = self._last_settings.get(optimizer)
        if last and not type(optimizer).__module__.startswith("torch.optim."):
            self._note_own_changes(optimizer, last)
        if not self._counters:
            return
        with hidden_from_modes():
            self._recorder.transfers.when_ready(
                SOURCE,
                _step_counters(optimizer),
                lambda counts, next_seq: self._report_counts(call, name, counts, next_seq),
                events=len(self._counters),
            )

    def _note_own_changes(self, optimizer: Any, last: list[dict[str, FactValue]]) -> None:
        """Note what an optimizer changes itself in its step: that is a state (the `d` of Prodigy) which the program
        does not set, so it is reported no more. Its learning rate is reported with the next step."""
        with hidden_from_modes():
            for before, group in zip(last, optimizer.param_groups, strict=False):
                changed = {name for name, value in settings(group).items() if before.get(name, value) != value}
                if changed - {"lr"}:
                    self._own_state.setdefault(optimizer, set()).update(changed - {"lr"})

    def _report_counts(self, call: int, name: str, counts: Sequence[tuple[float, float]], next_seq: NextSeq) -> None:
        """Report the lowest and the highest step counter."""
        if counts:
            ends = min(low for low, _ in counts), max(high for _, high in counts)
            for attribute, value in zip((LOWEST_STEP, STEP), ends, strict=True):
                if attribute in self._counters:
                    reading = Reading(
                        next_seq(), call, name, STATE, attribute, _as_integer(value), LIVE, _CONTEXTS[STATE]
                    )
                    self._recorder.record_reading(reading)

    def loaded(self, optimizer: Any, name: str, call: int, loaded_groups: Sequence[Mapping[str, FactValue]]) -> None:
        """Report the settings passed to `load_state_dict` (see `settings`), and those of the optimizer after it."""
        self._report_pair(optimizer, name, call, loaded_groups, LOADED)

    def saved(self, optimizer: Any, name: str, call: int, saved_groups: Sequence[Mapping[str, FactValue]]) -> None:
        """Report the settings returned by `state_dict` (see `settings`), and those of the optimizer."""
        self._report_pair(optimizer, name, call, saved_groups, SAVED)

    def _report_pair(
        self, optimizer: Any, name: str, call: int, other: Sequence[Mapping[str, FactValue]], role: str
    ) -> None:
        if not self._reads_settings:
            return
        with hidden_from_modes():
            live = self._settings_of(optimizer)
        own_state = self._own_state.get(optimizer, ())
        for number, group in enumerate(other):
            group = {key: value for key, value in group.items() if key not in own_state}
            self._report_settings(call, name, number, group, role, {})
        for number, own in enumerate(live):
            self._report_settings(call, name, number, own, LIVE, {})

    def _report_settings(
        self,
        call: int,
        name: str,
        number: int,
        group: Mapping[str, FactValue],
        role: str,
        last: Mapping[str, FactValue],
    ) -> None:
        for attribute, value in group.items():
            if attribute in last and last[attribute] == value and type(last[attribute]) is type(value):
                continue
            if self._demand.takes_reading(HYPERPARAMETER, attribute):
                self._report(call, f"{name}.param_groups[{number}]", HYPERPARAMETER, attribute, value, role)

    def _read_parameters(self, call: int, name: str) -> None:
        with hidden_from_modes():
            for variable, tensor in self._catalog.living():
                for attribute in self._attributes:
                    value = tensor.requires_grad if attribute == "requires_grad" else dtype_name(tensor.dtype)
                    if variable.last_readings.get(attribute) != value:
                        variable.last_readings[attribute] = value
                        context = _parameter_context(variable.facts(tensor, name))
                        self._report(call, variable.name, "parameter", attribute, value, LIVE, context)

    def _report(
        self,
        call: int,
        variable: str,
        kind: str,
        attribute: str,
        value: FactValue,
        role: str,
        context: Facts | None = None,
    ) -> None:
        facts = _CONTEXTS[kind] if context is None else context
        self._recorder.record_reading(
            Reading(self._recorder.next_seq(), call, variable, kind, attribute, value, role, facts)
        )


_parameter_contexts: BoundedCache[Facts, Facts] = BoundedCache()


def _parameter_context(base: Facts) -> Facts:
    """`base` with the kind. Equal facts are one object."""
    cached = _parameter_contexts.get(base)
    if cached is None:
        cached = _parameter_contexts.put(base, merged(base, kind="parameter"))
    return cached


def _step_counters(optimizer: Any) -> list[tuple[float, float] | DeferredValue]:
    """The lowest and the highest step counter in the states of an optimizer, for each kind of counter; empty if it has
    none. Counters on accelerators are deferred."""
    counters: list[tuple[float, float] | DeferredValue] = []
    tensors: dict[tuple[torch.device, torch.dtype], list[torch.Tensor]] = {}
    for state in optimizer.state.values():
        step = state.get("step") if isinstance(state, dict) else None
        dense = local_tensor(step) if isinstance(step, torch.Tensor) else None
        if dense is not None and dense.numel() == 1:
            tensors.setdefault((dense.device, dense.dtype), []).append(dense.detach().reshape(()))
        elif isinstance(step, (int, float)):
            counters.append((step, step))
    for steps in tensors.values():
        ends = torch.stack(steps).aminmax()
        if is_on_host(steps[0]):
            counters.append((ends.min.item(), ends.max.item()))
        else:
            counters.append(DeferredValue((ends.min, ends.max), lambda low, high: (low, high)))
    return counters


def _as_integer(number: float) -> int | float:
    return int(number) if float(number).is_integer() else number
