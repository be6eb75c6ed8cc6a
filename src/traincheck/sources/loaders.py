"""Source `loaders`: batches fetched from `torch.utils.data.DataLoader`, and the end of an epoch."""

from __future__ import annotations

import weakref
from contextlib import ExitStack
from typing import Any

from torch.utils.data import DataLoader
from torch.utils.data.dataloader import _BaseDataLoaderIter

from traincheck.sources.base import replace, wrapping
from traincheck.sources.circumstances import circumstances
from traincheck.sources.recorder import OpenCall, Recorder
from traincheck.vocab.demand import Demand
from traincheck.vocab.events import LIFECYCLE
from traincheck.vocab.facts import facts

NEXT = ("torch.utils.data.DataLoader.__next__",)
ITER = ("torch.utils.data.DataLoader.__iter__",)


class LoaderSource:
    """Observes the iterators of data loaders; each loader is named in order of appearance."""

    name = "loaders"

    def __init__(self) -> None:
        self._names: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()

    def offers(self) -> str | None:
        return None

    def attach(self, demand: Demand, recorder: Recorder) -> ExitStack:
        undo = ExitStack()
        wanted = demand.wants_call(NEXT)

        def next_begins(iterator: Any) -> OpenCall | None:
            recorder.steps.batch(recorder.next_seq())
            return recorder.enter(LIFECYCLE, NEXT, self._name(iterator), circumstances()) if wanted else None

        def next_ends(call: OpenCall, batch: Any) -> None:
            recorder.leave(call, facts(last_batch=False))

        def next_fails(call: OpenCall) -> None:
            recorder.leave(call, facts(last_batch=True))

        def iter_begins(loader: Any) -> OpenCall | None:
            if not demand.wants_call(ITER):
                return None
            return recorder.enter(LIFECYCLE, ITER, self._name(loader), circumstances())

        def iter_ends(call: OpenCall, iterator: Any) -> None:
            recorder.leave(call)

        guarded = recorder.guarded
        replace(
            undo,
            _BaseDataLoaderIter,
            "__next__",
            wrapping(guarded(self.name, next_begins), guarded(self.name, next_ends), guarded(self.name, next_fails)),
        )
        replace(
            undo,
            DataLoader,
            "__iter__",
            wrapping(
                guarded(self.name, iter_begins), guarded(self.name, iter_ends), guarded(self.name, recorder.abandon)
            ),
        )
        return undo

    def _name(self, thing: Any) -> str:
        """The loader's name; an iterator has that of the dataset it reads, which the loader shares."""
        key = getattr(thing, "_dataset", None)
        if key is None:
            key = getattr(thing, "dataset", thing)
        try:
            return self._names.setdefault(key, f"DataLoader#{len(self._names) + 1}")
        except TypeError:  # a dataset that cannot be weakly referenced or hashed, such as a list
            return "DataLoader"
