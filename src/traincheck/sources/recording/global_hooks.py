"""Registers TrainCheck's global hooks of torch, and suspends them while a compiled callable runs.

Note [Suspended while compiled code runs]
The compiler of torch traces everything that it finds around a model: global hooks of modules and optimizers, function
modes, patched functions. It guards on them, so a model that was compiled without TrainCheck would be compiled again
with it. Some of them it cannot trace. So while a compiled callable runs, TrainCheck takes its hooks out of torch's
tables, its mode off the stack and its functions out of torch's modules. All of them return to their places after the
call. The call itself is reported from outside: TrainCheck runs the hooks for it before it suspends them, and after it
resumes them.

Patched methods are removed only where compiled code may call them, which is in functions: a change of a class from
which all modules derive makes Python look up all their methods again.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from types import ModuleType
from typing import Any, NamedTuple

from torch import overrides
from torch.nn.modules import module as modules
from torch.optim import optimizer as optimizers

from traincheck.sources.compile.tracing import is_traced
from traincheck.sources.recording.patches import Patch

Hook = Callable[..., Any]
Table = dict[int, Any]

BEFORE_MODULE, AFTER_MODULE = "_global_forward_pre_hooks", "_global_forward_hooks"
_OF_CALLS = (BEFORE_MODULE, AFTER_MODULE, "_global_backward_pre_hooks", "_global_backward_hooks")
BEFORE_STEP, AFTER_STEP = "_global_optimizer_pre_hooks", "_global_optimizer_post_hooks"


class RegisteredHook(NamedTuple):
    """A hook of TrainCheck: torch's handle, and the function to run for a call that is reported from outside."""

    handle: Any
    hook: Hook

    def tables(self) -> list[Table]:
        """The tables in which torch keeps the hook."""
        tables = (reference() for reference in (self.handle.hooks_dict_ref, *self.handle.extra_dict_ref))
        return [table for table in tables if table is not None]


class _PatchedFunction(NamedTuple):
    namespace: dict[str, Any]
    name: str
    original: Any
    replacement: Any


class _RemovedHooks(NamedTuple):
    """Hooks of TrainCheck that were taken out of a table, and the order of all keys before."""

    table: Table
    hooks: Table
    order: list[int]


class _ThreadHooks(threading.local):
    """The state of a thread: the keyword arguments of the call that is reported from outside, the index from which
    `suspend_mode` removed the mode, and whether hooks are suspended."""

    keywords: Mapping[str, Any] | None = None
    mode_index = -1
    suspended = False


class GlobalHooks:
    """The hooks of one recorder, in the order in which they were registered, and its function mode."""

    def __init__(self) -> None:
        self._hooks: list[RegisteredHook] = []
        self._tables: dict[int, tuple[Table, set[int]]] = {}
        self.thread = _ThreadHooks()
        self._threads: set[int] = set()
        self._removed_hooks: list[_RemovedHooks] | None = None
        self._functions: list[_PatchedFunction] = []
        self._other_patches = 0  # those that are not in `_functions`
        self._removed_functions: list[_PatchedFunction] = []
        self._removed_methods: list[Patch] = []
        self.mode: Any = None
        self.patches: list[list[Patch]] = []
        self.on_suspend: list[Callable[[], object]] = []  # called before hooks are suspended; must not raise

    def add(self, undo: ExitStack, handle: Any, hook: Hook) -> RegisteredHook:
        """Manage a hook that was just registered, and remove it when `undo` is closed.

        Pass the result to `suspend_hook` and `resume_hook`.
        """
        registered = RegisteredHook(handle, hook)
        self._hooks.append(registered)
        for table in registered.tables():
            if handle.id in table:
                self._tables.setdefault(id(table), (table, set()))[1].add(handle.id)
        undo.callback(self._remove, registered)
        return registered

    def _remove(self, registered: RegisteredHook) -> None:
        registered.handle.remove()
        self.suspend_hook(registered)
        for _, keys in self._tables.values():
            keys.discard(registered.handle.id)

    def suspend_hook(self, registered: RegisteredHook) -> None:
        """Do not run a hook until `resume_hook`, not even for a call that is reported from outside.

        Only for hooks that torch keeps in one table. Removing and registering a hook would take 50 µs.
        """
        if registered in self._hooks:
            self._hooks.remove(registered)
        table = registered.handle.hooks_dict_ref()
        if table is not None:
            table.pop(registered.handle.id, None)
        for removed in self._removed_hooks or ():
            removed.hooks.pop(registered.handle.id, None)

    def resume_hook(self, registered: RegisteredHook) -> None:
        """Put a suspended hook back into torch's table, after all others."""
        self._hooks.append(registered)
        table = registered.handle.hooks_dict_ref()
        if table is not None:
            table[registered.handle.id] = registered.hook

    def are_only_module_hooks(self) -> bool:
        """Whether all global module hooks are TrainCheck's."""
        own = {registered.handle.id for registered in self._hooks}
        return all(key in own for name in _OF_CALLS for key in getattr(modules, name, ()))

    def are_only_step_hooks(self) -> bool:
        """Whether all global hooks of optimizers are TrainCheck's."""
        own = {registered.handle.id for registered in self._hooks}
        return all(key in own for name in (BEFORE_STEP, AFTER_STEP) for key in getattr(optimizers, name, ()))

    def forget_patches(self) -> None:
        """Forget the patches of all sources, which are detached now."""
        self.patches.clear()
        self._functions, self._other_patches = [], 0

    def overridden_patch(self) -> str:
        """The name of an attribute that the program has patched after TrainCheck, empty without one.

        Our wrapper would stay behind in the program's.
        """
        patches = [patch for of_source in self.patches for patch in of_source]
        last = {(id(patch.holder), patch.attribute): patch for patch in patches}  # sources may patch the same attribute
        for patch in last.values():
            if not patch.is_current:
                return f"{getattr(patch.holder, '__name__', patch.holder)}.{patch.attribute}"
        return ""

    # -- calls that are reported from outside ------------------------------------------------------------------------

    @property
    def keywords(self) -> Mapping[str, Any] | None:
        """The keyword arguments of the module call that is being reported from outside, None without such a call."""
        return self.thread.keywords

    def before_module(self, module: Any, args: Any, keywords: Mapping[str, Any]) -> None:
        """Run the hooks before a call of a module."""
        self.thread.keywords = keywords
        try:
            self._call(modules, BEFORE_MODULE, module, args)
        finally:
            self.thread.keywords = None

    def after_module(self, module: Any, args: Any, result: Any) -> None:
        """Run the hooks after a call of a module; the result of a call that raised is None."""
        self._call(modules, AFTER_MODULE, module, args, result)

    def before_step(self, optimizer: Any) -> None:
        """Run the hooks before a step of an optimizer."""
        self._call(optimizers, BEFORE_STEP, optimizer, (optimizer,), {})

    def after_step(self, optimizer: Any) -> None:
        """Run the hooks after a step of an optimizer."""
        self._call(optimizers, AFTER_STEP, optimizer, (optimizer,), {})

    def _call(self, home: Any, name: str, *args: Any) -> None:
        table = getattr(home, name)
        for registered in list(self._hooks):
            if registered.handle.hooks_dict_ref() is table:
                registered.hook(*args)

    # -- suspending, see Note [Suspended while compiled code runs] ---------------------------------------------------

    def note_thread(self) -> None:
        """This thread uses a module or an optimizer."""
        self._threads.add(threading.get_ident())

    @property
    def in_one_thread(self) -> bool:
        """Whether only one thread has used modules and optimizers so far."""
        return len(self._threads) <= 1

    def suspend(self, *, methods: bool) -> int:
        """Remove hooks, patched functions (and patched methods if `methods`) and the mode of this thread.

        Pass the result to `resume`. Where several threads train or evaluate, hooks and patches stay: other threads
        would lose them in the middle of a call.
        """
        for suspends in self.on_suspend:
            suspends()
        if self._removed_hooks is None and self.in_one_thread:
            self._removed_hooks = self._take_hooks()
            for function in self._patched_functions():
                namespace, name, original, replacement = function
                if namespace.get(name) is replacement:
                    namespace[name] = original
                    self._removed_functions.append(function)
            for patch in self._select_patches(of_classes=True) if methods else ():
                if patch.remove():
                    self._removed_methods.append(patch)
        self.thread.suspended = True
        return remove_mode(self.mode)

    @contextmanager
    def suspended(self) -> Iterator[None]:
        """Suspend hooks, patched functions and methods, and the mode of this thread, inside the block."""
        token = self.suspend(methods=True)
        try:
            yield
        finally:
            self.resume(token)

    def resume(self, mode_index: int) -> None:
        """Undo `suspend`, except for hooks that were removed for good meanwhile."""
        self.thread.suspended = False
        removed_hooks, self._removed_hooks = self._removed_hooks, None
        for removed in removed_hooks or ():
            _restore_hooks(removed)
        for namespace, name, original, replacement in reversed(self._removed_functions):
            if namespace.get(name) is original:
                namespace[name] = replacement
        for patch in reversed(self._removed_methods):
            patch.reapply()
        self._removed_functions.clear()
        self._removed_methods.clear()
        if mode_index >= 0 and not self.mode.off:
            insert_mode(self.mode, mode_index)

    def suspend_mode(self) -> None:
        """Take the mode off the stack of this thread until `resume_mode`."""
        if self.thread.mode_index < 0:
            self.thread.mode_index = remove_mode(self.mode)

    def resume_mode(self) -> None:
        """Put the mode back on the stack of this thread, if `suspend_mode` removed it."""
        index, self.thread.mode_index = self.thread.mode_index, -1
        if index >= 0 and not self.mode.off:
            insert_mode(self.mode, index)

    def without_mode(self, zero_grad: Callable[..., Any]) -> Callable[..., Any]:
        """`Optimizer.zero_grad`, without the mode where it would record nothing: torch calls the mode twice for each
        parameter. The mode returns however the call ends."""

        @functools.wraps(zero_grad)
        def wrapper(optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            mode = self.mode
            if (
                is_traced()
                or mode is None
                or mode.records_clearing
                or not type(optimizer).__module__.startswith("torch.")
            ):
                return zero_grad(optimizer, *args, **kwargs)
            stack = overrides._get_current_function_mode_stack()
            if not stack or stack[-1] is not mode:
                return zero_grad(optimizer, *args, **kwargs)
            try:
                overrides._pop_mode()
                return zero_grad(optimizer, *args, **kwargs)
            finally:
                stack = overrides._get_current_function_mode_stack()
                if not mode.is_off() and all(other is not mode for other in stack):
                    overrides._push_mode(mode)

        return wrapper

    def _patched_functions(self) -> list[_PatchedFunction]:
        """The patched functions of modules, the last first. (Cached: this runs at every call of compiled code.)"""
        if len(self._functions) != sum(map(len, self.patches)) - self._other_patches:
            patches = self._select_patches(of_classes=False)
            self._functions = [
                _PatchedFunction(vars(patch.holder), patch.attribute, patch.original, patch.replacement)
                for patch in patches
            ]
            self._other_patches = sum(map(len, self.patches)) - len(patches)
        return self._functions

    def _select_patches(self, *, of_classes: bool) -> list[Patch]:
        patches = [patch for of_source in self.patches for patch in of_source]
        return [patch for patch in reversed(patches) if (type(patch.holder) is ModuleType) is not of_classes]

    def _take_hooks(self) -> list[_RemovedHooks]:
        removed: list[_RemovedHooks] = []
        for table, keys in self._tables.values():
            order = list(table)
            hooks = {key: table.pop(key) for key in order if key in keys}
            removed.append(_RemovedHooks(table, hooks, order))
        return removed


def _restore_hooks(removed: _RemovedHooks) -> None:
    """Put hooks back into a table, at their places in its former order."""
    table, hooks, order = removed
    if not table:
        table.update(hooks)
        return
    others = dict(table)
    table.clear()
    for key in order:
        if key in hooks:
            table[key] = hooks[key]
        elif key in others:
            table[key] = others.pop(key)
    table.update(others)


def remove_mode(mode: Any) -> int:
    """Take a function mode off the stack of this thread; its index there, -1 if it is not on the stack."""
    stack = overrides._get_current_function_mode_stack() if mode is not None else []
    index = next((index for index, other in enumerate(stack) if other is mode), -1)
    if index >= 0:
        above = [overrides._pop_mode() for _ in stack[index:]]
        for other in reversed(above[:-1]):
            overrides._push_mode(other)
    return index


def insert_mode(mode: Any, index: int) -> None:
    """Put a function mode on the stack at this index, or on top of a shorter stack."""
    above = [overrides._pop_mode() for _ in overrides._get_current_function_mode_stack()[index:]]
    overrides._push_mode(mode)
    for other in reversed(above):
        overrides._push_mode(other)
