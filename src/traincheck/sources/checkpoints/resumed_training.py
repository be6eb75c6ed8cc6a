"""Finds optimizers that begin without the state that the checkpoint of their model holds.

A program loads the weights of a checkpoint and goes on training. The file also holds the state of an optimizer, but the
program loads it never, or into an optimizer that it then builds again. Momentum and step counts are lost.

Fine-tuning takes only weights as well. So the first update of a module whose parameters are those of a file, by an
optimizer that has no state, the settings of the saved one and as many parameters, needs one of these signs:
* The program restores another part of the file: a scheduler, a scaler, or an optimizer that does not step.
* The program wrote the state itself after the last update, and the optimizer existed before the weights were loaded.
  The relation then asks whether it learns from a loader of that training (relations/periodic/reported_errors.py).
* The program later writes the next file of the same series, and a number in it counts on from that of the loaded file.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import nn

from traincheck.sources.checkpoints.resumed_schedules import (
    POSITION,
    Restarting,
    RestoredRates,
    beginning,
    restored_rates,
    unrestored,
)
from traincheck.sources.checkpoints.saved_entries import file_name, path_of
from traincheck.sources.checkpoints.state_dicts import members, state_mappings
from traincheck.sources.optimizers.hyperparameters import KEYS, settings
from traincheck.sources.recording.patches import TensorReference
from traincheck.sources.tensors.reading import bytes_of, first_elements, leading_floats, local_tensor, starts_with
from traincheck.vocab.demand import RESTARTED, RESUMED, RESUMED_HERE
from traincheck.vocab.facts import FactValue

MAX_FILES, MAX_SAVES, MAX_DEPTH = 8, 16, 3
"""Loaded files and saved states that are remembered, the latest ones; how deep a file is searched."""

MAX_PASSES = 3
"""Passes over data for each epoch that is counted: of the training, and of evaluations."""

_RATES = ("lr", "initial_lr")
_PLAIN = (bool, int, float)

_Entries = dict[str, int | None]
"""The names of a file's entries, and the whole numbers among them."""


class _SavedState(NamedTuple):
    """The state of an optimizer in a file: the settings of each group, and as a key the numbers of parameters of the
    groups, and the first numbers of the first tensor."""

    groups: tuple[dict[str, FactValue], ...]
    key: tuple[tuple[int, ...], bytes]

    def fits(self, optimizer: Any) -> bool:
        """Whether an optimizer has these groups, but for learning rates."""
        if self.key[0] != _sizes(optimizer.param_groups):
            return False
        return all(
            saved.get(name) == value
            for now, saved in zip(map(settings, optimizer.param_groups), self.groups, strict=True)
            for name, value in now.items()
            if name not in (*_RATES, KEYS)
        )

    def has_rates_of(self, optimizer: Any) -> bool:
        """Whether an optimizer starts with the learning rates with which the saved one started."""
        return all(
            saved.get("initial_lr", saved.get("lr")) == own.get("initial_lr", own.get("lr"))
            for saved, own in zip(self.groups, map(settings, optimizer.param_groups), strict=True)
        )


@dataclass(eq=False, slots=True)
class _File:
    """A file that the program loaded. `is_latest`: this process wrote its states after the last update so far."""

    series: str
    site: str
    entries: _Entries
    states: list[_SavedState]
    others: list[dict[str, Any]]
    tensors: dict[int, TensorReference]
    is_latest: bool
    schedulers: list[weakref.ref[Any]]
    restored: list[dict[str, Any]] = field(default_factory=list)
    receivers: list[weakref.ref[Any]] = field(default_factory=list)


class _Load(NamedTuple):
    """Weights of a file that a module loaded: the first numbers of each parameter without an update since, by `id`."""

    file: _File
    module: weakref.ref[nn.Module]
    numbers: dict[int, torch.Tensor]
    optimizers: frozenset[str]


class Unrestored(NamedTuple):
    """An optimizer without the state in a file, or the class of a scheduler that restarts: the line that loaded the
    file, the attribute of the reading, and its value."""

    name: str
    site: str
    attribute: str
    sign: str


class _Suspect(NamedTuple):
    """An optimizer of which only a later save can say whether the program resumes."""

    file: _File
    optimizer: str
    updates: int
    passes: int


class ResumedTraining:
    """The files that a program writes and loads. All methods are called inside `hidden_from_modes()`."""

    def __init__(self) -> None:
        self.forget()

    @property
    def waits(self) -> bool:
        """Whether a module or an optimizer has loaded a file, and it is not known yet how the program goes on."""
        return bool(self._loads or self._restarting or self._restored)

    def forget(self) -> None:
        """Drop everything, because updates were not observed."""
        self._saved: deque[tuple[object, int]] = deque(maxlen=MAX_SAVES)  # the key of a state, and the updates before
        self._files: deque[_File] = deque(maxlen=MAX_FILES)
        self._loads: list[_Load] = []
        self._suspects: deque[_Suspect] = deque(maxlen=MAX_FILES)
        self._restarting: list[Restarting] = []
        self._restored: list[RestoredRates] = []

    def file_read(self, loaded: Any, source: Any, updates: int, site: str, schedulers: list[weakref.ref[Any]]) -> None:
        """The program loaded a file, while these schedulers exist."""
        states = list(_states(loaded))
        if states:
            weights = [value for state in state_mappings(loaded) for value in state.values()]
            tensors = {id(value): TensorReference(value) for value in weights if isinstance(value, torch.Tensor)}
            is_latest = all((state.key, updates) in self._saved for state in states)
            others = list(_others(loaded))
            file = _File(_series(source), site, _entries(loaded), states, others, tensors, is_latest, schedulers)
            self._files.append(file)

    def module_loads(self, module: nn.Module, state: Mapping[str, Any], optimizers: set[str]) -> None:
        """A module is about to load a state, while these optimizers exist."""
        self._loads = [load for load in self._loads if load.module() not in (None, module)][-MAX_FILES:]
        given = {id(value) for value in state.values()}
        for file in self._files:
            if given & file.tensors.keys() and (numbers := dict(_loaded_numbers(module, state, file))):
                self._loads.append(_Load(file, weakref.ref(module), numbers, frozenset(optimizers)))

    def optimizer_loads(self, optimizer: Any, state: Any) -> None:
        """An optimizer is about to load a state."""
        loaded = {found.key for found in _states(state)}
        for file in self._files:
            if loaded & {known.key for known in file.states}:
                file.receivers.append(weakref.ref(optimizer))
                self._restored = [each for each in self._restored if each.optimizer() not in (None, optimizer)]
                if (rates := restored_rates(optimizer, state, file.site)) is not None:
                    self._restored.append(rates)

    def other_loads(self, state: Any) -> None:
        """A scheduler or a scaler is about to load a state."""
        numbers = _plain(state)
        for file in self._files:
            if numbers in file.others:
                file.restored.append(numbers)

    def first_update(self, optimizer: Any, name: str, updates: int, passes: int) -> Unrestored | None:
        """An optimizer is about to step: return what it has not restored. After its first step, this says nothing."""
        ids = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
        loads = [load for load in self._loads if ids & load.numbers.keys()]
        goes_on = (
            len({id(load.file) for load in loads}) == 1
            and ids <= set().union(*(load.numbers for load in loads))
            and all(_is_kept(load, ids) for load in loads)
        )
        for load in loads:
            for updated in ids:
                load.numbers.pop(updated, None)
        self._loads = [load for load in self._loads if load.numbers]
        if not goes_on:
            return None
        if not _has_state(optimizer):
            return self._judge(loads[0], optimizer, name, updates, passes)
        file = loads[0].file
        is_resumed = file.is_latest and any(receiver() is optimizer for receiver in file.receivers)
        if is_resumed and not any(POSITION in state for state in file.restored):
            self._restarting += unrestored(file.others, file.schedulers, optimizer, file.site)
        return None

    def _judge(self, load: _Load, optimizer: Any, name: str, updates: int, passes: int) -> Unrestored | None:
        file = load.file
        fitting = [state for state in file.states if state.fits(optimizer)]
        receivers = [receiver() for receiver in file.receivers]
        if not fitting or any(receiver is not None and _is_around(receiver, optimizer) for receiver in receivers):
            return None
        if file.restored or receivers:
            return Unrestored(name, file.site, RESUMED, "the program restores another part of that file")
        self._suspects.append(_Suspect(file, name, updates, passes))
        if file.is_latest and name in load.optimizers and any(state.has_rates_of(optimizer) for state in fitting):
            return Unrestored(name, file.site, RESUMED_HERE, "this run wrote that file after the last update")
        return None

    def restarted_schedules(self, optimizer: Any, schedulers: list[weakref.ref[Any]]) -> Iterator[Unrestored]:
        """An optimizer is about to step, while these schedulers exist: yield those of it that have restarted."""
        for restored in [each for each in self._restored if each.optimizer() is optimizer]:
            begun = beginning(restored, schedulers)
            if not begun.is_open:
                self._restored.remove(restored)
            if begun.sign:
                self._restarting = [each for each in self._restarting if each.optimizer() is not optimizer]
                yield Unrestored(begun.scheduler, restored.site, RESTARTED, begun.sign)
        for each in [each for each in self._restarting if each.optimizer() is optimizer and each.position != 0]:
            self._restarting.remove(each)
            if each.position == 1:
                sign = f"its position is 1, and {each.saved_position} in the file"
                yield Unrestored(type(each.scheduler()).__name__, each.site, RESTARTED, sign)

    def saved(self, saved: Any, target: Any, updates: int, passes: int) -> Iterator[Unrestored]:
        """The program saves a file: yield the optimizers that it shows to be resumed without their state."""
        states = list(_states(saved))
        self._saved.extend({(state.key, updates) for state in states}.difference(self._saved))
        series, entries = _series(target), _entries(saved)
        for suspect in list(self._suspects if states else ()):
            file = suspect.file
            if series and series == file.series and entries.keys() == file.entries.keys():
                self._suspects.remove(suspect)
                if _counts_on(file.entries, entries, updates - suspect.updates, passes - suspect.passes):
                    yield Unrestored(suspect.optimizer, file.site, RESUMED, "this run writes the file that follows it")


def _counts_on(before: _Entries, now: _Entries, updates: int, passes: int) -> bool:
    """Whether some number counts the updates or passes since, on from what it was, and none begins again."""
    pairs = [(number, now.get(name)) for name, number in before.items()]
    steps = [later - earlier for earlier, later in pairs if earlier is not None and later is not None]
    return all(step >= 0 for step in steps) and any(
        step == updates or 0 < step <= passes <= MAX_PASSES * step for step in steps
    )


def _states(value: Any, depth: int = 0) -> Iterator[_SavedState]:
    """Yield the states of optimizers in what a file holds, if they keep tensors."""
    if not isinstance(value, dict) or depth > MAX_DEPTH:
        return
    groups, kept = value.get("param_groups"), value.get("state")
    if isinstance(groups, list) and isinstance(kept, dict):
        if not all(isinstance(group, dict) and "params" in group for group in groups):
            return
        tensors = [number for entry in kept.values() if isinstance(entry, dict) for number in entry.values()]
        numbers = next((first for tensor in tensors if (first := _first(tensor)) is not None), None)
        if numbers is not None:
            yield _SavedState(tuple(map(settings, groups)), (_sizes(groups), bytes_of(numbers)))
        return
    for entry in value.values():
        for item in entry if isinstance(entry, (list, tuple)) and len(entry) <= MAX_SAVES else (entry,):
            yield from _states(item, depth + 1)


def _sizes(groups: Iterable[Any]) -> tuple[int, ...]:
    return tuple(len(group["params"]) for group in groups)


def _first(tensor: Any) -> torch.Tensor | None:
    dense = local_tensor(tensor) if isinstance(tensor, torch.Tensor) and tensor.dim() else None
    return None if dense is None or not dense.numel() else first_elements(dense).detach()


def _others(value: Any, depth: int = 0) -> Iterator[dict[str, Any]]:
    """Yield the plain numbers of each further part of a file: the states of schedulers and scalers."""
    if isinstance(value, dict) and "param_groups" not in value and depth <= MAX_DEPTH:
        if depth and len(numbers := _plain(value)) > 1:
            yield numbers
        for entry in value.values():
            yield from _others(entry, depth + 1)


def _plain(state: Any) -> dict[str, Any]:
    """The numbers of a state, and its short lists of numbers."""
    items = state.items() if isinstance(state, dict) else ()
    return {str(name): value for name, value in items if _is_plain(value)}


def _is_plain(value: Any) -> bool:
    items = value if isinstance(value, list) and len(value) <= MAX_SAVES else [value]
    return all(type(item) in _PLAIN for item in items)


def _entries(value: Any) -> _Entries:
    items = value.items() if isinstance(value, dict) else ()
    return {str(name): item if type(item) is int else None for name, item in items}


def _series(target: Any) -> str:
    """The path of a file, with `*` for the numbers in its name; empty for memory. Extensions are left out, because a
    program may write a temporary file and rename it."""
    path = path_of(target)
    return "" if path is None else str(path.absolute().parent / file_name(target).partition(".")[0])


def _has_state(optimizer: Any) -> bool:
    """Whether an optimizer, or one within it, has a state. Some make one before their first step."""
    within = [value for value in vars(optimizer).values() if isinstance(value, torch.optim.Optimizer)]
    entries = [entry for each in (optimizer, *within) for entry in each.state.values() if entry]
    return not all(isinstance(entry, dict) and _is_zero(entry.get("step")) for entry in entries)


def _is_zero(step: Any) -> bool:
    is_number = step.numel() == 1 if isinstance(step, torch.Tensor) else isinstance(step, (int, float))
    return is_number and not step


def _is_around(receiver: Any, optimizer: Any) -> bool:
    """Whether an optimizer is the receiver of a state, or is within it."""
    return (
        receiver is optimizer
        or receiver.param_groups is optimizer.param_groups
        or any(value is optimizer for value in vars(receiver).values())
        or any(value is receiver for value in vars(optimizer).values())
    )


def _loaded_numbers(module: nn.Module, state: Mapping[str, Any], file: _File) -> Iterator[tuple[int, torch.Tensor]]:
    """Yield the parameters of a module that a state sets to tensors of a file, with the first numbers of these."""
    for member in members(module):
        value = next((state[name] for name in member.names if name in state), None)
        reference = file.tensors.get(id(value))
        if reference is not None and reference() is value and (first := leading_floats(value)) is not None:
            yield id(member.tensor), first.to("cpu", copy=True)


def _is_kept(load: _Load, ids: set[int]) -> bool:
    """Whether the parameters of an optimizer still are what their module loaded."""
    module = load.module()
    return module is not None and all(
        starts_with(member.tensor, load.numbers[id(member.tensor)])
        for member in members(module)
        if id(member.tensor) in ids & load.numbers.keys()
    )
