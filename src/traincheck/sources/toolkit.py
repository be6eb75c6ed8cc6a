"""What TrainCheck gives to a source of another package: imports to wait for, and updates of an optimizer to report.

Everything else a source needs is in `sources/base.py` (`UndoStack`, `replace`, `wrapping`) and in the recorder:
`guarded` for every callback, then `enter`, `leave` or `abandon` for calls, and `reading` for readings.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import torch

from traincheck.sources.base import Source, replace, wrapping
from traincheck.sources.compile.compiled_calls import WhenImported
from traincheck.sources.gradients.gradients import Gradients, Held, summary
from traincheck.sources.modules.variables import VariableCatalog
from traincheck.sources.optimizers import parameter_changes
from traincheck.sources.optimizers.lost_updates import lost_in_rounding
from traincheck.sources.optimizers.optimizers import PARAMETER_DATA, rate_class, step_facts
from traincheck.sources.optimizers.parameter_changes import ParameterBefore
from traincheck.sources.recording.api_names import class_name, levels
from traincheck.sources.recording.context_facts import context_facts_with, with_fact
from traincheck.sources.recording.patches import UndoStack
from traincheck.sources.recording.recorder import OpenCall, Recorder
from traincheck.sources.tensors.device_transfers import NextSeq
from traincheck.sources.tensors.reading import SOME, hidden_from_modes
from traincheck.vocab.demand import COMPUTATION, Demand
from traincheck.vocab.events import LIFECYCLE, Change

UPDATE = "torch.optim.Optimizer.step"

Parameters = Callable[[Any], Iterable[torch.Tensor]]
LearningRate = Callable[[Any], float | None]


class SourceToolkit:
    """Given to the constructor of every source that an installed package adds."""

    def __init__(
        self,
        catalog: VariableCatalog,
        gradients: Gradients,
        may_step: Callable[[], None],
        when_imported: WhenImported,
    ) -> None:
        self._catalog = catalog
        self._gradients = gradients
        self._may_step = may_step
        self._when_imported = when_imported

    def when_imported(self, undo: UndoStack, source: Source, recorder: Recorder, module: str, ready: Any) -> None:
        """Call `ready()` once the program has imported `module`: at once if it has. Nothing imports it for you.

        Known limitations: of two sources that wait for one module, only the first is called.
        """
        undo.callback(self._when_imported(module, recorder.guarded(source.name, ready, always=True), None))

    def observe_updates(
        self,
        undo: UndoStack,
        source: Source,
        demand: Demand,
        recorder: Recorder,
        cls: type,
        *,
        parameters: Parameters,
        learning_rate: LearningRate = lambda optimizer: None,
        method: str = "step",
    ) -> None:
        """Report every call of `cls.method` as an update of `parameters(optimizer)`, until `undo` is closed.

        The call is recorded under its own name and as `torch.optim.Optimizer.step`, so that it ends a training step and
        rules about updates judge it. Without a learning rate no rule expects a parameter to change. Objects of `cls`
        must allow weak references.
        """
        updates = _Updates(self, source.name, demand, recorder, cls, method, parameters, learning_rate)
        replace(undo, cls, method, updates.wrap)
        undo.callback(updates.forget)


class _Update(NamedTuple):
    """An update under way. `running` is emptied when it ends; `call` is None in a step that is not recorded."""

    name: str
    running: list[bool]
    call: OpenCall | None = None
    held: Sequence[Held] = ()
    gradients: Sequence[Any] = ()
    before: Sequence[ParameterBefore] = ()
    rate: float | None = None


class _Updates:
    """Reports the updates that one method of one class makes."""

    def __init__(
        self,
        toolkit: SourceToolkit,
        source: str,
        demand: Demand,
        recorder: Recorder,
        cls: type,
        method: str,
        parameters: Parameters,
        learning_rate: LearningRate,
    ) -> None:
        self._catalog, self._gradients, self._may_step = toolkit._catalog, toolkit._gradients, toolkit._may_step
        self._source, self._demand, self._recorder = source, demand, recorder
        self._class, self._method = cls, method
        self._parameters, self._learning_rate = parameters, learning_rate
        self._optimizers: dict[int, tuple[weakref.ref[Any], str]] = {}
        self._running: dict[int, list[bool]] = {}

    def wrap(self, method: Callable[..., Any]) -> Callable[..., Any]:
        """`method`, which reports its update."""
        recorder, source = self._recorder, self._source
        begin = recorder.guarded(source, self._begin, always=True)
        end = recorder.guarded(source, self._end, always=True)
        fail = recorder.guarded(source, self._fail, always=True)

        def begins(optimizer: Any, *args: Any, **kwargs: Any) -> _Update | None:
            if not self._running.get(id(optimizer)):  # else a method of a subclass calls that of its base class
                self._may_step()
                return begin(optimizer)
            return None

        def ends(update: _Update, result: Any) -> None:
            update.running.clear()  # here, as `end` does nothing once the source has failed
            end(update)

        def failed(update: _Update) -> None:
            update.running.clear()
            fail(update)

        return wrapping(begins, ends, failed)(method)

    def forget(self) -> None:
        """The source is detached: no optimizer of this class is waited for any more."""
        self._running.clear()

    def _begin(self, optimizer: Any) -> _Update:
        recorder = self._recorder
        name = self._name(optimizer)
        running = self._running[id(optimizer)] = [True]
        recorder.steps.update_begins(name, recorder.next_seq(), lambda: bool(running))
        if not recorder.watching or not self._demand.has_other_than(COMPUTATION):
            return _Update(name, running)
        call_levels = (*levels(type(optimizer), self._method, self._class), UPDATE)
        rate = self._learning_rate(optimizer)
        with hidden_from_modes():
            held = self._catalog.hold(name, [tensor for tensor in self._parameters(optimizer) if tensor.numel()])
            states = self._gradients.read(held, values=False).states
            gradients = self._gradients.used(name, held, states, closure=False)
            before: Sequence[ParameterBefore] = ()
            if self._demand.records_call(call_levels):
                before = parameter_changes.read_before(held, whole=self._demand.everything)
        call = recorder.enter(LIFECYCLE, call_levels, name, context_facts_with(closure=False, lr=rate_class(rate)))

        def conclude(fetched: list[str], next_seq: NextSeq) -> None:
            gradients[:] = fetched
            call.context = with_fact(call.context, "grads", summary(fetched))

        recorder.transfers.when_ready(self._source, gradients, conclude, call=call)
        return _Update(name, running, call, held, gradients, before, rate)

    def _end(self, update: _Update) -> None:
        recorder = self._recorder
        if update.call is not None:
            if recorder.watching and update.before:
                with hidden_from_modes():
                    self._record_changes(update, update.call)
            self._gradients.step_ends(update.name)
            recorder.leave(update.call)
        else:
            self._gradients.step_ends(update.name)
        recorder.steps.update_ends(update.name)

    def _fail(self, update: _Update) -> None:
        self._recorder.steps.update_failed()
        if update.call is not None:
            self._recorder.abandon(update.call)

    def _record_changes(self, update: _Update, call: OpenCall) -> None:
        recorder, gradients, before, rate = self._recorder, update.gradients, update.before, update.rate
        after = parameter_changes.read_after(update.held, before, whole=self._demand.everything)
        records_changes = self._demand.observes_state(call.levels, PARAMETER_DATA)
        variables = [variable for variable, _ in update.held]  # deferred work must not hold parameters
        facts_of = [variable.facts(tensor, update.name) for variable, tensor in update.held]

        def conclude(fetched: list[Any], next_seq: NextSeq) -> None:
            should_change = [state == SOME and rate not in (0, None) for state in gradients]
            outcomes = parameter_changes.conclude(variables, before, after, fetched, should_change)
            changes = []
            states = set()
            for variable, facts, state, (changed, fingerprint) in zip(
                variables, facts_of, map(str, gradients), outcomes, strict=True
            ):
                lost = not changed and state == SOME
                variable.unchanged_updates = variable.unchanged_updates + 1 if lost else 0
                lost = lost and lost_in_rounding(variable, rate, state)
                states.add("changed" if changed else "lost" if lost else state)
                context = step_facts(facts, state, rate, lost=lost)
                changes.append(
                    Change(
                        next_seq(),
                        call.seq,
                        variable.name,
                        "parameter",
                        "data",
                        SOME,
                        SOME,
                        changed,
                        variable.owner,
                        context,
                        fingerprint,
                    )
                )
            if records_changes:
                recorder.record_changes(changes)
            call.context = with_fact(call.context, "lost", "lost" in states and not states & {"changed", SOME})

        deferred = parameter_changes.deferred_parts(after)
        # Whether an update was lost depends on the gradients, which the next step clears.
        recorder.transfers.when_ready(
            self._source, deferred, conclude, call=call, events=len(variables), before_close=True
        )

    def _name(self, optimizer: Any) -> str:
        """The name of `optimizer`: its class, numbered from the second on."""
        key = id(optimizer)
        if key in self._optimizers and self._optimizers[key][0]() is optimizer:
            return self._optimizers[key][1]
        base = class_name(type(optimizer))
        taken = {name for _, name in self._optimizers.values()}
        numbered = itertools.chain((base,), (f"{base}#{number}" for number in itertools.count(2)))
        name = next(name for name in numbered if name not in taken)

        def gone(_: Any) -> None:
            self._running.pop(key, None)
            self._catalog.release(name)
            self._recorder.steps.optimizer_gone(name)

        self._optimizers[key] = weakref.ref(optimizer, self._recorder.guarded(self._source, gone, always=True)), name
        return name
