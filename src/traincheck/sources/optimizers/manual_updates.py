"""Recognises parameter updates that the program makes itself, without an optimizer of torch.

Note [Updates by hand]
A loop may update its parameters with `p.data.add_(p.grad, alpha=-lr)`, with an optimizer class of its own, or with a
function that torch does not announce. TrainCheck compares parameters that have a gradient at the end of a backward with
the same parameters when the next activity begins: a fetch, a call of an outermost module, a backward, the end of the
run. If one of them was written to, and the program has no optimizer, then that was an update, and it ends a step.

torch counts writes to a parameter (`_version`), but not those through `.data`, and `p.data = x` exchanges the memory.
So TrainCheck compares the count, the address and some elements. On an accelerator, TrainCheck reads these elements at
once, because it has to cut the step now: one transfer for each backward, in programs without an optimizer only.

The comparison ends with the first call of a module after the backward, because a forward may write to parameters as
well (`nn.Embedding(max_norm=...)`). In a program with an optimizer, only optimizers make steps. There a write between a
backward and the next forward may be a perturbation (SAM), an inner loop (Reptile) or a penalty, and none of them is a
step. TrainCheck compares its parameters after a few backwards only, and only if no optimizer has stepped by then.

TrainCheck reports an update by hand as a call of `Optimizer.step`, with the parameters that changed. Its position is
the end of the backward, or of the clipping after it. So rules about updates apply to it: gradients are cleared, a
backward comes first. Its learning rate is unknown, so no rule expects a parameter to change.

Known limitations: TrainCheck does not recognise an update inside the backward (`register_post_accumulate_grad_hook`),
updates with gradients from `torch.autograd.grad`, and tensors that no module owns. If a program updates two models by
hand in turn, the first update ends a step of its own.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any, NamedTuple

import torch

from traincheck.sources.gradients.gradients import Gradients, summary
from traincheck.sources.modules.variables import THIS, Variable
from traincheck.sources.recording.context_facts import context_facts_with
from traincheck.sources.recording.listener import RecorderListener
from traincheck.sources.recording.recorder import OpenCall, Recorder
from traincheck.sources.recording.run_totals import is_interrupted
from traincheck.sources.recording.step_tracker import StepTracker
from traincheck.sources.tensors.deferred_values import fetch_values
from traincheck.sources.tensors.reading import INTEGER_TYPES, SOME, hidden_from_modes, local_tensor
from traincheck.sources.tensors.spot_checks import samples_differ
from traincheck.sources.tensors.storages import version_of
from traincheck.vocab.builtin_rules import IDLE_OPTIMIZER, RUN, UNUSED_GRADIENTS
from traincheck.vocab.demand import Demand
from traincheck.vocab.events import LIFECYCLE, NO_CALL, Change, Reading
from traincheck.vocab.facts import Facts, facts, merged

SOURCE = "manual updates"
LEVELS = ("manual.update", "torch.optim.Optimizer.step")

ENOUGH_BACKWARDS = 10
"""Backwards after which a training program should have made an update. A program that only reads gradients
(attribution, a test of a layer) needs a few, and gradient accumulation ends with an update."""

_COMPARED_BACKWARDS = range(ENOUGH_BACKWARDS - 2, ENOUGH_BACKWARDS + 1)
"""Backwards after which TrainCheck compares parameters although the program has an optimizer, which has not stepped."""

_COMPARE_INTERVAL = 64
"""TrainCheck also compares at this interval of backwards, because a program may start with other work."""

_PROBES_OF_RUN = 4
"""Number of parameters, the smallest ones, that are compared over the whole run."""

_MAX_PARAMETERS = 512
"""Maximum number of compared parameters, spread over a larger model."""

_ELEMENTS = 16
"""Number of compared elements of each parameter, spread over it."""


_SMALL_BYTES = 1 << 16
"""Maximum size of a parameter that may be kept alive: biases and norms of any model."""


class _Probe(NamedTuple):
    """The state of a parameter at the end of a backward. A small one is kept alive until the next activity. A training
    function may return right after the last update, and its model is then freed."""

    variable: Variable
    small: torch.Tensor | None
    version: int | None
    address: int
    elements: torch.Tensor | None


class _PendingCheck(NamedTuple):
    """A backward after which TrainCheck looks for an update: the parameters, the states of their gradients, and the
    event positions reserved for the update."""

    thread: int
    probes: list[_Probe]
    states: dict[Variable, str]
    positions: list[int]
    site: str
    context: Facts


def is_compared(steps: StepTracker) -> bool:
    """Whether TrainCheck compares parameters after the last backward."""
    if not steps.optimizers:
        return True
    return not steps.updates_made and (
        steps.backwards in _COMPARED_BACKWARDS or not steps.backwards % _COMPARE_INTERVAL
    )


class ManualUpdates(RecorderListener):
    """Recognises updates without an optimizer. At the end of the run it reports if there was no update at all, or if an
    optimizer made none."""

    def __init__(self, gradients: Gradients) -> None:
        self._gradients = gradients
        self._pending_check: _PendingCheck | None = None
        self._initial_probes: list[_Probe] | None = None  # kept until an optimizer steps
        self._trains = False  # whether gradients were computed for a module in training mode
        self._idle_optimizer = ""  # an optimizer that holds parameters with such gradients
        self._site = ""  # the site of such a backward
        self._written = False  # whether parameters were written to although an optimizer exists

    def attach(self, undo: ExitStack, demand: Demand, recorder: Recorder) -> None:
        """Start to look for updates. The caller reports each backward through `backward_ends`."""
        self._recorder, self._demand = recorder, demand
        self._guarded_check = recorder.guarded(SOURCE, self._check, always=True)
        self._guarded_move_positions = recorder.guarded(SOURCE, self._move_positions, always=True)
        self.backward_ends = recorder.guarded(SOURCE, self._backward_ends, always=True)
        recorder.add_listener(self)
        recorder.at_end(lambda: self._guarded_check(True))
        recorder.at_end(recorder.guarded(SOURCE, self._report_unused, always=True))
        undo.callback(self._cancel_check)

    def _backward_ends(self, site: str) -> None:
        """Record the parameters at the end of a backward."""
        recorder = self._recorder
        steps = recorder.steps
        with hidden_from_modes():
            held = [(v, t) for v, t in self._gradients.trainable() if t.requires_grad and t.grad is not None]
            if not steps.updates_made and steps.backwards >= ENOUGH_BACKWARDS and not self._trains:
                self._note_training([variable for variable, _ in held], site)
            held = held[:: len(held) // _MAX_PARAMETERS + 1]
            probes = [_Probe(v, _if_small(t), version_of(t), *_memory(t)) for v, t in held]
            if not probes:
                return
            if steps.optimizers and self._initial_probes is None:
                self._initial_probes = sorted(probes, key=_size)[:_PROBES_OF_RUN]
            states: dict[Variable, str] = {}
            variables = [probe.variable for probe in probes]

            def conclude(*_: object) -> None:
                states.update((variable, self._gradients.last_state(variable)) for variable in variables)

            recorder.transfers.when_ready(SOURCE, (), conclude)
        context = context_facts_with(lr="none")
        self._schedule_check(
            _PendingCheck(threading.get_ident(), probes, states, self._reserve_positions(probes), site, context)
        )

    def optimizer_stepped(self) -> None:
        self._initial_probes = None

    def _note_training(self, variables: Sequence[Variable], site: str) -> None:
        """Note whether these parameters, which have gradients, are trained, and by which optimizer."""
        for variable in variables:
            module = None if variable.module is None else variable.module()
            if module is not None and module.training:
                self._trains, self._site = True, site
                self._idle_optimizer = self._idle_optimizer or variable.owner

    def _reserve_positions(self, probes: Sequence[_Probe]) -> list[int]:
        """Reserve positions for the events of an update: each change, and the begin and end of a call per model."""
        count = len(probes) + 2 * len({_model_name(probe.variable) for probe in probes})
        return [self._recorder.next_seq() for _ in range(count)]

    def _move_positions(self) -> None:
        """Reserve new positions, because gradients were clipped and an update comes after that."""
        if self._pending_check is not None:
            self._pending_check = self._pending_check._replace(
                positions=self._reserve_positions(self._pending_check.probes)
            )

    def _schedule_check(self, check: _PendingCheck) -> None:
        self._pending_check = check
        self._gradients.on_clipped = self._guarded_move_positions
        self._recorder.steps.check_before_activity(self._guarded_check)

    def _cancel_check(self) -> None:
        self._pending_check = self._gradients.on_clipped = None
        self._recorder.steps.check_before_activity(None)

    def _check(self, last: bool) -> None:
        """Check at the next activity whether parameters were updated since the backward. If not, and this is not the
        `last` chance, keep looking: a fetch may come before the update."""
        check = self._pending_check
        if check is None or check.thread != threading.get_ident():
            return
        self._cancel_check()
        with hidden_from_modes():
            changed = _changed_variables(check.probes)
        if not changed:
            if not last:
                self._schedule_check(check)
            return
        if self._recorder.steps.optimizers:
            self._written = True
            return
        models: dict[str, list[Variable]] = {}
        for variable in changed:
            models.setdefault(_model_name(variable), []).append(variable)
        self._report(check, models)

    def _report(self, check: _PendingCheck, models: dict[str, list[Variable]]) -> None:
        """Report an update by hand that has changed these parameters."""
        recorder = self._recorder
        with hidden_from_modes():
            recorder.transfers.flush()  # the states of gradients are needed now
        recorder.steps.manual_update(models.keys(), check.positions[0])
        records_call = recorder.watching and self._demand.records_call(LEVELS)
        with_changes = records_call and self._demand.observes_state(LEVELS, "parameter.data")
        positions = iter(check.positions)
        for model, variables in models.items():
            if records_call:
                grads = summary([check.states.get(variable, "none") for variable in variables])
                context = merged(check.context, grads=grads)
                call = OpenCall(next(positions), NO_CALL, LIFECYCLE, LEVELS, model, check.site, context, ())
                if with_changes:
                    recorder.record_changes([_change(next(positions), call.seq, v, check.states) for v in variables])
                recorder.leave(call, end=next(positions))
            self._gradients.step_ends(model)

    def _report_unused(self) -> None:
        """Report at the end of the run if gradients were computed for training and no update has used them."""
        recorder = self._recorder
        if recorder.steps.updates_made:
            if not is_interrupted():
                with hidden_from_modes():
                    idle = self._gradients.idle_optimizers()
                if self._idle_optimizer and not self._gradients.has_stepped(self._idle_optimizer):
                    idle.add(self._idle_optimizer)  # it may be gone, as that of an earlier phase
                for optimizer in sorted(idle):
                    self._record_unused(IDLE_OPTIMIZER, optimizer)
            return
        if not self._trains or self._written:
            return
        with hidden_from_modes():
            # A state that the program saved and loaded again is no update.
            if self._initial_probes and _changed_variables(self._initial_probes, by_value=True):
                return
        self._record_unused(IDLE_OPTIMIZER if self._idle_optimizer else UNUSED_GRADIENTS, self._idle_optimizer or RUN)

    def _record_unused(self, attribute: str, subject: str) -> None:
        recorder = self._recorder
        if self._demand.takes_reading(RUN, attribute) and recorder.steps.backwards >= ENOUGH_BACKWARDS:
            count, context = recorder.steps.backwards, facts(site=self._site)
            recorder.record_reading(
                Reading(recorder.next_seq(), NO_CALL, subject, RUN, attribute, count, context=context)
            )


def _model_name(variable: Variable) -> str:
    """The name of the model that a parameter belongs to."""
    return variable.name.split(".", 1)[0]


def _size(probe: _Probe) -> int:
    """The number of elements of a parameter; large for a parameter that may be freed."""
    return sys.maxsize if probe.small is None else probe.small.numel()


def _if_small(tensor: torch.Tensor) -> torch.Tensor | None:
    """The tensor itself if it is small, else None."""
    return tensor if tensor.numel() * tensor.element_size() <= _SMALL_BYTES else None


def _memory(tensor: torch.Tensor) -> tuple[int, torch.Tensor | None]:
    """The address of a tensor and a copy of some of its elements; 0 and None if it is unreadable."""
    dense = local_tensor(tensor)
    if dense is None or not dense.numel():
        return 0, None
    if not dense.is_contiguous() or dense.element_size() not in INTEGER_TYPES:
        return dense.data_ptr(), None
    every = dense.numel() // _ELEMENTS | 1  # an odd stride visits all columns of a matrix
    return dense.data_ptr(), dense.detach().as_strided(((dense.numel() - 1) // every + 1,), (every,)).clone()


def _changed_variables(probes: Sequence[_Probe], *, by_value: bool = False) -> list[Variable]:
    """The parameters that were written to; with `by_value`, those whose elements differ, where they can be read."""
    changed: list[Variable] = []
    unsure: list[tuple[Variable, tuple[torch.Tensor, torch.Tensor]]] = []
    for variable, _, version, address, elements in probes:
        tensor = variable.tensor()
        if tensor is None:
            continue
        current, now = _memory(tensor)
        is_readable = elements is not None and now is not None and elements.shape == now.shape
        if (version_of(tensor) != version or current != address) and not (by_value and is_readable):
            changed.append(variable)
        elif elements is not None and now is not None:
            unsure.append((variable, (elements, now)))
    differs = fetch_values(samples_differ([pair for _, pair in unsure]))
    return changed + [variable for (variable, _), is_changed in zip(unsure, differs, strict=True) if is_changed]


def _change(seq: int, call: int, variable: Variable, states: dict[Variable, str]) -> Change:
    """The change of a parameter by an update by hand."""
    tensor: Any = variable.tensor()
    facts_of = variable.facts(tensor, variable.owner) if tensor is not None else ()
    context = merged(facts_of, held=THIS, grad=states.get(variable, "none"), lr="none", lost=False)
    return Change(seq, call, variable.name, "parameter", "data", SOME, SOME, True, "", context)
