"""Source `recomputations`: compares the two computations of checkpointed functions in verified steps.

It observes the hooks through which `torch.utils.checkpoint` saves tensors, and the function that its reentrant kind
calls twice. So it also observes programs that imported `checkpoint` before TrainCheck attached.
"""

from __future__ import annotations

import functools
import threading
import weakref
from collections.abc import Callable
from typing import Any

import torch
import torch.utils.checkpoint as checkpointing
from torch import nn

from traincheck.sources.base import replace, wrapping
from traincheck.sources.modules.live_modules import buffers_of, has_parameters
from traincheck.sources.modules.module_calls import ModuleCalls
from traincheck.sources.modules.variables import VariableCatalog
from traincheck.sources.recording.patches import UndoStack
from traincheck.sources.recording.recorder import Recorder
from traincheck.sources.replay.restorable_call import tensors_in
from traincheck.sources.tensors.reading import hidden_from_modes, local_tensor
from traincheck.sources.verification.experiment_source import ExperimentSource
from traincheck.sources.verification.recomputation.recomputation import Pair, Print, compare_prints, print_of
from traincheck.sources.verification.verified_steps import VerifiedSteps
from traincheck.vocab.verification import DISAGREES, RECOMPUTATION

MAX_PRINTS = 20_000
"""Results of a step that are compared."""

Prints = list["Print | None"]


class _CallsOfThread(threading.local):
    """The calls under way in a thread; an accelerator has a thread of its own for its backward."""

    def __init__(self) -> None:
        self.modules: list[nn.Module] = []  # the innermost last
        self.collecting: list[Prints] = []  # of reentrant functions, the innermost last


class RecomputationSource(ExperimentSource):
    """See the module. It attaches after the source `modules`."""

    name = "recomputations"
    experiments = (RECOMPUTATION,)

    def __init__(self, calls: ModuleCalls, catalog: VariableCatalog, steps: VerifiedSteps) -> None:
        super().__init__(steps)
        self._calls = calls
        self._catalog = catalog
        self._here = _CallsOfThread()
        self._buffers: set[int] = set()  # addresses
        self._frames: weakref.WeakKeyDictionary[Any, Prints] = weakref.WeakKeyDictionary()
        self._pairs: list[Pair] = []
        self._step = self._count = 0
        self._subject = self._site = ""

    def _observe(self, undo: UndoStack, recorder: Recorder) -> None:
        guarded = functools.partial(recorder.guarded, self.name)
        begins, ends = guarded(self._module_begins), guarded(self._module_ends)

        def module_begins(module: nn.Module, args: Any) -> None:
            if self._is_verified():
                begins(module)

        def module_ends(module: nn.Module, args: Any, output: Any) -> None:
            if self._here.modules:
                ends(module, output)

        self._calls.add_listener(module_begins, module_ends)
        for name, notes in (("_checkpoint_hook", self._saves), ("_recomputation_hook", self._saves_again)):
            if hasattr(checkpointing, name):
                replace(undo, getattr(checkpointing, name), "__init__", _calling_after(guarded(notes)))
        replace(undo, checkpointing.CheckpointFunction, "forward", self._observing_function)
        verify = guarded(self._verify)
        follow: Callable[..., Any] = lambda *args, **kwargs: self._count or None  # noqa: E731
        replace(undo, torch.autograd, "backward", wrapping(follow, lambda token, _: verify(), lambda token: None))

    def _is_verified(self) -> bool:
        recorder = self._recorder
        return recorder.watching and self._verifies(recorder.steps.window_step) and not recorder.hooks.thread.suspended

    # -- calls of modules ------------------------------------------------------------------------------------------

    def _module_begins(self, module: nn.Module) -> None:
        if self._calls.depth == 1 and torch._C._current_graph_task_id() < 0:  # no backward computes it again
            if self._step != self._recorder.steps.window_step:
                self._on_detach()
                self._step = self._recorder.steps.window_step
            self._here.modules.clear()
            if has_parameters(module):  # a model, and no loss
                self._subject = self._catalog.module_name(module)
                self._buffers = {_address(buffer) for buffer in buffers_of(module)} - {0}
        self._here.modules.append(module)

    def _module_ends(self, module: nn.Module, output: Any) -> None:
        if self._here.collecting:
            self._here.collecting[-1] += [self._print(tensor, module) for tensor in tensors_in(output)]
        if module in self._here.modules:
            while self._here.modules.pop() is not module:
                pass

    def _print(self, tensor: torch.Tensor, module: nn.Module | None = None) -> Print | None:
        if self._count >= MAX_PRINTS or _address(tensor) in self._buffers:
            return None
        self._count += 1
        return print_of(tensor, module or (self._here.modules[-1] if self._here.modules else None))

    # -- tensors that are saved ------------------------------------------------------------------------------------

    def _saves(self, hook: Any, frame: Any) -> None:
        """Observe what a checkpointed function saves at first."""
        if not self._is_verified():
            return
        self._site = self._site or self._recorder.sites.here()
        prints: Prints = []
        self._frames[frame] = prints
        _observe_pack(hook, self._recorder.guarded(self.name, lambda tensor: prints.append(self._print(tensor))))

    def _saves_again(self, hook: Any, frame: Callable[[], Any], group: Any) -> None:
        """Observe what it saves when it is computed again."""
        prints = self._frames.get(frame())
        if prints is None or self._recorder.hooks.thread.suspended:
            return
        again: Prints = []

        def note(tensor: torch.Tensor) -> None:
            again.append(self._print(tensor))
            self._pair(prints[len(again) - 1 : len(again)], again[-1:])

        _observe_pack(hook, self._recorder.guarded(self.name, note))

    def _pair(self, first: Prints, again: Prints) -> None:
        pairs = zip(first, again, strict=False)
        self._pairs += [Pair(one, other) for one, other in pairs if one is not None and other is not None]

    # -- the function of the reentrant kind ------------------------------------------------------------------------

    def _observing_function(self, forward: Any) -> Any:
        original = forward.__func__
        observed = self._recorder.guarded(self.name, self._observed)

        @functools.wraps(original)
        def wrapper(ctx: Any, run_function: Any, *args: Any) -> Any:
            return original(ctx, observed(run_function) or run_function, *args)

        return staticmethod(wrapper)

    def _observed(self, function: Callable[..., Any]) -> Callable[..., Any] | None:
        """Return the function with its first and its second call observed; None in steps that are not verified."""
        if not self._is_verified():
            return None
        self._site = self._site or self._recorder.sites.here()
        first: list[Prints] = []

        def begins(*args: Any) -> Prints | None:
            if self._recorder.hooks.thread.suspended:
                return None
            self._here.collecting.append([])
            return self._here.collecting[-1]

        def ends(prints: Prints, result: Any) -> None:
            while self._here.collecting and self._here.collecting.pop() is not prints:
                pass
            prints += [self._print(tensor) for tensor in tensors_in(result)]
            if first:
                self._pair(first[0], prints)
            else:
                first.append(prints)

        guarded = functools.partial(self._recorder.guarded, self.name)
        return wrapping(guarded(begins), guarded(ends), guarded(lambda prints: ends(prints, None)))(function)

    # -- the verdict -----------------------------------------------------------------------------------------------

    def _verify(self) -> None:
        pairs, self._pairs = self._pairs, []
        if not pairs:
            return
        verdict, found, module = compare_prints(pairs)
        first = "" if module is None else self._catalog.module_name(module)
        if verdict == DISAGREES:
            found = f"in step {self._step}, {found}"
        self._reporter.report(self._subject, verdict, found, first=first, site=self._site)

    def _on_detach(self) -> None:
        self._here.modules.clear()
        self._frames.clear()
        self._here.collecting.clear()
        self._pairs.clear()
        self._count, self._subject, self._site = 0, "", ""


def _address(tensor: torch.Tensor) -> int:
    """The address of the elements of a tensor, 0 where they have no memory of their own."""
    with hidden_from_modes():
        dense = local_tensor(tensor)
        return 0 if dense is None else int(dense.data_ptr())


def _calling_after(after: Callable[..., Any]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a decorator that calls `after` with the arguments of a function, after it."""

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> None:
            function(*args, **kwargs)
            after(*args, **kwargs)

        return wrapper

    return decorate


def _observe_pack(hook: Any, note: Callable[[torch.Tensor], object]) -> None:
    """Call `note` with each tensor that hooks for saved tensors take."""
    pack = hook.pack_hook

    def observing(tensor: torch.Tensor) -> Any:
        note(tensor)
        return pack(tensor)

    hook.pack_hook = observing
