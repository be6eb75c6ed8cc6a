"""Source `optimizers`: observes construction, `step` and `zero_grad`, and their effect on parameters, gradients and
state."""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import torch
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from traincheck.sources.base import replace, wrapping
from traincheck.sources.distributed.replica_readings import HandAveraging, ReplicaReadings
from traincheck.sources.gradients.gradients import Gradients, Snapshot, summary
from traincheck.sources.modules.variables import Variable, VariableCatalog
from traincheck.sources.optimizers import parameter_changes
from traincheck.sources.optimizers.hyperparameters import KEYS, OPTIMIZER, OptimizerReadings, settings
from traincheck.sources.optimizers.master_copies import MasterCopies
from traincheck.sources.optimizers.optimizer_state_changes import OptimizerStateChanges, representatives
from traincheck.sources.optimizers.running_updates import (
    GATHERING,
    RunningUpdate,
    StateBeforeStep,
    Statistics,
    closure_of,
    hooked_frame,
    is_torch_optimizer,
    negligible_gradients,
    statistics_of,
)
from traincheck.sources.recording.api_names import class_name, levels
from traincheck.sources.recording.context_facts import context_facts_with, with_fact
from traincheck.sources.recording.listener import RecorderListener
from traincheck.sources.recording.patches import UndoStack
from traincheck.sources.recording.recorder import OpenCall, Recorder
from traincheck.sources.recording.step_tracker import Cut
from traincheck.sources.tensors.deferred_values import DeferredValue, not_equal
from traincheck.sources.tensors.device_transfers import NextSeq
from traincheck.sources.tensors.reading import SOME, ZERO, hidden_from_modes
from traincheck.sources.tensors.storages import version_of
from traincheck.vocab.bounded_cache import BoundedCache
from traincheck.vocab.builtin_rules import (
    CUT_OFF,
    DECAY_OF_GROUPS,
    PARAMETER,
    REPLACED,
    REPLACED_OVER_SAMPLES,
    REUSED,
)
from traincheck.vocab.demand import COMPUTATION, MAGNITUDES, MODEL, MODULES, PARAMETERS, SOME_STATE, Demand
from traincheck.vocab.events import LIFECYCLE, TRAIN, Change, Reading
from traincheck.vocab.facts import Facts, facts, merged

if TYPE_CHECKING:
    from traincheck.sources.gradients.cut_gradients import CutGradients
    from traincheck.sources.optimizers.magnitudes import Magnitudes
    from traincheck.sources.optimizers.model_descriptions import ModelDescriptions
    from traincheck.sources.optimizers.replaced_optimizers import ReplacedOptimizers
    from traincheck.sources.optimizers.reused_gradients import ReusedGradients
    from traincheck.sources.optimizers.weight_decay_groups import WeightDecayGroups

PARAMETER_DATA, PARAMETER_GRAD, STATE_DATA = "parameter.data", "parameter.grad", "optimizer_state.data"


class OptimizerSource(RecorderListener):
    """Observes every `torch.optim.Optimizer`, through its public step hooks and a wrapped `zero_grad`."""

    name = "optimizers"

    def __init__(
        self,
        catalog: VariableCatalog,
        gradients: Gradients,
        may_step: Callable[[], None] = lambda: None,
        averaging: HandAveraging | None = None,
    ) -> None:
        self._catalog = catalog
        self._gradients = gradients
        self._may_step = may_step
        self._averaging = averaging or HandAveraging(gradients)
        self._open: list[RunningUpdate] = []
        self._updates_of: dict[str, int] = {}  # by optimizer that is not of torch, up to `GATHERING`
        self._readings: OptimizerReadings
        self._models: ModelDescriptions | None = None
        self._magnitudes: Magnitudes | None = None
        self._state_changes = OptimizerStateChanges()
        self._living: dict[str, weakref.ref[Any]] = {}
        self._replaced: ReplacedOptimizers | None = None
        self._decay: WeightDecayGroups | None = None
        self._reused: ReusedGradients | None = None
        self._reports_reused = False
        self._cut: CutGradients | None = None

    def offers(self) -> str | None:
        return None

    def attach(self, demand: Demand, recorder: Recorder) -> ExitStack:
        self._demand = demand
        self._recorder = recorder
        if recorder.reattaching:
            self._readings.set_demand(demand)
        else:
            self._readings = OptimizerReadings(self._catalog, demand, recorder)
            self._master_copies = MasterCopies(self._gradients, recorder)
        self._describes_models = [name for name in (PARAMETERS, MODULES) if demand.takes_reading(MODEL, name)]
        self._reads_magnitudes = demand.takes_reading(MODEL, MAGNITUDES)
        self._finds_replaced = demand.takes_reading(OPTIMIZER, REPLACED)
        self._finds_cut = demand.takes_reading(PARAMETER, CUT_OFF)
        self._records_steps = demand.has_other_than(COMPUTATION)  # another source records computations
        self._replicas = ReplicaReadings(demand, recorder, self._averaging)
        self._report_master_copies = report = recorder.guarded(self.name, self._master_copies.report)
        recorder.add_listener(self)
        recorder.at_end(lambda: report(TRAIN))
        recorder.at_end(self._averaging.forget)
        undo = UndoStack()
        recorder.after_gap(self.name, self._readings.forget_reported, undo=undo, repeatable=True)
        recorder.after_gap(self.name, self._report_models_again, undo=undo, repeatable=True)
        recorder.after_gap(self.name, self._catalog.refresh_holders, undo=undo)
        recorder.after_gap(self.name, self._state_changes.forget, undo=undo)
        recorder.after_gap(self.name, self._forget_first_steps, undo=undo)
        if self._cut is not None:
            self._cut.resume()
        undo.callback(self._leave_cut)
        recorder.on_detach(undo, self._living.clear)
        begin = recorder.guarded(self.name, self._step_begins, always=True)
        end = recorder.guarded(self.name, self._step_ends, always=True)
        counted = recorder.counted
        end_counting = recorder.guarded(self.name, counted.end, always=True)

        def before_step(optimizer: Any, args: Any, kwargs: Any) -> None:
            self._may_step()
            if not (counted.left and counted.optimizer() is optimizer):
                begin(optimizer, args, kwargs)

        def after_step(optimizer: Any, args: Any, kwargs: Any) -> None:
            if counted.left and counted.optimizer() is optimizer:
                if counted.count():
                    end_counting()
            else:
                end(optimizer, args, kwargs)

        recorder.hooks.add(undo, register_optimizer_step_pre_hook(before_step), begin)
        recorder.hooks.add(undo, register_optimizer_step_post_hook(after_step), end)
        built = recorder.guarded(self.name, self._built, always=True)
        replace(undo, Optimizer, "__init__", wrapping(lambda me, *a, **k: me, lambda me, _: built(me), lambda me: None))
        self._reports_reused = demand.takes_reading(OPTIMIZER, REUSED)
        if demand.takes_reading(OPTIMIZER, DECAY_OF_GROUPS):
            added = recorder.guarded(self.name, self._group_added, always=True)
            replace(undo, Optimizer, "add_param_group", wrapping(added, lambda *_: None, lambda _: None))
        observed = wrapping(
            recorder.guarded(self.name, self._clear_begins),
            recorder.guarded(self.name, self._clear_ends),
            recorder.guarded(self.name, self._clear_failed),
        )
        replace(
            undo, Optimizer, "zero_grad", lambda clear: observed(recorder.hooks.without_mode(clear)), only_watched=True
        )
        return undo

    def _report_models_again(self) -> None:
        if self._models is not None:
            self._models.forget_reported()

    def _forget_first_steps(self) -> None:
        for finder in (self._replaced, self._reused, self._cut):  # type: Any
            if finder is not None:
                finder.forget()

    def _leave_cut(self) -> None:
        if self._cut is not None:
            self._cut.leave()

    def window_closing(self, cut: Cut) -> None:
        self._report_master_copies(cut.stage)

    # -- construction ----------------------------------------------------------------------------------------------

    def _built(self, optimizer: Any) -> None:
        name = self._catalog.add_optimizer(optimizer)
        steps = self._recorder.steps
        steps.optimizer_built(name, self._recorder.next_seq())
        gone = self._recorder.guarded(self.name, lambda _: self._optimizer_gone(name))
        self._living[name] = weakref.ref(optimizer, gone)
        if self._finds_replaced and optimizer.param_groups:
            self._note_built(optimizer, name)
        call_levels = levels(type(optimizer), "__init__", Optimizer)
        if self._recorder.watching and self._demand.records_call(call_levels):
            with hidden_from_modes():
                defaults = settings(optimizer.param_groups[0]) if optimizer.param_groups else {}
            defaults.pop(KEYS, None)
            args = facts(**{**defaults, "class": class_name(type(optimizer))})
            call = self._recorder.enter(LIFECYCLE, call_levels, name, args=args)
            if self._replicas.should_read:
                with hidden_from_modes():
                    self._catalog.refresh_holders()
                    held = [(v, t) for v, t in self._catalog.living() if name in v.holders]
                    self._replicas.built(held, call.seq)
            self._recorder.leave(call)

    def _group_added(self, optimizer: Any, group: Any = None, **named: Any) -> None:
        if self._decay is None:
            from traincheck.sources.optimizers.weight_decay_groups import WeightDecayGroups  # not before an optimizer

            self._decay = WeightDecayGroups(self._recorder)
        self._decay.group_added(optimizer, named.get("param_group", group))

    def _begin_reused(self) -> ReusedGradients:
        from traincheck.sources.optimizers.reused_gradients import ReusedGradients  # not before an update

        return ReusedGradients(self._recorder)

    def _note_built(self, optimizer: Any, name: str) -> None:
        if self._replaced is None:
            from traincheck.sources.data.trained_samples import TrainedSamples  # not before an optimizer
            from traincheck.sources.optimizers.replaced_optimizers import ReplacedOptimizers

            self._replaced = ReplacedOptimizers(TrainedSamples(self._recorder))
            self._gradients.samples = self._replaced.samples
        with hidden_from_modes():
            built_with = [settings(group) for group in optimizer.param_groups]
            self._replaced.built(name, optimizer, self._recorder.sites.here(), built_with)

    def _report_replaced(self, optimizer: Any, name: str, call: int) -> None:
        assert self._replaced is not None
        with hidden_from_modes():
            replaced = self._replaced.first_step_begins(name, optimizer, self._recorder.steps.passes_ended)
        if replaced is not None and not self._catalog.is_pruned(name):
            attribute = REPLACED_OVER_SAMPLES if replaced.over_samples else REPLACED
            seq, context = self._recorder.next_seq(), facts(site=replaced.site)
            reading = Reading(seq, call, name, OPTIMIZER, attribute, replaced.name, context=context)
            self._recorder.record_reading(reading)

    def _optimizer_gone(self, name: str) -> None:
        if self._replaced is not None:
            self._replaced.gone(name)
        self._living.pop(name, None)
        self._state_changes.forget_optimizer(name)
        self._recorder.steps.optimizer_gone(name)

    # -- step ------------------------------------------------------------------------------------------------------

    def _step_begins(self, optimizer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        recorder, catalog = self._recorder, self._catalog
        if recorder.transfers.late:
            recorder.finish_late_window()
        name = catalog.add_optimizer(optimizer)
        if self._open and self._open[-1].optimizer == name and self._runs(self._open[-1]):
            return  # a subclass's `step` that calls its base method
        opened: list[RunningUpdate] = []
        recorder.steps.update_begins(name, recorder.next_seq(), lambda: any(map(self._runs, opened)))
        closure = recorder.watching and closure_of(args, kwargs) is not None
        records = recorder.watching and self._records_steps
        recorded = self._record_begin(optimizer, name, closure=closure) if records else (None, None)
        # Operations inside an optimizer of torch are not recorded, but a closure runs code of the program.
        suppressed = recorder.watching and is_torch_optimizer(optimizer) and not closure
        opened.append(RunningUpdate(recorded[0], name, recorded[1], hooked_frame(), threading.get_ident(), suppressed))
        self._open.extend(opened)
        if suppressed:
            recorder.suppression.begin()

    def _record_begin(self, optimizer: Any, name: str, *, closure: bool) -> tuple[OpenCall, StateBeforeStep]:
        """Read parameters, gradients and state before a step."""
        recorder, catalog = self._recorder, self._catalog
        call_levels = levels(type(optimizer), "step", Optimizer)
        with hidden_from_modes():
            catalog.refresh_holders()
            free = self._gradients.may_read
            living = catalog.living()
            held = [(v, t) for v, t in living if name in v.holders or (not v.holders and t.requires_grad and free(v))]
            states = self._gradients.read(held, values=False).states
            rates = _learning_rates(optimizer)
        before = StateBeforeStep(held, self._gradients.used(name, held, states, closure=closure), rates)
        updates = self._updates_of.get(name, 0)
        if updates < GATHERING and not type(optimizer).__module__.startswith("torch."):
            self._updates_of[name] = updates + 1
            before.statistics = statistics_of(optimizer)
        own = [index for index, (v, _) in enumerate(held) if name in v.holders]
        context = context_facts_with(closure=closure, lr=rate_class(max(rates.values(), default=0.0)))
        call = recorder.enter(LIFECYCLE, call_levels, name, context)

        gradients = before.gradients

        def conclude(fetched: list[str], _: NextSeq) -> None:
            gradients[:] = fetched
            call.context = with_fact(call.context, "grads", summary([fetched[index] for index in own]))

        recorder.transfers.when_ready(self.name, gradients, conclude, call=call)
        with hidden_from_modes():
            if self._demand.records_call(call_levels):  # the facts of the call need them, whatever state is requested
                before.whole = self._demand.everything or self._replicas.should_read
                before.parameters = parameter_changes.read_before(held, whole=before.whole)
            before.state_indices = self._state_indices(call_levels, name, optimizer, before)
            before.state = self._state_changes.read_before(name, optimizer, held, before.state_indices)
            data = [was.fingerprint for was in before.parameters]
            if data and self._demand.observes_state(call_levels, PARAMETER_DATA):
                rate = max(rates.values(), default=0.0)
                self._master_copies.update_begins(name, held, data, before.gradients, rate)
            if data and self._replicas.should_read:
                self._replicas.step_begins(held, data, before.gradients, call.seq)
            if self._reports_reused:
                self._reused = self._reused or self._begin_reused()
                self._reused.step_begins(optimizer, name, call.seq, self._gradients.counts()[0], closure)
        self._readings.step_begins(optimizer, name, call.seq)
        if self._decay is not None:
            self._decay.step_begins(optimizer, name, call.seq)
        if self._replaced is not None and name in self._replaced.unstepped:
            self._report_replaced(optimizer, name, call.seq)
        if self._describes_models:
            if self._models is None:
                from traincheck.sources.optimizers.model_descriptions import ModelDescriptions  # not before an update

                self._models = ModelDescriptions(catalog, recorder)
            self._models.update_begins(call.seq, optimizer, self._describes_models)
        if self._reads_magnitudes:
            if self._magnitudes is None:
                from traincheck.sources.optimizers.magnitudes import Magnitudes  # not before an update

                self._magnitudes = Magnitudes(recorder)
            before.magnitudes = self._magnitudes.read_before(name, optimizer, held, rates.values())
        return call, before

    def _state_indices(
        self, call_levels: tuple[str, ...], name: str, optimizer: Any, before: StateBeforeStep
    ) -> Sequence[int]:
        """The indices of variables whose optimizer state is recorded."""
        if self._demand.observes_state(call_levels, STATE_DATA):
            return range(len(before.held))
        if self._demand.observes_state(call_levels, SOME_STATE):
            return representatives(name, optimizer, before.held, before.gradients)
        return ()

    def _runs(self, step: RunningUpdate) -> bool:
        """Whether `step` still runs. The call of a step that raised is abandoned."""
        if step.is_running():
            return True
        if step in self._open:
            self._open.remove(step)
            if step.suppressed:
                self._recorder.suppression.end()
            if step.call is not None:
                self._recorder.abandon(step.call)
        return False

    def _step_ends(self, optimizer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        name = self._catalog.add_optimizer(optimizer)
        if not self._open or self._open[-1].optimizer != name or self._open[-1].frame is not hooked_frame():
            return
        call, _, before, _, _, suppressed = self._open.pop()
        if suppressed:
            self._recorder.suppression.end()
        if call is not None and before is not None and self._recorder.watching:
            self._record_end(call, name, before, optimizer)
        self._gradients.step_ends(name)
        if call is not None:
            self._recorder.leave(call)
        if not self._recorder.watching and is_torch_optimizer(optimizer):
            self._recorder.update_counts(optimizer, name)
        self._recorder.steps.update_ends(name)

    def _record_end(self, call: OpenCall, name: str, before: StateBeforeStep, optimizer: Any) -> None:
        """Read parameters and state after a step."""
        with hidden_from_modes():
            before.negligible = negligible_gradients(optimizer, before.held)
            if self._finds_cut and (self._cut is None or name not in self._cut.done):
                self._follow_cut(name)
            if self._replaced is not None:
                self._replaced.step_ends(name, optimizer, self._recorder.steps.passes_ended)
            if before.parameters:
                now = None if before.statistics is None else statistics_of(optimizer)
                self._record_parameters(call, name, before, now)
            if before.state_indices:
                self._record_state(call, name, before, optimizer)
            if before.magnitudes is not None and self._magnitudes is not None:
                self._magnitudes.read_after(before.magnitudes, call.seq)
        self._readings.step_ends(optimizer, name, call.seq)
        self._master_copies.update_ends()

    def _follow_cut(self, name: str) -> None:
        if self._cut is None:
            from traincheck.sources.gradients.cut_gradients import CutGradients  # not before a step

            self._cut = CutGradients(self.name, self._catalog, self._gradients, self._recorder)
        self._cut.step_ends(name)

    def _record_parameters(self, call: OpenCall, name: str, before: StateBeforeStep, now: Statistics | None) -> None:
        """Record the changes of parameters. An update of statistics alone (`now`, after it) counts as lost."""
        was, gradients = before.parameters, before.gradients
        read, negligible = before.initial_gradients, before.negligible
        after = parameter_changes.read_after(before.held, was, whole=before.whole)
        records_changes = self._demand.observes_state(call.levels, PARAMETER_DATA)
        variables = [variable for variable, _ in before.held]  # a delayed conclusion must not hold parameters
        rates = [before.rates.get(id(tensor)) for _, tensor in before.held]
        # When the conclusion is drawn, the optimizer may be gone and the gradient replaced.
        described = [
            (
                variable.facts(tensor, name),
                variable.owner,
                bool(variable.holders),
                name in variable.holders,
                version_of(tensor.grad) if type(state) is DeferredValue and tensor.grad is not None else None,
            )
            for (variable, tensor), state in zip(before.held, read, strict=True)
        ]
        gathered = () if now is None else before.gathered(now)
        # A closure computes the gradients within the step, so none is there before it.
        filled: Collection[int] = ()
        if ("closure", True) in call.context:
            filled = {index for index, (_, tensor) in enumerate(before.held) if tensor.grad is not None}

        def conclude(fetched: list[Any], next_seq: NextSeq) -> None:
            should_change = [
                (graded == SOME or index in filled) and rates[index] != 0 for index, graded in enumerate(gradients)
            ]
            own: set[str] = set()
            changes = []
            for index, outcome in enumerate(parameter_changes.conclude(variables, was, after, fetched, should_change)):
                gradient = ZERO if index in negligible else str(gradients[index])
                variable, rate = variables[index], rates[index]
                facts_of, owner, is_held, is_own, version = described[index]
                changed, fingerprint = outcome
                if not is_held and not self._should_be_updated(variable, gradient):
                    continue
                is_graded = gradient == SOME or index in filled
                lost = not changed and is_graded
                variable.unchanged_updates = variable.unchanged_updates + 1 if lost else 0
                if lost and index not in gathered:
                    from traincheck.sources.optimizers.lost_updates import lost_in_rounding  # seldom used

                    lost = lost_in_rounding(variable, rate, read[index], version)
                if is_own:
                    own.add("changed" if changed else "lost" if lost else gradient)
                if not records_changes:
                    continue
                changes.append(
                    Change(
                        seq=next_seq(),
                        call=call.seq,
                        variable=variable.name,
                        kind="parameter",
                        attribute="data",
                        before=SOME,
                        after=SOME,
                        changed=changed,
                        owner=owner,
                        context=step_facts(facts_of, gradient, rate, lost=lost),
                        fingerprint=fingerprint,
                    )
                )
            self._recorder.record_changes(changes)
            call.context = with_fact(call.context, "lost", "lost" in own and not own & {"changed", SOME})

        deferred = parameter_changes.deferred_parts(after)
        self._recorder.transfers.when_ready(self.name, deferred, conclude, call=call, events=len(variables))

    def _should_be_updated(self, variable: Variable, gradient: str) -> bool:
        """Whether an update should have covered a variable that no optimizer holds: its gradient is of this step.
        Gradients left over from an earlier model do not count."""
        return variable in self._gradients.fresh if gradient == SOME else variable.owned

    def _record_state(self, call: OpenCall, name: str, before: StateBeforeStep, optimizer: Any) -> None:
        after = self._state_changes.read_after(name, optimizer, before.held, before.state_indices)
        differs = [not_equal(before.state.get(entry), digest) for entry, digest in after.items()]
        gradients, negligible = before.gradients, before.negligible
        of_entries = []
        for index, entry in after:
            variable, tensor = before.held[index]
            facts_and_rate = variable.facts(tensor, name), before.rates.get(id(tensor))
            known_before = "none" if before.state.get((index, entry)) is None else SOME
            # Interned, so that all steps share one object.
            of_entries.append((index, sys.intern(f"{variable.name}:{entry}"), known_before, *facts_and_rate))

        def conclude(fetched: list[Any], next_seq: NextSeq) -> None:
            changes = []
            for number, (index, entry_name, old, facts_of, rate) in enumerate(of_entries):
                changes.append(
                    Change(
                        seq=next_seq(),
                        call=call.seq,
                        variable=entry_name,
                        kind="optimizer_state",
                        attribute="data",
                        before=old,
                        after=SOME,
                        changed=fetched[number + len(of_entries)],
                        owner=name,
                        context=step_facts(facts_of, ZERO if index in negligible else str(gradients[index]), rate),
                        fingerprint=fetched[number],
                    )
                )
            self._recorder.record_changes(changes)

        self._recorder.transfers.when_ready(self.name, [*after.values(), *differs], conclude, events=len(after))

    # -- zero_grad -------------------------------------------------------------------------------------------------

    def _clear_begins(self, optimizer: Any, set_to_none: bool = True) -> tuple[OpenCall, str, Snapshot] | None:
        self._recorder.between_calls()
        catalog = self._catalog
        call_levels = levels(type(optimizer), "zero_grad", Optimizer)
        if not self._demand.records_call(call_levels) and not self._demand.observes_state(call_levels, PARAMETER_GRAD):
            return None
        name = catalog.add_optimizer(optimizer)
        with hidden_from_modes():
            catalog.refresh_holders()
            held = [(v, t) for v, t in catalog.living() if name in v.holders]
            snapshot = self._gradients.read(held, values=False)
        call = self._recorder.enter(LIFECYCLE, call_levels, name, context_facts_with(set_to_none=bool(set_to_none)))
        self._gradients.record_states(call, snapshot)
        return call, name, snapshot

    def _clear_ends(self, token: tuple[OpenCall, str, Snapshot], result: Any) -> None:
        call, name, snapshot = token
        with hidden_from_modes():
            self._gradients.compare(snapshot, call.seq, name)
        self._recorder.leave(call)

    def _clear_failed(self, token: tuple[OpenCall, str, Snapshot]) -> None:
        self._recorder.abandon(token[0])


NEGLIGIBLE = 16 * torch.finfo(torch.float32).eps
"""Below this learning rate (2e-6), rounding may cancel the update of a value near one without any error in the program.
"""


def _learning_rates(optimizer: Any) -> dict[int, float]:
    """The learning rate of each parameter (by identity), that of its group."""
    rates: dict[int, float] = {}
    for group in optimizer.param_groups:
        rate = float(group.get("lr", 1.0))
        rates.update(dict.fromkeys(map(id, group["params"]), rate))
    return rates


def rate_class(rate: float | None) -> str:
    """A learning rate as a fact: none, negative, zero, negligible or positive."""
    if rate is None:
        return "none"
    if rate <= 0:
        return "zero" if rate == 0 else "negative"
    return "positive" if rate >= NEGLIGIBLE else "negligible"


_step_facts_cache: BoundedCache[tuple[Facts, str, str, bool], Facts] = BoundedCache()


def step_facts(base: Facts, gradient: str, rate: float | None, *, lost: bool = False) -> Facts:
    """The facts of a variable, with its gradient state and learning rate in an update."""
    lr = rate_class(rate)
    key = (base, gradient, lr, lost)
    cached = _step_facts_cache.get(key)
    if cached is None:
        cached = _step_facts_cache.put(key, merged(base, grad=gradient, lr=lr, lost=lost))
    return cached
