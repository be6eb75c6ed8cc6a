"""Caches with a limit, for values that can be computed again."""

from __future__ import annotations

from typing import Any, TypeVar

K = TypeVar("K")
V = TypeVar("V")

MAX_ENTRIES = 4096
"""Entries of one cache. A step of a large program needs a fraction of that, and all of them take a few megabytes. A
program that brings new ones all the time (another number in each step) must not fill the memory."""


class BoundedCache(dict[K, V]):
    """A dict that is emptied before it exceeds `max_entries` entries."""

    def __init__(self, max_entries: int = MAX_ENTRIES) -> None:
        super().__init__()
        self.max_entries = max_entries

    def put(self, key: K, value: V) -> V:
        """Store `value`, and return it."""
        if len(self) >= self.max_entries:
            self.clear()
        self[key] = value
        return value


class ObjectCache(BoundedCache[int, V]):
    """The same by the `id` of an object that takes long to hash, such as code. The cache keeps the objects alive, so
    that no other object gets the id of a freed one.
    """

    def __init__(self, max_entries: int = MAX_ENTRIES) -> None:
        super().__init__(max_entries)
        self._key_objects: list[Any] = []

    def clear(self) -> None:
        held, self._key_objects = self._key_objects, []
        super().clear()
        del held  # last, because another thread may look up an entry meanwhile

    def put_for(self, key_object: Any, value: V) -> V:
        """Store `value` for an object, and return it."""
        self.put(id(key_object), value)
        self._key_objects.append(key_object)
        return value
