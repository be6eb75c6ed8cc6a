"""Source `replays`: executes some training steps again and records whether the results have the same bits.

The source captures a call of the outermost model when it begins. After the backward through its result, and before any
write to the parameters, it replays the call and its backward (see captured_call.py). It replays an update on copies,
right before the real one. verdicts.py judges the results, and peer_check.py compares ranks.

Note [Which call is replayed]
The source captures, for each model, its first call in a step that trains it. It replays the call after the first
backward through its result, in whatever order models and backwards alternate. With gradient accumulation over several
calls, it replays the first of them. It compares gradients only where they come from this call alone. In a job of
several ranks, each rank replays its own share, without the exchange of gradients.
"""

from __future__ import annotations

import functools
import re
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from traincheck.sources.base import replace, wrapping
from traincheck.sources.distributed.replica_readings import several_ranks
from traincheck.sources.modules.live_modules import has_parameters
from traincheck.sources.modules.module_calls import ModuleCalls
from traincheck.sources.modules.modules import keywords_of_call
from traincheck.sources.modules.variables import VariableCatalog
from traincheck.sources.optimizers.running_updates import closure_of
from traincheck.sources.recording.listener import RecorderListener
from traincheck.sources.recording.patches import UndoStack
from traincheck.sources.recording.recorder import Recorder
from traincheck.sources.replay.captured_call import CapturedCall
from traincheck.sources.replay.fingerprints import CannotReplay, ExecutionResult
from traincheck.sources.replay.peer_check import PeerCheck, PeerResult
from traincheck.sources.replay.restorable_call import tensors_in
from traincheck.sources.replay.state_snapshot import without_modes
from traincheck.sources.replay.update_replay import CapturedUpdate
from traincheck.sources.replay.verdicts import TRUSTED, Attempt, OddOneOut, ReplayHistory, Verdict
from traincheck.sources.verification.experiment_source import ExperimentSource
from traincheck.sources.verification.verified_steps import Turn, VerifiedSteps
from traincheck.vocab.events import NO_CALL, Reading
from traincheck.vocab.facts import facts
from traincheck.vocab.replayed_computations import BACKWARD, DIFFERS, ELSEWHERE, FORWARD, KIND, SAME, UPDATE

WARM_UP_STEPS = 3
"""First steps that are always replayed, to establish trust before it matters."""

MIN_SPACING = 10
"""Steps at least between two calls sent to another rank. Copies of the parameters are kept until the next one; a call
that arrives later cannot be judged."""

_NOT_DETERMINISTIC = re.compile(r"(\S+) does not have a deterministic implementation")


class ReplaySource(ExperimentSource, RecorderListener):
    """Executes verified steps again. It attaches after the source `modules`."""

    name = "replays"
    experiments = ()
    turn = Turn.REPLAY

    def __init__(self, calls: ModuleCalls, catalog: VariableCatalog, steps: VerifiedSteps) -> None:
        super().__init__(steps)
        self._calls = calls
        self._catalog = catalog
        self._histories: dict[str, ReplayHistory] = {}
        self._subjects: dict[str, weakref.ref[Any]] = {}
        self._step = 0  # the last replayed step
        self._replayed: set[str] = set()  # models and optimizers replayed in it
        self._first = 0
        self._requested = False
        self._captured: list[CapturedCall] = []  # calls without a backward so far; the last may be under way
        self._thread = 0
        self._update: CapturedUpdate | None = None
        self._repetition: list[ExecutionResult] = []
        self._next_index: dict[str, int] = {}  # by optimizer: where its next replayed update begins
        self._peers: PeerCheck | None = None
        self._last_sent = 0

    def _observe(self, undo: UndoStack, recorder: Recorder) -> None:
        def guarded(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
            @functools.wraps(function)
            def quiet(*args: Any) -> None:
                with without_modes():
                    function(*args)

            return recorder.guarded(name, quiet)

        recorder.add_listener(self)
        capture, returned = guarded(self.name, self._capture), guarded(self.name, self._returned)

        def begins(module: nn.Module, args: Any) -> None:
            if torch._C._get_tracing_state() is not None:
                return
            if self._captured and not recorder.watching:
                self._release()  # guarded functions rest until the next watched step
            if self._calls.depth == 1 and (self._captured or (torch.is_grad_enabled() and self._should_replay())):
                capture(module, args)

        def ends(module: nn.Module, args: Any, output: Any) -> None:
            if self._captured and not self._captured[-1].returned and torch._C._get_tracing_state() is None:
                returned(module, output)

        self._calls.add_listener(begins, ends)
        on_backward_end = guarded(self.name, self._backward_over)
        on_backward = guarded(self.name, self._backward_begins)

        def follow(*args: Any, **kwargs: Any) -> bool | None:
            needed = self._needs_backward_end()
            if needed and self._captured:
                on_backward(args[0] if args else kwargs.get("tensors"))
            return needed

        replace(
            undo, torch.autograd, "backward", wrapping(follow, lambda token, _: on_backward_end(), lambda token: None)
        )
        begin, end = guarded(self.name, self._update_begins), guarded(self.name, self._update_ends)

        def update_begins(optimizer: Any, args: Any, kwargs: Any) -> None:
            if recorder.steps.window_step == self._step and threading.get_ident() == self._thread:
                begin(optimizer, args, kwargs)

        def update_ends(optimizer: Any, args: Any, kwargs: Any) -> None:
            if self._update is not None:
                end(optimizer, args, kwargs)

        recorder.hooks.add(undo, register_optimizer_step_pre_hook(update_begins), update_begins)
        recorder.hooks.add(undo, register_optimizer_step_post_hook(update_ends), update_ends)

    def _on_detach(self) -> None:
        self._release()
        peers, self._peers = self._peers, None
        if peers is not None:
            peers.close()

    def suspicion_raised(self) -> None:
        """Replay the next step, after a finding."""
        self._requested = True

    # -- the call --------------------------------------------------------------------------------------------------

    def _should_replay(self) -> bool:
        recorder = self._recorder
        if not (recorder.watching and recorder.hooks.in_one_thread):  # all threads share the random streams
            return False
        step = recorder.steps.window_step
        if step == self._step:
            return True
        self._first = self._first or step
        warms = step < self._first + WARM_UP_STEPS
        return warms or self._requested or self._verifies(step) or self._has_suspicion()

    def _history_of(self, name: str, subject: Any) -> ReplayHistory:
        """Return the replay history of a model or optimizer; a new one where another object took its name."""
        reference = self._subjects.get(name)
        if reference is None or reference() is not subject:
            self._subjects[name] = weakref.ref(subject)
            self._histories[name] = ReplayHistory()
        return self._histories[name]

    def _has_suspicion(self) -> bool:
        return any(history.confirming for history in self._histories.values())

    def _capture(self, module: nn.Module, args: Any) -> None:
        """Note that a call begins while another is captured, or capture it."""
        step = self._recorder.steps.window_step
        if self._captured and threading.get_ident() != self._thread:
            return
        if torch._C._current_graph_task_id() >= 0:  # a backward recomputes it
            return
        self._release(lambda call: not call.returned or step != self._step)  # interrupted, or without a backward
        for call in self._captured:
            call.shared_calls += any(id(parameter) in call.versions for parameter in module.parameters())
        if not (module.training and torch.is_grad_enabled() and self._should_replay()):
            return
        if not has_parameters(module):
            return
        name = self._catalog.module_name(module)
        history = self._history_of(name, module)
        if step != self._step:
            self._step, self._requested = step, False
            self._replayed.clear()
        if history.disabled_reason or name in self._replayed:
            return
        self._replayed.add(name)
        self._thread = threading.get_ident()
        if not history.begin_attempt():
            self._recorder.report_unobservable(
                f"replays: {name} was not replayed in some steps: no backward passed through the result of its first "
                "call before its parameters changed"
            )
        try:
            call = CapturedCall(name, module, args, keywords_of_call(self._recorder), self._guarded)
        except CannotReplay as error:
            self._give_up(name, str(error))
        else:
            call.site = self._recorder.sites.here()
            self._captured.append(call)

    def _guarded(self, hook: Callable[..., Any]) -> Callable[..., Any]:
        return self._recorder.guarded(self.name, hook)

    def _returned(self, module: nn.Module, output: Any) -> None:
        if threading.get_ident() != self._thread:
            return
        call = self._captured[-1]
        call.inner_returned(module, output)
        if module is not call.outermost:
            return
        call.returns(output)
        if not tensors_in(output):  # an object of the program, such as a distribution
            self._release(lambda other: other is call)
            reason = "a call of it returned nothing, or raised an exception"
            if output is not None:
                reason = f"TrainCheck finds no tensors in its result ({type(output).__name__})"
            self._give_up(call.name, reason)

    def _needs_backward_end(self) -> bool | None:
        """Return a token where the end of a backward matters: for a captured call, or a call of another rank."""
        if threading.get_ident() != self._thread or not self._recorder.hooks.in_one_thread:
            return None
        return bool(self._captured) or self._has_peer_case or None

    def _backward_begins(self, starts: Any) -> None:
        for call in self._captured:
            if call.returned:
                call.backward_begins(starts)

    @property
    def _has_peer_case(self) -> bool:
        """Whether a call of another rank waits for judgement."""
        return self._peers is not None and self._peers.has_case

    def _backward_over(self) -> None:
        if self._peers is not None and self._has_peer_case:
            with self._recorder.hooks.suspended():
                self._record_peer_result(self._peers.judge())
        for call in self._release(lambda call: call.has_gradients):
            if call.unchanged:
                self._repeat(call)

    def _repeat(self, call: CapturedCall) -> None:
        ranks = several_ranks()
        with self._recorder.hooks.suspended():
            verdict = self._replay(call.name, call.site, call.seen, lambda inside: call.execute(ranks, inside))
        self._record_verdict(call.name, verdict, (FORWARD, BACKWARD) if call.one_backward else (FORWARD,))
        trusted = verdict is not None and verdict.kind == SAME and self._histories[call.name].same >= TRUSTED
        spacing = max(self._steps.every, MIN_SPACING)
        if ranks and trusted and (not self._last_sent or self._step >= self._last_sent + spacing):
            self._last_sent = self._step
            self._peers = self._peers or PeerCheck(
                lambda reason: self._recorder.report_unobservable(f"replays: {reason}")
            )
            self._peers.send(self._step, call)

    def _release(self, which: Callable[[CapturedCall], bool] = lambda call: True) -> list[CapturedCall]:
        """Stop following these calls, and return them."""
        gone = [call for call in self._captured if which(call)]
        self._captured = [call for call in self._captured if call not in gone]
        for call in gone:
            call.remove_hooks()
        return gone

    # -- the update ------------------------------------------------------------------------------------------------

    def _update_begins(self, optimizer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if not self._recorder.hooks.in_one_thread or closure_of(args, kwargs) is not None:
            return
        name = self._catalog.add_optimizer(optimizer)
        history = self._history_of(name, optimizer)
        if history.disabled_reason or name in self._replayed:
            return
        self._replayed.add(name)
        history.begin_attempt()
        self._update = None
        try:
            with self._silent():
                update = CapturedUpdate(name, optimizer, self._name_of, self._next_index.get(name, 0))
                self._repetition = [update.execute()]
            update.site = self._recorder.sites.here()
            self._update = update
        except CannotReplay as error:
            self._give_up(name, str(error))

    def _update_ends(self, optimizer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        update, self._update = self._update, None
        if update is None or not update.is_of(optimizer):
            return
        results = iter(self._repetition)
        self._repetition = []
        with self._silent():
            verdict = self._replay(
                update.name, update.site, update.real_result(), lambda _: next(results, None) or update.execute()
            )
        if not self._histories[update.name].suspicion:  # otherwise the same parameters are replayed again
            self._next_index[update.name] = update.next
        self._record_verdict(update.name, verdict, (UPDATE,))

    def _name_of(self, parameter: torch.Tensor) -> str:
        variable = self._catalog.find(parameter)
        return "a parameter" if variable is None else variable.name

    # -- verdicts --------------------------------------------------------------------------------------------------

    def _replay(
        self, name: str, site: str, original: ExecutionResult, execute: Callable[[bool], ExecutionResult]
    ) -> Verdict | None:
        history = self._histories[name]
        try:
            attempt = _compare_executions(self._step, site, original, execute)
            verdict = history.judge(attempt, lambda: _nondeterministic(lambda: execute(False)))
        except CannotReplay as error:
            self._give_up(name, str(error))
            return None
        if history.disabled_reason:
            self._give_up(name, history.disabled_reason)
        return verdict

    def _give_up(self, name: str, reason: str) -> None:
        self._histories[name].disabled_reason = reason
        self._recorder.report_unobservable(f"replays: {name} cannot be replayed: {reason}")

    def _record_verdict(self, name: str, verdict: Verdict | None, parts: tuple[str, ...]) -> None:
        if verdict is None:
            return
        kind, attempt = verdict
        context = () if kind == SAME else facts(first=attempt.first, step=attempt.step, site=attempt.site)
        for part in parts if kind == SAME else (attempt.part,):
            seq = self._recorder.next_seq()
            self._recorder.record_reading(Reading(seq, NO_CALL, name, KIND, part, kind, context=context))

    def _record_peer_result(self, result: PeerResult | None) -> None:
        if result is None:
            return
        details = facts(
            first=result.first,
            part=result.part,
            step=result.step,
            ranks="+".join(map(str, result.ranks)),
            compared=result.compared,
        )
        kind, context = (DIFFERS, details) if result.ranks else (SAME, ())
        seq = self._recorder.next_seq()
        self._recorder.record_reading(Reading(seq, NO_CALL, result.name, KIND, ELSEWHERE, kind, context=context))

    # -- hidden from TrainCheck------------------------------------------------------------------------------------

    @contextmanager
    def _silent(self) -> Iterator[None]:
        """As `GlobalHooks.suspended`, while torch iterates over its table of hooks, which must not change."""
        here = self._recorder.hooks.thread
        here.suspended = True
        try:
            yield
        finally:
            here.suspended = False


def _compare_executions(
    step: int, site: str, original: ExecutionResult, execute: Callable[[bool], ExecutionResult]
) -> Attempt:
    """Execute a call again and compare; `execute` takes whether to observe modules inside.

    Modules are observed only after a difference, because it is expensive.
    """
    second = execute(False)
    differs = original.first_difference(second)
    if differs is None:
        return Attempt(step, OddOneOut.NONE, site=site)
    third = execute(True)
    same = second.first_difference(third) is None
    inside = original.first_difference(third)
    if inside is None:
        return Attempt(step, OddOneOut.REPETITION, *differs, site)
    return Attempt(step, OddOneOut.ORIGINAL if same else OddOneOut.ALL, *inside, site)


def _nondeterministic(execute: Callable[[], ExecutionResult]) -> str:
    """Return the operation that torch reports as nondeterministic, if any."""
    enabled, warns = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            torch.use_deterministic_algorithms(True, warn_only=True)
            execute()
        finally:
            torch.use_deterministic_algorithms(enabled, warn_only=warns)
    matches = (_NOT_DETERMINISTIC.search(str(warning.message)) for warning in caught)
    return next((warning.group(1) for warning in matches if warning), "")
