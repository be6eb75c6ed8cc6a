"""Calls a function once after the import of a module, and then removes all traces of the hook.

This file imports only modules that every Python process has loaded anyway, because it runs at the start of each
process.
"""

from __future__ import annotations

import sys
from _thread import get_ident

TYPE_CHECKING = False  # as in typing, whose import would take longer than all the rest
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any


class PostImport:
    """A finder that leaves the search to the other finders, and calls `callback` after the body of the module `name`
    ran.

    The module keeps its real `__spec__` and `__loader__`. A failed import keeps the hook for the next attempt, and a
    successful import removes it. The importing code sees exceptions of the callback, so the callback should raise none.

    Known limitations: the hook misses an import by an earlier finder, and an import whose loader accepts no attributes
    (a class, as for frozen modules).
    """

    def __init__(
        self, name: str, callback: Callable[[], None], around: Callable[[], Callable[[], None]] | None
    ) -> None:
        self.name = name
        self._callback = callback
        self._around = around
        self._asking: set[int] = set()

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The spec of the later finders for `name`, with a hook on its loader; None for other modules."""
        if fullname != self.name or get_ident() in self._asking:
            return None
        self._asking.add(get_ident())  # stops the recursion with another finder that also calls all others
        try:
            spec = self._found_by_others(fullname, path, target)
        finally:
            self._asking.discard(get_ident())
        if spec is not None and spec.loader is not None and not isinstance(spec.loader, type):
            self._watch(spec.loader)
        return spec

    def _found_by_others(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None
    ) -> ModuleSpec | None:
        finders = list(sys.meta_path)
        later = finders[finders.index(self) + 1 :] if self in finders else finders
        for finder in later:
            find = getattr(finder, "find_spec", None)
            spec: ModuleSpec | None = find(fullname, path, target) if find is not None else None
            if spec is not None:
                return spec
        return None

    def _watch(self, loader: Any) -> None:
        """Hook `loader` through an attribute of this one object. It is removed before the body of the module runs."""
        execute = getattr(loader, "exec_module", None)
        if execute is None:
            return

        def exec_module(module: ModuleType) -> None:
            if module.__name__ != self.name:  # a loader may serve several modules, as for zip files
                execute(module)
                return
            vars(loader).pop("exec_module", None)
            leave = self._around() if self._around is not None and self in sys.meta_path else None
            try:
                execute(module)
            finally:
                if leave is not None:
                    leave()
            self._finished()

        try:
            loader.exec_module = exec_module
        except AttributeError:
            return

    def _finished(self) -> None:
        if _remove(self):
            self._callback()


def when_imported(
    name: str, callback: Callable[[], None], around: Callable[[], Callable[[], None]] | None = None
) -> Callable[[], None]:
    """Call `callback` after the import of the module `name`: at once if it is imported. Each name has one hook.

    For an import in progress, the callback runs at its end. (A library may import torch, and so start TrainCheck,
    before it defines anything.) `around` is called before the body of a later import, and its result afterwards. The
    returned function removes the hook, if the module is still not imported.
    """
    module = sys.modules.get(name)
    spec = getattr(module, "__spec__", None)
    if getattr(spec, "_initializing", False):
        return _when_initialized(name, spec, callback)
    hook = PostImport(name, callback, around)
    if module is not None:
        callback()
    elif not any(isinstance(finder, PostImport) and finder.name == name for finder in sys.meta_path):
        sys.meta_path.insert(0, hook)

    def take_back() -> None:
        _remove(hook)

    return take_back


def _remove(hook: PostImport) -> bool:
    """Remove the hook from `sys.meta_path`. False if it was not there.

    The list is replaced, never shortened: the import system iterates over it, and an import of another thread would
    pass over one finder, and fail, when the list becomes shorter meanwhile.
    """
    if hook not in sys.meta_path:
        return False
    while hook in sys.meta_path:  # again, where another thread changed the list between its copy and its replacement
        finders = sys.meta_path
        copied = finders.copy()
        sys.meta_path = [finder for finder in copied if finder is not hook]
        if finders != copied:
            sys.meta_path = finders
    return True


def _when_initialized(name: str, spec: Any, callback: Callable[[], None]) -> Callable[[], None]:
    """Call `callback` at the end of the import in progress. Until then the spec of the module has a temporary class.

    The import system sets `_initializing` of the spec to False as its last step.
    """
    plain = type(spec)

    def remove() -> None:
        if type(spec) is awaited:
            spec.__class__ = plain

    def set_attribute(self: Any, attribute: str, value: Any) -> None:
        object.__setattr__(self, attribute, value)
        if attribute == "_initializing" and not value:
            remove()
            if name in sys.modules:  # else the import failed
                callback()

    awaited = type(plain.__name__, (plain,), {"__setattr__": set_attribute})
    spec.__class__ = awaited
    return remove
