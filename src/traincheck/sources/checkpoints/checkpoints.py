"""Source `checkpoints`: compares saved and loaded states with the live state."""

from __future__ import annotations

import functools
import sys
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from traincheck.sources.base import replace, replace_everywhere, wrapping
from traincheck.sources.checkpoints.saved_state import SavedStateReadings
from traincheck.sources.checkpoints.state_dicts import (
    Candidate,
    ModuleState,
    match_modules,
    members,
    module_state,
    state_mappings,
    unwrapped,
)
from traincheck.sources.modules.live_modules import unwrap_compiled
from traincheck.sources.modules.variables import VariableCatalog
from traincheck.sources.optimizers.hyperparameters import OptimizerReadings, settings
from traincheck.sources.recording.api_names import levels
from traincheck.sources.recording.context_facts import context_facts
from traincheck.sources.recording.patches import UndoStack
from traincheck.sources.recording.recorder import OpenCall, Recorder
from traincheck.sources.recording.sampling_gate import FILE, STATE_DICT
from traincheck.sources.tensors.reading import hidden_from_modes
from traincheck.vocab.demand import CHECKPOINT, ENTRIES, KEPT, MERGED, RESUMED, Demand
from traincheck.vocab.events import LIFECYCLE, LOADED, NO_CALL, PROJECT, SAVED, Reading
from traincheck.vocab.facts import facts

if TYPE_CHECKING:
    from traincheck.sources.checkpoints.kept_states import KeptStates
    from traincheck.sources.checkpoints.merged_states import MergedStates
    from traincheck.sources.checkpoints.resumed_training import ResumedTraining, Unrestored
    from traincheck.sources.checkpoints.saved_entries import SavedEntries

MAX_SCHEDULERS = 64
"""Schedulers that are followed, the latest ones."""

MAX_STATE_DICT_MODULES = 16
"""Modules remembered for a recent `state_dict` call; more of them are layers of a model saved piece by piece."""

SAVE = ("torch.save",)
SAFETENSORS = "safetensors.torch"
SAVE_FILE = (f"{SAFETENSORS}.save_file",)


class _Depth(threading.local):
    value = 0


class _ReturnedState(NamedTuple):
    """A state dict returned by a module, with the number of updates of all optimizers before it."""

    state: weakref.ref[Any]
    module: weakref.ref[nn.Module]
    updates: int


class CheckpointSource:
    """Observes `torch.save`, `safetensors.torch.save_file`, and `state_dict` and `load_state_dict` of modules and
    optimizers.

    Known limitations: TrainCheck looks for `safetensors` at the start, at a `state_dict` call and after an optimizer
    step. Saves through other libraries are seen only where they end in these calls.
    """

    name = "checkpoints"

    def __init__(self, catalog: VariableCatalog) -> None:
        self._catalog = catalog
        self._depth = _Depth()
        self._updates = 0
        self._returned: dict[int, _ReturnedState] = {}
        self._kept: KeptStates | None = None
        self._merged: MergedStates | None = None
        self._resumed: ResumedTraining | None = None
        self._schedulers: list[weakref.ref[Any]] = []
        self._state_dict_modules: dict[int, weakref.ref[nn.Module]] = {}
        self._safetensors = False

    def offers(self) -> str | None:
        return None

    def attach(self, demand: Demand, recorder: Recorder) -> ExitStack:
        self._demand = demand
        self._recorder = recorder
        self._states = SavedStateReadings(self._catalog, demand, recorder)
        self._describes_entries = demand.takes_reading(CHECKPOINT, ENTRIES)
        self._entries: SavedEntries | None = None
        self._finds_kept = demand.takes_reading(CHECKPOINT, KEPT)
        self._finds_merged = demand.takes_reading(CHECKPOINT, MERGED)
        self._finds_resumed = demand.takes_reading(CHECKPOINT, RESUMED)
        follows_states = self._finds_kept or self._finds_merged
        self._settings = OptimizerReadings(self._catalog, demand, recorder)
        self._undo = undo = UndoStack()
        recorder.after_gap(self.name, self._report_entries_again, undo=undo, repeatable=True)
        recorder.after_gap(self.name, self._forget_resumed, undo=undo)
        self._safetensors = False
        if demand.records_call(SAVE) or self._finds_resumed:
            replace_everywhere(undo, "torch", "save", self._around(self._save_begins, self._ends, FILE))
        saves = demand.everything or any(api.endswith(".state_dict") for api in demand.calls) or self._wants_saves()
        loads = demand.everything or any(api.endswith(".load_state_dict") for api in demand.calls)
        if saves or follows_states:
            replace(undo, nn.Module, "state_dict", self._around_state_dict())
        if loads or follows_states or self._finds_resumed:
            replace(undo, nn.Module, "load_state_dict", self._around(self._load_begins, self._load_ends))
        if saves:
            replace(undo, Optimizer, "state_dict", self._around(self._optimizer_begins, self._optimizer_state_ends))
        if loads or self._finds_resumed:
            replace(
                undo,
                Optimizer,
                "load_state_dict",
                self._around(self._optimizer_load_begins, self._optimizer_load_ends),
            )
        if self._wants_saves() or self._finds_kept or self._finds_resumed:
            stepped = recorder.guarded(self.name, self._stepped, always=True)
            recorder.hooks.add(undo, register_optimizer_step_post_hook(stepped), stepped)
        if self._finds_merged or self._finds_resumed:
            steps = recorder.guarded(self.name, self._step_begins)
            recorder.hooks.add(undo, register_optimizer_step_pre_hook(steps), steps)
            replace_everywhere(undo, "torch", "load", self._around(self._read_begins, self._file_read))
        if self._finds_resumed:
            self._observe_other_loads(undo)
        if self._wants_saves():
            self._look_for_safetensors()
        return undo

    def _wants_saves(self) -> bool:
        return self._demand.records_call(SAVE) or self._demand.records_call(SAVE_FILE)

    def _around(
        self, begins: Callable[..., Any], ends: Callable[[Any, Any], None], kind: str = STATE_DICT
    ) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        guarded = self._recorder.guarded
        return wrapping(self._rare(kind, begins), guarded(self.name, ends), guarded(self.name, self._failed))

    def _rare(self, kind: str, begins: Callable[..., Any]) -> Callable[..., Any]:
        """`begins`, guarded, after the report of a rare event of this kind."""
        recorder = self._recorder

        def rarely(*args: Any, **kwargs: Any) -> Any:
            recorder.rare_event(kind)
            return begins(*args, **kwargs) if recorder.watching else None

        return recorder.guarded(self.name, rarely, always=True)

    def _failed(self, token: tuple[OpenCall | None, Any]) -> None:
        if token[0] is not None:
            self._recorder.abandon(token[0])

    def _ends(self, token: tuple[OpenCall | None, Any], result: Any) -> None:
        if token[0] is not None:
            self._recorder.leave(token[0])

    def _stepped(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        self._updates += 1
        self._look_for_safetensors()

    # -- saving ----------------------------------------------------------------------------------------------------

    def _save_begins(self, saved: Any = None, *args: Any, **kwargs: Any) -> tuple[OpenCall, None] | None:
        saved, target = kwargs.get("obj", saved), kwargs.get("f", args[0] if args else None)
        if self._finds_resumed:
            resumed, passes = self._resumed_training(), self._recorder.steps.passes_ended
            with hidden_from_modes():
                for unrestored in resumed.saved(saved, target, self._updates, passes):
                    self._report_unrestored(unrestored)
        if not self._demand.records_call(SAVE):
            return None
        call = self._recorder.enter(LIFECYCLE, SAVE, "", context_facts())
        self._record_saved(call, saved, target)
        return call, None

    def _record_saved(self, call: OpenCall, saved: Any, target: Any) -> None:
        """Record what is saved to `target`: its entries, and each state of a living module in it."""
        if self._describes_entries:
            if self._entries is None:
                from traincheck.sources.checkpoints.saved_entries import SavedEntries  # not before the first save

                self._entries = SavedEntries(self._recorder)
            with hidden_from_modes():
                self._entries.record(call.seq, saved, target)
        if not self._states.should_read:
            return
        with hidden_from_modes():
            others = []
            for mapping in state_mappings(saved):
                returned = self._returned.get(id(mapping))
                module = returned.module() if returned is not None and returned.state() is mapping else None
                if returned is not None and module is not None:
                    fresh = True if returned.updates == self._updates else None
                    self._states.record(call.seq, module_state(module, mapping), SAVED, fresh=fresh)
                else:
                    others.append(mapping)
            for matched in self._match_modules(others):
                self._states.record(call.seq, matched, SAVED)

    def _report_entries_again(self) -> None:
        if self._entries is not None:
            self._entries.forget_reported()

    def _match_modules(self, others: list[Mapping[str, Any]]) -> Iterator[ModuleState]:
        """Match mappings that no known `state_dict` call returned with living modules.

        The catalog of modules is refreshed once if a matching module does not share memory with the mapping: another
        module may.
        """
        candidates = self._candidates() if others else []
        searched = False
        for mapping in others:
            matches, certain = match_modules(mapping, candidates)
            if not searched and not certain and (matches or not candidates):
                searched = True
                self._catalog.refresh_modules()
                candidates = self._candidates()
                matches, _ = match_modules(mapping, candidates)
            yield from matches

    def _candidates(self) -> list[Candidate]:
        """Return the outermost modules, the modules they wrap, and modules with a recent `state_dict` call."""
        modules = [
            module for reference in list(self._state_dict_modules.values()) if (module := reference()) is not None
        ]
        every = [inner for module in (*self._catalog.outermost(), *modules) for inner in unwrapped(module)]
        return [Candidate(module, members(module)) for module in {id(module): module for module in every}.values()]

    def _look_for_safetensors(self) -> None:
        """Observe `save_file` once its module is loaded, at the function that it calls.

        Programs import `save_file` by name, so replacing it would come too late for them.
        """
        module = sys.modules.get(SAFETENSORS)
        if self._safetensors or module is None or not self._demand.records_call(SAVE_FILE):
            return
        if getattr(module, "save_file", None) is None:
            return  # the import is not complete
        self._safetensors = True
        code = getattr(module.save_file, "__code__", None)
        begins = functools.partial(self._file_begins, code)
        replace(self._undo, module, "serialize_file", self._around(begins, self._ends, FILE))

    def _file_begins(self, code: Any, *args: Any, **kwargs: Any) -> tuple[OpenCall, None] | None:
        frame = sys._getframe(1)
        while frame.f_code is not code:
            if frame.f_back is None:
                return None  # another caller
            frame = frame.f_back
        call = self._recorder.enter(LIFECYCLE, SAVE_FILE, "", context_facts())
        self._record_saved(call, frame.f_locals.get("tensors"), frame.f_locals.get("filename"))
        return call, None

    # -- state dicts of modules ------------------------------------------------------------------------------------

    def _around_state_dict(self) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """Wrap `Module.state_dict`, which calls itself for nested modules: only the outermost call is recorded."""
        guarded, depth = self._recorder.guarded, self._depth
        begins, ends = self._rare(STATE_DICT, self._state_begins), guarded(self.name, self._state_ends)
        failed = guarded(self.name, self._failed)

        def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
            observed = wrapping(begins, ends, failed)(function)

            @functools.wraps(function)
            def wrapper(*args: Any, **kwargs: Any) -> Any:
                if depth.value:
                    return function(*args, **kwargs)
                depth.value = 1
                try:
                    return observed(*args, **kwargs)
                finally:
                    depth.value = 0

            return wrapper

        return decorate

    def _state_begins(self, module: nn.Module, *args: Any, **kwargs: Any) -> tuple[OpenCall | None, Any]:
        self._look_for_safetensors()
        call_levels = levels(type(unwrap_compiled(module)), "state_dict", nn.Module)
        prefix = kwargs.get("prefix", args[1] if len(args) > 1 else "")
        call = None
        if self._demand.records_call(call_levels):
            call = self._recorder.enter(LIFECYCLE, call_levels, self._catalog.module_name(module), context_facts())
        return call, (module, prefix)

    def _state_ends(self, token: tuple[OpenCall | None, Any], state: Any) -> None:
        call, (module, prefix) = token
        if not isinstance(state, dict):
            return
        self._remember(state, module)
        if self._finds_kept:
            if self._kept is None:
                from traincheck.sources.checkpoints.kept_states import KeptStates  # not before the first state

                self._kept = KeptStates()
            self._kept.add(state, self._updates)
        if self._finds_merged:
            self._merged_states().add(state, module, self._recorder.sites.here())
        if call is not None:
            if self._states.should_read:
                with hidden_from_modes():
                    matched = module_state(module, state, prefix)
                    if any(pair.other is not None for pair in matched.pairs()):  # none if sharded
                        self._states.record(call.seq, matched, SAVED, fresh=True)
            self._recorder.leave(call)

    def _merged_states(self) -> MergedStates:
        if self._merged is None:
            from traincheck.sources.checkpoints.merged_states import MergedStates  # not before the first state

            self._merged = MergedStates()
        return self._merged

    def _read_begins(self, file: Any = None, *args: Any, **kwargs: Any) -> tuple[None, Any]:
        return None, kwargs.get("f", file)

    def _file_read(self, token: tuple[None, Any], loaded: Any) -> None:
        for state in state_mappings(loaded) if self._finds_merged else ():
            self._merged_states().add_tensors(state)
        if self._finds_resumed:
            resumed, site = self._resumed_training(), self._recorder.sites.here()
            with hidden_from_modes():
                resumed.file_read(loaded, token[1], self._updates, site, self._schedulers)

    def _remember(self, state: Any, module: nn.Module) -> None:
        """Remember, by weak reference, that `module` returned this state."""
        self._state_dict_modules.pop(id(module), None)
        self._state_dict_modules[id(module)] = weakref.ref(module)
        if len(self._state_dict_modules) > MAX_STATE_DICT_MODULES:
            del self._state_dict_modules[next(iter(self._state_dict_modules))]
        self._returned = {
            key: returned for key, returned in list(self._returned.items()) if returned.state() is not None
        }
        try:
            self._returned[id(state)] = _ReturnedState(weakref.ref(state), weakref.ref(module), self._updates)
        except TypeError:
            return  # a plain dict allows no weak reference; some libraries return it

    def _load_begins(
        self, module: nn.Module, state: Any = None, *args: Any, **kwargs: Any
    ) -> tuple[OpenCall, tuple[nn.Module, Any]] | None:
        call_levels = levels(type(unwrap_compiled(module)), "load_state_dict", nn.Module)
        state = kwargs.get("state_dict", state)
        if self._kept is not None and self._finds_kept and isinstance(state, dict) and not kwargs.get("assign"):
            self._find_kept(self._kept, module, state)
        if self._merged is not None and self._finds_merged and isinstance(state, dict):
            self._merged.note_load(state)
        if self._resumed is not None and self._finds_resumed and isinstance(state, dict):
            with hidden_from_modes():
                self._resumed.module_loads(module, state, self._recorder.steps.optimizers)
        if not isinstance(state, dict) or not self._demand.records_call(call_levels):
            return None
        around = self._recorder.innermost_call()
        if around is None or around.kind == PROJECT:
            self._recorder.steps.load_begins(self._recorder.next_seq())
        call = self._recorder.enter(LIFECYCLE, call_levels, self._catalog.module_name(module), context_facts())
        return call, (module, dict(state))

    def _find_kept(self, kept: KeptStates, module: nn.Module, state: dict[str, Any]) -> None:
        """Report that a state is the memory of the model that loads it."""
        updates = kept.updates_since(module, state, self._updates)
        if updates is not None:
            name, recorder = self._catalog.module_name(module), self._recorder
            context = facts(site=recorder.sites.here())
            recorder.record_reading(
                Reading(recorder.next_seq(), NO_CALL, name, CHECKPOINT, KEPT, updates, context=context)
            )

    def _find_forgotten(self, optimizer: Any, merged: MergedStates) -> None:
        """Report the states of modules that an optimizer is about to update, see merged_states.py."""
        for module, site, count in merged.forgotten(optimizer):
            name, recorder = self._catalog.module_name(module), self._recorder
            context = facts(site=site)
            recorder.record_reading(
                Reading(recorder.next_seq(), NO_CALL, name, CHECKPOINT, MERGED, count, context=context)
            )

    # -- training that is resumed ----------------------------------------------------------------------------------

    def _resumed_training(self) -> ResumedTraining:
        if self._resumed is None:
            from traincheck.sources.checkpoints.resumed_training import ResumedTraining  # not before the first file

            self._resumed = ResumedTraining()
        return self._resumed

    def _forget_resumed(self) -> None:
        if self._resumed is not None:
            self._resumed.forget()

    def _observe_other_loads(self, undo: UndoStack) -> None:
        """Observe the loads of schedulers and scalers, and which schedulers exist."""
        from torch.optim import lr_scheduler

        built = self._recorder.guarded(self.name, self._scheduler_built, always=True)
        around = wrapping(lambda me, *_, **__: me, lambda me, _: built(me), lambda _: None)
        replace(undo, lr_scheduler.LRScheduler, "__init__", around)
        observed = self._around(self._other_loads, self._ends)
        classes = {cls for cls in vars(lr_scheduler).values() if isinstance(cls, type)} | {torch.amp.GradScaler}
        for cls in classes:
            if "load_state_dict" in vars(cls):
                replace(undo, cls, "load_state_dict", observed)

    def _scheduler_built(self, scheduler: Any) -> None:
        living = [reference for reference in self._schedulers if reference() is not None]
        self._schedulers = [*living[1 - MAX_SCHEDULERS :], weakref.ref(scheduler)]

    def _other_loads(self, stateful: Any, state_dict: Any) -> None:
        if self._resumed is not None:
            self._resumed.other_loads(state_dict)

    def _step_begins(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if self._merged is not None:
            self._find_forgotten(optimizer, self._merged)
        if self._resumed is not None and self._resumed.waits:
            name, passes = self._catalog.add_optimizer(optimizer), self._recorder.steps.passes_ended
            with hidden_from_modes():
                unrestored = self._resumed.first_update(optimizer, name, self._updates, passes)
                restarted = list(self._resumed.restarted_schedules(optimizer, self._schedulers))
            if unrestored is not None and not self._catalog.is_pruned(name):
                self._report_unrestored(unrestored)
            for schedule in restarted:
                self._report_unrestored(schedule)

    def _report_unrestored(self, unrestored: Unrestored) -> None:
        name, site, attribute, sign = unrestored
        seq, context = self._recorder.next_seq(), facts(site=site)
        self._recorder.record_reading(Reading(seq, NO_CALL, name, CHECKPOINT, attribute, sign, context=context))

    def _load_ends(self, token: tuple[OpenCall, tuple[nn.Module, Any]], result: Any) -> None:
        call, (module, state) = token
        if self._states.should_read:
            missing = getattr(result, "missing_keys", None)
            with hidden_from_modes():
                self._states.record(call.seq, module_state(module, state), LOADED, missing=missing)
        self._recorder.leave(call)

    # -- state dicts of optimizers ---------------------------------------------------------------------------------

    def _optimizer_begins(self, optimizer: Any) -> tuple[OpenCall, Any] | None:
        return self._optimizer_call(optimizer, "state_dict", ())

    def _optimizer_state_ends(self, token: tuple[OpenCall, Any], state: Any) -> None:
        call, (optimizer, _) = token
        self._settings.saved(optimizer, call.receiver, call.seq, _groups(state))
        self._recorder.leave(call)

    def _optimizer_load_begins(self, optimizer: Any, state_dict: Any) -> tuple[OpenCall, Any] | None:
        if self._resumed is not None and self._finds_resumed:
            with hidden_from_modes():
                self._resumed.optimizer_loads(optimizer, state_dict)
        return self._optimizer_call(optimizer, "load_state_dict", _groups(state_dict))

    def _optimizer_load_ends(self, token: tuple[OpenCall, Any], result: Any) -> None:
        call, (optimizer, loaded_groups) = token
        self._settings.loaded(optimizer, call.receiver, call.seq, loaded_groups)
        self._recorder.leave(call)

    def _optimizer_call(self, optimizer: Any, method: str, loaded_groups: Any) -> tuple[OpenCall, Any] | None:
        call_levels = levels(type(optimizer), method, Optimizer)
        if not self._demand.records_call(call_levels):
            return None
        name = self._catalog.add_optimizer(optimizer)
        return self._recorder.enter(LIFECYCLE, call_levels, name, context_facts()), (optimizer, loaded_groups)


def _groups(state: Any) -> Sequence[Mapping[str, Any]]:
    """Return the settings of the parameter groups in an optimizer's state dict."""
    groups = state.get("param_groups", ()) if isinstance(state, dict) else ()
    with hidden_from_modes():
        return [settings(group) for group in groups if isinstance(group, dict)]
