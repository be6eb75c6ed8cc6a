"""Kept: what was worked out once, so long as it is not too much."""

from __future__ import annotations

from typing import Any, TypeVar

K = TypeVar("K")
V = TypeVar("V")

MOST = 4096
"""Things of one sort that are kept: several times as many as a step of a large program has, and together a few
megabytes. Where a program brings new ones all the time (another number in each step), no more must pile up."""


class BoundedCache(dict[K, V]):
    """A dict for what can be worked out again: before it holds more than `most`, it is emptied."""

    def __init__(self, most: int = MOST) -> None:
        super().__init__()
        self.most = most

    def put(self, key: K, value: V) -> V:
        """Keep `value`, and return it."""
        if len(self) >= self.most:
            self.clear()
        self[key] = value
        return value


class ObjectCache(BoundedCache[int, V]):
    """The same of things that take long to hash (code does), by their `id`. They are kept alive with it, so that no
    other one gets the place of one that is gone."""

    def __init__(self, most: int = MOST) -> None:
        super().__init__(most)
        self._key_objects: list[Any] = []

    def clear(self) -> None:
        held, self._key_objects = self._key_objects, []
        super().clear()
        del held  # no earlier: another thread may ask meanwhile

    def put_for(self, key_object: Any, value: V) -> V:
        """Keep `value` of `thing`, and return it."""
        self.put(id(key_object), value)
        self._key_objects.append(key_object)
        return value
