"""Describes the values of tensors that a function of the project takes and returns, and how they relate to each other.
Values that the program marks with `traincheck.mark` are described as well.

A line says what a definition makes true of every batch, such as `advantages: sums to zero in groups`, or
`log_probs: equals old_log_probs`. It never names a size or a number, so it holds for other data and batch sizes.

Note [Values that say nothing]
A tensor of zeros sums to zero, a mask without padding is like any other one, and a batch of one group has no groups.
Such values neither show nor break a line, so the line is left out.

Note [Before an update]
The first minibatch after a rollout has another form than later ones: the policy is the one that made the rollout. So
calls are described separately if no update has come since a trained model was last called without gradients.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from itertools import permutations
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import nn

from traincheck.sources.modules.module_calls import ModuleCalls
from traincheck.sources.modules.variables import VariableCatalog
from traincheck.sources.recording.descriptions import Schedule
from traincheck.sources.recording.patches import TensorReference
from traincheck.sources.recording.recorder import Recorder
from traincheck.sources.tensors.call_arguments import split_arguments
from traincheck.sources.tensors.deferred_values import DeferredValue, is_on_host
from traincheck.sources.tensors.device_transfers import NextSeq
from traincheck.sources.tensors.reading import hidden_from_modes
from traincheck.sources.tensors.value_facts import readable_memory
from traincheck.vocab.demand import BEFORE_UPDATE, FAILS, FORM, HOLDS, MARK, VALUES
from traincheck.vocab.events import NO_CALL, RESULT, Reading
from traincheck.vocab.facts import facts

SOURCE = "project"

SCHEDULE = Schedule(often=6, seldom=25)
"""Of the calls of a function."""

MIN_ELEMENTS, MAX_ELEMENTS = 8, 1 << 16
"""Fewer elements have a form by chance, and more take too long to read. A single number may be the sum of a mask."""
MAX_TENSORS = 8
"""Of one call. Its tensors are compared in pairs."""
MAX_GROUP = 64
"""Elements in a group that sums to zero."""

_ROUNDING = 1e-4
"""Rounding in single precision: a recomputed log-probability differs by 1e-6."""
_CLEARLY = 10
"""Values that differ by less than so many roundings are neither equal nor different: a small update may do that."""

ONE, MASK, SUM, GROUPS = "is one everywhere", "is zero or one", "sums to zero", "sums to zero in groups"
EQUALS, DIFFERS, AS_MANY = "equals {}", "differs from {}", "has as many nonzero elements in each row as {}"
COUNTS = "is the sum of {}"

_CONTEXT = facts(kind=VALUES)


Held: TypeAlias = "list[tuple[str, TensorReference]]"
"""Tensors by their role in a call."""

Connect = Callable[[Callable[[object, object, object], object] | None], object]
"""Gets the function that takes marks of the program, and None at the end."""


class _Values(NamedTuple):
    """A tensor by its role in a call, in double precision. `unusable` says whether some values are not finite."""

    role: str
    values: torch.Tensor
    tolerance: float
    unusable: torch.Tensor


class ValueForms:
    """Takes a reading for some calls of each function."""

    def __init__(
        self, recorder: Recorder, catalog: VariableCatalog, calls: ModuleCalls, connect: Connect | None
    ) -> None:
        self._recorder = recorder
        self._catalog = catalog
        self._models = calls
        self._connect = connect
        self._calls: Counter[tuple[str, bool]] = Counter()
        self._updates = -1  # before the last forward without gradients of a trained model

    def attach(self, undo: ExitStack) -> None:
        """Follow the calls of models, and what the program marks. Call it each time that sources are attached."""
        if self._connect is not None:
            undo.callback(self._connect, None)
            self._connect(self._recorder.guarded(SOURCE, self._mark))
        note_forward = self._recorder.guarded(SOURCE, self._note_forward)

        def begins(module: nn.Module, args: Any) -> None:  # most calls of a training have gradients
            if not torch.is_grad_enabled():
                note_forward(module)

        self._models.add_listener(begins, outermost=True)

    def _mark(self, name: object, value: object, gradient: object) -> None:
        """Describe a tensor that the program marks, as an argument of its mark."""
        if isinstance(name, str) and isinstance(value, torch.Tensor) and torch._C._current_graph_task_id() < 0:
            mark = f"{MARK}{name}"
            if self.should_read(mark):
                self.read(NO_CALL, mark, self.hold({name: value}), None)

    def should_read(self, function: str) -> bool:
        """Whether to describe this call of a function."""
        key = function, self._before_update
        self._calls[key] += 1
        return SCHEDULE.includes(self._calls[key])

    def hold(self, arguments: Mapping[str, Any]) -> Held:
        """The tensors among the arguments of a call, by weak reference: the program may free them meanwhile."""
        return [(role, TensorReference(tensor)) for role, tensor in _tensors(arguments).values()]

    def read(self, call: int, function: str, held: Held, result: Any) -> None:
        """Describe what a function got and returned."""
        alive = [(role, tensor) for role, reference in held if (tensor := reference()) is not None]
        tensors = {id(tensor): (role, tensor) for role, tensor in alive}
        tensors = {**tensors, **_tensors({RESULT: result}), **tensors}  # a function may return its argument
        grain = f"{function}{BEFORE_UPDATE if self._before_update else ''}"
        with hidden_from_modes():
            values = [value for role, tensor in tensors.values() if (value := _values_of(role, tensor)) is not None]
            judged = list(_facts(values[:MAX_TENSORS]))
            if not judged:
                return

            def conclude(fetched: list[list[int]], next_seq: NextSeq) -> None:
                states = zip(judged, map(int, fetched[0]), strict=True)
                lines = sorted(f"{_PREFIXES[state]}{fact.line}" for fact, state in states if state in _PREFIXES)
                text = "\n".join((grain, *lines))
                reading = Reading(next_seq(), call, function, VALUES, FORM, text, context=_CONTEXT)
                self._recorder.record_reading(reading)

            states = torch.stack([fact.state for fact in judged])
            read = states.tolist() if is_on_host(states) else DeferredValue((*states,), lambda *several: [*several])
            self._recorder.transfers.when_ready(SOURCE, [read], conclude, events=1)

    @property
    def _before_update(self) -> bool:
        return self._updates == self._recorder.steps.updates_made

    def _note_forward(self, module: nn.Module) -> None:
        """Note a forward without gradients, if it is one of a trained model."""
        self._catalog.ensure_named(module)
        self._catalog.refresh_holders()
        with hidden_from_modes():
            first = next((parameter for parameter in module.parameters() if parameter.requires_grad), None)
        variable = None if first is None else self._catalog.find(first)
        if variable is not None and variable.holders:
            self._updates = self._recorder.steps.updates_made


class _Fact(NamedTuple):
    """What may be true of the values. `state` is 0 if it is not, 1 if it is, and 2 if the values say nothing."""

    line: str
    state: torch.Tensor


_PREFIXES = {0: FAILS, 1: HOLDS}
"""By the state. Values that say nothing make no line."""


def _tensors(values: Mapping[str, Any]) -> dict[int, tuple[str, torch.Tensor]]:
    """The tensors in arguments or a result with their roles, by identity."""
    return {id(tensor): (role, tensor) for role, tensor in split_arguments((), (), values)[1]}


def _values_of(role: str, tensor: torch.Tensor) -> _Values | None:
    """The values of a tensor; None if they cannot be read, or say nothing."""
    memory = readable_memory(tensor)
    if memory is None or memory.is_complex():
        return None
    if memory.numel() != 1 and not MIN_ELEMENTS <= memory.numel() <= MAX_ELEMENTS:
        return None
    tolerance = _ROUNDING
    if memory.is_floating_point():
        tolerance = max(_ROUNDING, 4 * torch.finfo(memory.dtype).eps)
    values = memory.detach().to(torch.float64)
    return _Values(role, values, tolerance, ~torch.isfinite(values).all())


def _facts(several: Sequence[_Values]) -> Iterator[_Fact]:
    """The facts of each tensor, and of each pair. Call inside `hidden_from_modes()`."""
    for values in several:
        yield from _of_single(values)
    for first, second in permutations(several, 2):
        yield from _of_pair(first, second)


def _of_single(of: _Values) -> Iterator[_Fact]:
    role, values, tolerance, unusable = of
    if values.numel() == 1:
        return
    zero = (values == 0).all() | unusable
    yield _fact(f"{role} {ONE}", ((values - 1).abs() <= tolerance).all(), unusable)
    yield _fact(f"{role} {MASK}", _is_mask(values), zero)
    yield _fact(f"{role} {SUM}", _sum_to_zero(values.reshape(1, -1), tolerance), zero)
    groups = list(_groups(values))
    if groups:
        in_groups = torch.stack([_sum_to_zero(rows, tolerance) for rows in groups]).any()
        yield _fact(f"{role} {GROUPS}", in_groups, zero)


def _groups(values: torch.Tensor) -> Iterator[torch.Tensor]:
    """The values in rows that may be groups: the rows of a matrix, or consecutive elements of a vector."""
    if values.dim() > 1:
        if values.shape[-1] > 1 and values.numel() > values.shape[-1]:
            yield values.reshape(-1, values.shape[-1])
        return
    size = values.numel()
    for width in range(2, min(MAX_GROUP, size // 2) + 1):
        if size % width == 0:
            yield values.view(-1, width)


def _sum_to_zero(rows: torch.Tensor, tolerance: float) -> torch.Tensor:
    return (rows.sum(1).abs() <= tolerance * rows.abs().sum(1).amax()).all()


def _of_pair(first: _Values, second: _Values) -> Iterator[_Fact]:
    x, y = first.values, second.values
    if x.device != y.device or y.numel() == 1:
        return
    unusable = first.unusable | second.unusable
    if x.numel() == 1:
        total = y.sum()
        nothing = ~_is_mask(y) | (total == 0) | unusable
        yield _fact(f"{first.role} {COUNTS.format(second.role)}", x.reshape(()) == total, nothing)
    elif x.shape == y.shape and first.role < second.role:
        bound = max(first.tolerance, second.tolerance) * torch.maximum(x.abs().amax(), y.abs().amax())
        distance = (x - y).abs().amax()
        constant = (x == x.reshape(-1)[0]).all() | (y == y.reshape(-1)[0]).all()
        unclear = (distance > bound) & (distance <= _CLEARLY * bound)
        nothing = unusable | constant | _is_mask(x) | _is_mask(y) | unclear
        yield _fact(f"{first.role} {EQUALS.format(second.role)}", distance <= bound, nothing)
        yield _fact(f"{first.role} {DIFFERS.format(second.role)}", distance > bound, nothing)
    if x.dim() > 1 and y.dim() > 1 and x.numel() > 1 and x.shape[0] == y.shape[0] > 1:
        rows, others = ((values != 0).reshape(len(values), -1) for values in (x, y))
        full = unusable | rows.all() | others.all() | ~rows.any() | ~_is_mask(x)
        yield _fact(f"{first.role} {AS_MANY.format(second.role)}", (rows.sum(1) == others.sum(1)).all(), full)


def _is_mask(values: torch.Tensor) -> torch.Tensor:
    return ((values == 0) | (values == 1)).all()


def _fact(line: str, is_true: torch.Tensor, says_nothing: torch.Tensor) -> _Fact:
    state = is_true.to(torch.int64)
    return _Fact(line, torch.where(says_nothing, torch.full_like(state, 2), state))
