"""Tracks epochs over data loaders: the name of a loader, its announced length, and how far each epoch went."""

from __future__ import annotations

import operator
import weakref
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import xxhash
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, Subset, TensorDataset

from traincheck.sources.data.loader_workers import Rounds
from traincheck.sources.data.random_states import combined
from traincheck.sources.tensors.reading import fingerprints, hidden_from_modes
from traincheck.vocab.facts import Facts, FactValue

if TYPE_CHECKING:
    from traincheck.sources.data.worker_samples import WorkerSamples

UNKNOWN = "DataLoader"
"""The name of a loader whose iterator was built before TrainCheck attached."""

MAX_TENSORS, MAX_DEPTH = 64, 4
"""Tensors recorded per batch, and how deep structures are searched: samples of a graph may be thousands."""
MAX_INDICES = 4096
"""Indices of a batch that enter its fingerprint."""


class LoaderEpoch:
    """One epoch over a loader.

    `batches` counts the fetched batches, `length` is how many the loader announced. `order` is a fingerprint of the
    first of them. `args` holds the batch size.
    `from_start` says that TrainCheck saw the epoch from its beginning. `torch_only` says that no code of the program
    runs while the loader fetches. `epoch_index` counts earlier epochs of the same iterator. `samples` are those of each
    worker, where they are compared.
    """

    __slots__ = (
        "__weakref__",
        "args",
        "batches",
        "epoch_index",
        "exhausted",
        "from_start",
        "length",
        "number",
        "order",
        "receiver",
        "rounds",
        "samples",
        "torch_only",
        "workers",
    )

    def __init__(
        self,
        receiver: str,
        number: int,
        workers: int = 0,
        size: int | None = None,
        *,
        from_start: bool = True,
        torch_only: bool = False,
        length: int | None = None,
    ) -> None:
        self.receiver = receiver
        self.number = number  # of its iterator
        self.workers = workers
        self.args: Facts = () if size is None else (("batch_size", size),)
        self.from_start = from_start
        self.length = length
        self.torch_only = torch_only
        self.epoch_index = 0
        self.rounds: Rounds | None = None
        self.restart()
        self.epoch_index = 0

    def restart(self) -> None:
        """Begin another epoch with the same iterator (with persistent workers)."""
        self.epoch_index += 1
        self.batches = 0
        self.order: int | None = None
        self.exhausted = False
        self.samples: WorkerSamples | None = None


def is_torch_only(loader: DataLoader[Any]) -> bool:
    """Return whether a loader consists of torch classes only: no code of the program runs while it fetches."""
    dataset = loader.dataset
    while type(dataset) is Subset:
        dataset = dataset.dataset
    samplers = (type(loader), type(loader.sampler), type(loader.batch_sampler), loader.collate_fn)
    return type(dataset) is TensorDataset and all(_is_from_torch(part) for part in samplers)


def _is_from_torch(part: Any) -> bool:
    return part is type(None) or str(getattr(part, "__module__", "")).startswith("torch.utils.data")


class _NamedLoader(NamedTuple):
    name: str
    loader: weakref.ref[Any]
    dataset: weakref.ref[Any] | None
    settings: tuple[int | str | None, ...]


class LoaderNames:
    """Names loaders in order of appearance: `DataLoader#1`, `DataLoader#2`, ...

    Users regard a loader that is rebuilt for each epoch as one loader. A new loader therefore takes the name of a
    deleted one that read the same data set in the same way. Known limitations: this needs a data set that supports weak
    references (a list does not).
    """

    def __init__(self) -> None:
        self._entries: list[_NamedLoader] = []
        self._count = 0

    def name_of(self, loader: DataLoader[Any]) -> str:
        """Return the name of `loader`, assigned when it is first seen."""
        for entry in self._entries:
            if entry.loader() is loader:
                return entry.name
        settings = (
            loader.batch_size,
            loader.drop_last,
            *map(_type_name, (type(loader), type(loader.sampler), type(loader.batch_sampler), loader.collate_fn)),
        )
        name = ""
        for entry in list(self._entries):
            if entry.loader() is not None:
                continue
            is_deleted = entry.dataset is None or entry.dataset() is None
            if entry.dataset is not None and entry.dataset() is loader.dataset and entry.settings == settings:
                name, is_deleted = name or entry.name, True
            if is_deleted:
                self._entries.remove(entry)
        if not name:
            self._count += 1
            name = f"DataLoader#{self._count}"
        self._entries.append(_NamedLoader(name, weakref.ref(loader), _weak_reference(loader.dataset), settings))
        return name


def _type_name(value: Any) -> str:
    """Return the name of a class or function, or the class name of any other object."""
    return str(getattr(value, "__qualname__", type(value).__qualname__))


def _weak_reference(value: Any) -> weakref.ref[Any] | None:
    try:
        return weakref.ref(value)
    except TypeError:
        return None


def announced_length(loader: DataLoader[Any]) -> int | None:
    """Return the number of batches that the loader announces, None where it does not know.

    A loader over an iterable data set is not asked: it would remember the answer, and warn when the answer is wrong.
    """
    return None if isinstance(loader.dataset, IterableDataset) else _length(loader)


def dataset_size(loader: DataLoader[Any]) -> int | None:
    """Return the number of samples that the data set announces, None where it does not know."""
    return _length(loader.dataset)


def batch_size(loader: DataLoader[Any]) -> int | None:
    """Return the samples per batch, None where the loader does not batch, or batches vary."""
    size = loader.batch_size
    if size is None:
        size = getattr(loader.batch_sampler, "batch_size", None)
    return size if type(size) is int else None


def sampler_of(loader: DataLoader[Any]) -> str:
    """Return what chooses the samples: the class of the sampler, and whether it shuffles if it says so."""
    if isinstance(loader.dataset, IterableDataset):
        return "stream"
    batch_sampler = loader.batch_sampler
    custom = batch_sampler is not None and type(batch_sampler) is not BatchSampler
    sampler = batch_sampler if custom else loader.sampler
    shuffle = vars(sampler).get("shuffle") if hasattr(sampler, "__dict__") else None
    order = f" (shuffle={shuffle})" if type(shuffle) is bool else ""
    return f"{type(sampler).__name__}{order}"


def drops_last(loader: DataLoader[Any]) -> bool:
    """Return whether the loader drops an incomplete last batch."""
    return bool(loader.drop_last)


def _length(sized: Any) -> int | None:
    if not hasattr(type(sized), "__len__"):
        return None
    try:
        return len(sized)
    except Exception:  # a sampler without a known length
        return None


# -- batches -----------------------------------------------------------------------------------------------------------


def tensors_in(batch: Any, role: str, depth: int = 0) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the tensors in a batch with their roles: `result`, `result[0]`, `result[images]`, `result[0][1]`."""
    if isinstance(batch, torch.Tensor):
        yield role, batch
    elif depth < MAX_DEPTH and type(batch) is not str:
        if isinstance(batch, Mapping):
            for key, value in batch.items():
                yield from tensors_in(value, f"{role}[{key}]", depth + 1)
        elif isinstance(batch, (list, tuple)):
            for index, value in enumerate(batch[:MAX_TENSORS]):
                yield from tensors_in(value, f"{role}[{index}]", depth + 1)


def order_of_indices(indices: Any) -> int | None:
    """Return a fingerprint of the indices that a sampler chose for a batch; None for other objects."""
    try:
        with hidden_from_modes():
            text = repr(_plain(indices))
    except TypeError:
        return None
    return xxhash.xxh3_64_intdigest(text.encode())


def _plain(index: Any, depth: int = 0) -> FactValue | list[Any]:
    if isinstance(index, str):
        return index
    if isinstance(index, (list, tuple)) and depth < 3:
        return [_plain(entry, depth + 1) for entry in index[:MAX_INDICES]]
    return operator.index(index)


def order_of_batch(batch: Any) -> int | None:
    """Return a fingerprint of the tensors of a batch; None without readable tensors."""
    tensors = [tensor for _, tensor in tensors_in(batch, "")][:MAX_TENSORS]
    with hidden_from_modes():
        values = [value for value in fingerprints(tensors) if value is not None]
    return combined(values) if values else None
