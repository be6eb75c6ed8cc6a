"""Hooks: the global hooks of torch that we use, and how they step aside while a compiled callable runs.

Note [Stepping aside]
The compiler of torch takes into what it makes whatever it finds around a model: global hooks of modules and optimizers,
function modes, functions that were replaced. It traces them, and guards on them, so that a model which was compiled
without us would be compiled once more with us, and again without; and some of them it cannot trace. So we are not there
while a compiled callable runs: our hooks are taken out of torch's tables, our mode off the stack and our functions out
of torch's modules, and all of it is put back in its place when the call returns. What would have been told of the call
itself is told from outside: the hooks are called for it before we step aside, and after we are back.

Methods that were replaced are put back only where they may be called in what is compiled, in functions: to change a
class of which all modules are makes Python look up all their methods anew.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from types import ModuleType
from typing import Any, NamedTuple

from torch import overrides
from torch.nn.modules import module as of_modules
from torch.optim import optimizer as of_optimizers

from traincheck.sources.compile.tracing import is_traced
from traincheck.sources.recording.patches import Replaced

Hook = Callable[..., Any]
Table = dict[int, Any]

BEFORE_MODULE, AFTER_MODULE = "_global_forward_pre_hooks", "_global_forward_hooks"
_OF_CALLS = (BEFORE_MODULE, AFTER_MODULE, "_global_backward_pre_hooks", "_global_backward_hooks")
BEFORE_STEP, AFTER_STEP = "_global_optimizer_pre_hooks", "_global_optimizer_post_hooks"


class _Ours(NamedTuple):
    """A hook of ours: the handle that torch gave for it, and what to call for a call that is told from outside."""

    handle: Any
    hook: Hook

    def tables(self) -> list[Table]:
        """The tables in which torch keeps it."""
        found = (reference() for reference in (self.handle.hooks_dict_ref, *self.handle.extra_dict_ref))
        return [table for table in found if table is not None]


_Place = tuple[dict[str, Any], str, Any, Any]
"""A name in a module, the function that was there, and ours."""


class _Here(threading.local):
    """What holds for a thread: what is given in the call that is told from outside, where our mode was taken off by
    `mode_off`, whether we are aside."""

    keywords: Mapping[str, Any] | None = None
    place = -1
    aside = False


class Hooks:
    """The hooks of one recorder, in the order in which they were registered, and its function mode."""

    def __init__(self) -> None:
        self._hooks: list[_Ours] = []
        self._tables: dict[int, tuple[Table, set[int]]] = {}
        self.here = _Here()
        self._threads: set[int] = set()
        self._away: list[tuple[Table, Table, list[int]]] | None = None
        self._places: list[_Place] = []
        self._elsewhere = 0
        self._originals: list[_Place] = []
        self._methods: list[Replaced] = []
        self.mode: Any = None
        self.replaced: list[list[Replaced]] = []

    def add(self, undo: ExitStack, handle: Any, hook: Hook) -> _Ours:
        """Take care of a hook that was registered just now. Closing `undo` removes it. Returns what `rest` and `wake`
        take."""
        ours = _Ours(handle, hook)
        self._hooks.append(ours)
        for table in ours.tables():
            if handle.id in table:
                self._tables.setdefault(id(table), (table, set()))[1].add(handle.id)
        undo.callback(self._remove, ours)
        return ours

    def _remove(self, ours: _Ours) -> None:
        ours.handle.remove()
        self.rest(ours)
        for _, keys in self._tables.values():
            keys.discard(ours.handle.id)

    def rest(self, ours: _Ours) -> None:
        """Have a hook, one of those that torch keeps in one table, called no more until `wake`, nor for a call that is
        told from outside: to remove it, and to register it anew, takes 50 µs."""
        if ours in self._hooks:
            self._hooks.remove(ours)
        table = ours.handle.hooks_dict_ref()
        if table is not None:
            table.pop(ours.handle.id, None)
        for _, mine, _ in self._away or ():
            mine.pop(ours.handle.id, None)

    def wake(self, ours: _Ours) -> None:
        """Put a hook that rests back into torch's table, after all others."""
        self._hooks.append(ours)
        table = ours.handle.hooks_dict_ref()
        if table is not None:
            table[ours.handle.id] = ours.hook

    def are_all(self) -> bool:
        """Whether no module hook but ours is there for all modules."""
        own = {ours.handle.id for ours in self._hooks}
        return all(key in own for name in _OF_CALLS for key in getattr(of_modules, name, ()))

    def forget_replaced(self) -> None:
        """Note that the sources are taken off: what they had replaced is put back."""
        self.replaced.clear()
        self._places, self._elsewhere = [], 0

    def displaced(self) -> str:
        """What the program has replaced after us, empty where it has not: our own wrapper would stay behind."""
        every = [one for some in self.replaced for one in some]
        last = {(id(one.holder), one.attribute): one for one in every}  # a source may wrap what another one has
        for one in last.values():
            if not one.in_place:
                return f"{getattr(one.holder, '__name__', one.holder)}.{one.attribute}"
        return ""

    # -- calls that are told from outside --------------------------------------------------------------------------

    @property
    def keywords(self) -> Mapping[str, Any] | None:
        """The keyword arguments of the module call that is told from outside just now, None where there is none."""
        return self.here.keywords

    def before_module(self, module: Any, args: Any, keywords: Mapping[str, Any]) -> None:
        """Tell that a module is about to be called."""
        self.here.keywords = keywords
        try:
            self._call(of_modules, BEFORE_MODULE, module, args)
        finally:
            self.here.keywords = None

    def after_module(self, module: Any, args: Any, result: Any) -> None:
        """Tell that a module was called; one that raised has None for its result."""
        self._call(of_modules, AFTER_MODULE, module, args, result)

    def before_step(self, optimizer: Any) -> None:
        """Tell that an optimizer is about to step."""
        self._call(of_optimizers, BEFORE_STEP, optimizer, (optimizer,), {})

    def after_step(self, optimizer: Any) -> None:
        """Tell that an optimizer has stepped."""
        self._call(of_optimizers, AFTER_STEP, optimizer, (optimizer,), {})

    def _call(self, home: Any, name: str, *args: Any) -> None:
        table = getattr(home, name)
        for ours in list(self._hooks):
            if ours.handle.hooks_dict_ref() is table:
                ours.hook(*args)

    # -- stepping aside --------------------------------------------------------------------------------------------

    def used_by_thread(self) -> None:
        """Note that a module or an optimizer is used in this thread."""
        self._threads.add(threading.get_ident())

    @property
    def in_one_thread(self) -> bool:
        """Whether modules and optimizers were used in one thread only so far."""
        return len(self._threads) <= 1

    def step_aside(self, *, methods: bool) -> int:
        """Take our hooks and functions away (with `methods` also our methods), and our mode off the stack of this
        thread; hand the result to `come_back`.

        Where several threads train or evaluate, the hooks stay: the others would lose them in the middle of a call.
        """
        if self._away is None and self.in_one_thread:
            self._away = self._taken()
            for place in self._functions():
                namespace, name, original, ours = place
                if namespace.get(name) is ours:
                    namespace[name] = original
                    self._originals.append(place)
            for one in self._replaced(of_classes=True) if methods else ():
                if one.take_off():
                    self._methods.append(one)
        self.here.aside = True
        return taken_off(self.mode)

    def come_back(self, place: int) -> None:
        """Put back what `step_aside` has taken, as far as it is still wanted."""
        self.here.aside = False
        away, self._away = self._away, None
        for table, mine, order in away or ():
            _put_back(table, mine, order)
        for namespace, name, original, ours in reversed(self._originals):
            if namespace.get(name) is original:
                namespace[name] = ours
        for one in reversed(self._methods):
            one.put_on()
        self._originals.clear()
        self._methods.clear()
        if place >= 0 and not self.mode.off:
            put_on(self.mode, place)

    def mode_off(self) -> None:
        """Take our mode off the stack of this thread until `mode_on`."""
        if self.here.place < 0:
            self.here.place = taken_off(self.mode)

    def mode_on(self) -> None:
        """Put our mode back on the stack of this thread, if `mode_off` has taken it."""
        place, self.here.place = self.here.place, -1
        if place >= 0 and not self.mode.off:
            put_on(self.mode, place)

    def unasked(self, clear: Callable[..., Any]) -> Callable[..., Any]:
        """`Optimizer.zero_grad`, with our mode off the stack where that would tell nothing: it is asked twice for each
        parameter. What is put back here is so whatever ends the call."""

        @functools.wraps(clear)
        def wrapper(optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            mode = self.mode
            if (
                is_traced()
                or mode is None
                or mode.tells_clearing
                or not type(optimizer).__module__.startswith("torch.")
            ):
                return clear(optimizer, *args, **kwargs)
            stack = overrides._get_current_function_mode_stack()
            if not stack or stack[-1] is not mode:
                return clear(optimizer, *args, **kwargs)
            try:
                overrides._pop_mode()
                return clear(optimizer, *args, **kwargs)
            finally:
                if not mode.is_off() and all(one is not mode for one in overrides._get_current_function_mode_stack()):
                    overrides._push_mode(mode)

        return wrapper

    def _functions(self) -> list[_Place]:
        """Where functions of modules were replaced, the last first. (Asked at every call of something compiled.)"""
        if len(self._places) != sum(map(len, self.replaced)) - self._elsewhere:
            found = self._replaced(of_classes=False)
            self._places = [(vars(one.holder), one.attribute, one.original, one.replacement) for one in found]
            self._elsewhere = sum(map(len, self.replaced)) - len(found)
        return self._places

    def _replaced(self, *, of_classes: bool) -> list[Replaced]:
        every = [one for some in self.replaced for one in some]
        return [one for one in reversed(every) if (type(one.holder) is ModuleType) is not of_classes]

    def _taken(self) -> list[tuple[Table, Table, list[int]]]:
        found: list[tuple[Table, Table, list[int]]] = []
        for table, keys in self._tables.values():
            order = list(table)
            mine = {key: table.pop(key) for key in order if key in keys}
            found.append((table, mine, order))
        return found


def _put_back(table: Table, mine: Table, order: list[int]) -> None:
    """Put entries back into a table where they stood in its former order."""
    if not table:
        table.update(mine)
        return
    others = dict(table)
    table.clear()
    for key in order:
        if key in mine:
            table[key] = mine[key]
        elif key in others:
            table[key] = others.pop(key)
    table.update(others)


def taken_off(mode: Any) -> int:
    """Take a function mode off the stack of this thread; its place there, -1 when it is not on it."""
    stack = overrides._get_current_function_mode_stack() if mode is not None else []
    place = next((place for place, one in enumerate(stack) if one is mode), -1)
    if place >= 0:
        above = [overrides._pop_mode() for _ in stack[place:]]
        for one in reversed(above[:-1]):
            overrides._push_mode(one)
    return place


def put_on(mode: Any, place: int) -> None:
    """Put a function mode on the stack at this place, or on top where there are fewer."""
    above = [overrides._pop_mode() for _ in overrides._get_current_function_mode_stack()[place:]]
    overrides._push_mode(mode)
    for one in reversed(above):
        overrides._push_mode(one)
