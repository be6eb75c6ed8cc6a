"""Passes over data loaders: what a loader is called, what it announces, and how far a pass over it went."""

from __future__ import annotations

import operator
import weakref
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import torch
import xxhash
from torch.utils.data import DataLoader, IterableDataset, Subset, TensorDataset

from traincheck.sources.data.loader_workers import Rounds
from traincheck.sources.data.random_states import combined
from traincheck.sources.tensors.reading import fingerprints, unseen
from traincheck.vocab.facts import Facts, FactValue

UNKNOWN = "DataLoader"
"""The name of a loader whose iterator was made before we looked."""

MOST_TENSORS, MOST_NESTED = 64, 4
"""Tensors of a batch that are told, and how deep structures are looked into: samples of a graph may be thousands."""
MOST_INDICES = 4096
"""Indices of a batch that count for its fingerprint."""


class Pass:
    """One pass over a loader: `batches` were fetched so far; `order` is a fingerprint of which came first; `args` tells
    of how many samples a batch is to be, `foreign` that no code of the program's runs in it."""

    __slots__ = (
        "__weakref__",
        "args",
        "batches",
        "foreign",
        "number",
        "order",
        "over",
        "receiver",
        "rounds",
        "turn",
        "whole",
        "workers",
    )

    def __init__(
        self,
        receiver: str,
        number: int,
        workers: int = 0,
        size: int | None = None,
        *,
        whole: bool = True,
        foreign: bool = False,
    ) -> None:
        self.receiver = receiver
        self.number = number  # of its iterator
        self.workers = workers
        self.args: Facts = () if size is None else (("batch_size", size),)
        self.whole = whole  # seen from its beginning
        self.foreign = foreign
        self.turn = 0  # passes that the same iterator made before
        self.rounds: Rounds | None = None
        self.again()
        self.turn = 0

    def again(self) -> None:
        """Another pass begins with the same iterator (of workers that persist)."""
        self.turn += 1
        self.batches = 0
        self.order: int | None = None
        self.over = False


def is_foreign(loader: DataLoader[Any]) -> bool:
    """Whether a loader is made of torch's own parts: nothing of the program's runs while it fetches a batch."""
    dataset = loader.dataset
    while type(dataset) is Subset:
        dataset = dataset.dataset
    samplers = (type(loader), type(loader.sampler), type(loader.batch_sampler), loader.collate_fn)
    return type(dataset) is TensorDataset and all(_is_torchs(part) for part in samplers)


def _is_torchs(part: Any) -> bool:
    return part is type(None) or str(getattr(part, "__module__", "")).startswith("torch.utils.data")


class _Named(NamedTuple):
    name: str
    loader: weakref.ref[Any]
    dataset: weakref.ref[Any] | None
    made_of: tuple[int | str | None, ...]


class LoaderNames:
    """Names loaders in order of appearance: `DataLoader#1`, `DataLoader#2`, ...

    A loader that is built anew for each epoch is one loader to a person. So one that reads the same data set in the
    same way as one that is gone takes over its name. Known limitations: not where the data set cannot be referenced
    weakly (a list).
    """

    def __init__(self) -> None:
        self._known: list[_Named] = []
        self._count = 0

    def of(self, loader: DataLoader[Any]) -> str:
        """The name of `loader`, given at first sight."""
        for known in self._known:
            if known.loader() is loader:
                return known.name
        made_of = (
            loader.batch_size,
            loader.drop_last,
            *map(_kind, (type(loader), type(loader.sampler), type(loader.batch_sampler), loader.collate_fn)),
        )
        name = ""
        for known in list(self._known):
            if known.loader() is not None:
                continue
            gone = known.dataset is None or known.dataset() is None
            if known.dataset is not None and known.dataset() is loader.dataset and known.made_of == made_of:
                name, gone = name or known.name, True
            if gone:
                self._known.remove(known)
        if not name:
            self._count += 1
            name = f"DataLoader#{self._count}"
        self._known.append(_Named(name, weakref.ref(loader), _weakly(loader.dataset), made_of))
        return name


def _kind(thing: Any) -> str:
    """The name of a class or function; of anything else that of its class."""
    return str(getattr(thing, "__qualname__", type(thing).__qualname__))


def _weakly(thing: Any) -> weakref.ref[Any] | None:
    try:
        return weakref.ref(thing)
    except TypeError:
        return None


def announced_length(loader: DataLoader[Any]) -> int | None:
    """How many batches the loader says that it has, None where it does not know.

    A loader over an iterable data set is never asked: it would remember that it was, and warn when it was wrong.
    """
    return None if isinstance(loader.dataset, IterableDataset) else _length(loader)


def dataset_size(loader: DataLoader[Any]) -> int | None:
    """How many samples the data set says that it has, None where it does not know."""
    return _length(loader.dataset)


def batch_size(loader: DataLoader[Any]) -> int | None:
    """Samples in a batch, None where the loader does not batch, or batches vary."""
    found = loader.batch_size
    if found is None:
        found = getattr(loader.batch_sampler, "batch_size", None)
    return found if type(found) is int else None


def _length(sized: Any) -> int | None:
    if not hasattr(type(sized), "__len__"):
        return None
    try:
        return len(sized)
    except Exception:  # a sampler that does not know; whether the program minds is its own affair
        return None


# -- batches -----------------------------------------------------------------------------------------------------------


def tensors_in(batch: Any, role: str, depth: int = 0) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors in a batch with their roles: `result`, `result[0]`, `result[images]`, `result[0][1]`."""
    if isinstance(batch, torch.Tensor):
        yield role, batch
    elif depth < MOST_NESTED and type(batch) is not str:
        if isinstance(batch, Mapping):
            for key, value in batch.items():
                yield from tensors_in(value, f"{role}[{key}]", depth + 1)
        elif isinstance(batch, (list, tuple)):
            for place, value in enumerate(batch[:MOST_TENSORS]):
                yield from tensors_in(value, f"{role}[{place}]", depth + 1)


def order_of_indices(indices: Any) -> int | None:
    """A fingerprint of the indices that a sampler chose for a batch, None where they are nothing that could be told."""
    try:
        with unseen():
            told = repr(_plain(indices))
    except TypeError:
        return None
    return xxhash.xxh3_64_intdigest(told.encode())


def _plain(index: Any, depth: int = 0) -> FactValue | list[Any]:
    if isinstance(index, str):
        return index
    if isinstance(index, (list, tuple)) and depth < 3:
        return [_plain(entry, depth + 1) for entry in index[:MOST_INDICES]]
    return operator.index(index)


def order_of_batch(batch: Any) -> int | None:
    """A fingerprint of the tensors of a batch, None where it has none that could be read."""
    found = [tensor for _, tensor in tensors_in(batch, "")][:MOST_TENSORS]
    with unseen():
        told = [value for value in fingerprints(found) if value is not None]
    return combined(told) if told else None
