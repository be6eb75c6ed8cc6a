"""Detects from a few elements whether a large tensor has changed.

Note [Some elements stand for all]
Reading a whole tensor before and after a call takes memory bandwidth. That is most of the cost of observing a large
model. Most calls treat all elements alike: an update moves every element, clipping scales every nonzero element. After
such a call, some elements from the whole tensor show that it changed. If they are unchanged, other elements may still
have changed, for example when a call writes to some rows of an embedding. So each caller must know the meaning of an
unchanged sample, or read the whole tensor beforehand.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import torch

from traincheck.sources.tensors.deferred_values import DeferredValue, is_on_host, not_equal
from traincheck.sources.tensors.reading import INTEGER_TYPES, fingerprints, local_tensor
from traincheck.sources.tensors.value_facts import device_norms

LARGE_BYTES = 1 << 18
"""Size from which a sample pays off. Taking and comparing two samples takes as long as reading about 50 kB."""

SAMPLE_ELEMENTS = 128
"""Elements of a sample, spread over the tensor."""

MIN_NONZERO = 8
"""Minimum number of nonzero elements of a sample that can show scaling."""


def is_large(tensor: torch.Tensor) -> bool:
    """Whether a sample of the tensor pays off. Call inside `hidden_from_modes()`."""
    return bool(tensor.numel() * tensor.element_size() >= LARGE_BYTES)


def sample(tensor: torch.Tensor) -> torch.Tensor | None:
    """Copy some elements of a large tensor; None if it is small or unreadable. Call inside `hidden_from_modes()`."""
    return samples([tensor])[0] if is_large(tensor) else None


def samples(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor | None]:
    """The `sample` of each tensor. Samples on an accelerator are copied together. Call inside `hidden_from_modes()`."""
    results: list[torch.Tensor | None] = [None] * len(tensors)
    on_device: dict[tuple[torch.device, torch.dtype, int], list[tuple[int, torch.Tensor]]] = {}
    for index, tensor in enumerate(tensors):
        dense = local_tensor(tensor) if is_large(tensor) else None
        if dense is None or not dense.is_contiguous() or dense.element_size() not in INTEGER_TYPES:
            continue
        every = dense.numel() // SAMPLE_ELEMENTS | 1  # an odd stride visits all columns of a matrix
        count = (dense.numel() - 1) // every + 1
        if is_on_host(dense):
            results[index] = dense.as_strided((count,), (every,)).clone()
        else:  # of one size, so that many samples can be stacked
            view = dense.as_strided((min(count, SAMPLE_ELEMENTS),), (every,))
            on_device.setdefault((dense.device, dense.dtype, view.numel()), []).append((index, view))
    for entries in on_device.values():
        for (index, _), elements in zip(entries, torch.stack([view for _, view in entries]).unbind(), strict=True):
            results[index] = elements
    return results


def samples_differ(pairs: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> list[bool | DeferredValue]:
    """Whether the two samples of each pair differ in their bits. Results for an accelerator are deferred, and computed
    together. Call inside `hidden_from_modes()`."""
    results: list[bool | DeferredValue] = []
    on_device: dict[tuple[torch.device, torch.dtype, torch.Size], list[int]] = {}
    for index, (old, new) in enumerate(pairs):
        if old.dtype != new.dtype or old.shape != new.shape or old.device != new.device:
            results.append(True)
            continue
        if is_on_host(old):
            words = INTEGER_TYPES[old.element_size()]
            results.append(not torch.equal(old.view(words), new.view(words)))
        else:
            on_device.setdefault((old.device, old.dtype, old.shape), []).append(index)
            results.append(True)
    for (_, dtype, _), indices in on_device.items():
        words = INTEGER_TYPES[dtype.itemsize]
        before, after = (torch.stack([pairs[index][side] for index in indices]).view(words) for side in (0, 1))
        for index, differs in zip(indices, (before != after).any(1).unbind(), strict=True):
            results[index] = DeferredValue((differs,), bool)
    return results


Probe: TypeAlias = "int | torch.Tensor | DeferredValue | None"
"""The state of a tensor before a call: its fingerprint, a sample of a large tensor, or its deferred norm on an
accelerator. None if the tensor is unreadable."""


def probe(tensors: Sequence[torch.Tensor]) -> list[Probe]:
    """Read tensors before a call that can only scale them, all elements of a tensor by one factor. A sample is enough
    for large tensors. Call inside `hidden_from_modes()`."""
    probes: list[Probe] = list(device_norms(tensors))
    for index, tensor in enumerate(tensors):
        # torch cannot compare elements of one byte with zero.
        elements = sample(tensor) if probes[index] is None and tensor.element_size() > 1 else None
        if elements is not None and elements.count_nonzero() >= MIN_NONZERO:
            probes[index] = elements
    unread = [index for index, measured in enumerate(probes) if measured is None]
    for index, value in zip(unread, fingerprints([tensors[index] for index in unread]), strict=True):
        probes[index] = value
    return probes


def changed(
    probes: Sequence[Probe], tensors: Sequence[torch.Tensor], norms: Sequence[DeferredValue | None] | None = None
) -> list[bool | DeferredValue]:
    """Whether tensors differ from their earlier probes. `norms` are their norms now, if the caller has measured them.
    Call inside `hidden_from_modes()`."""
    results: list[bool | DeferredValue] = [True] * len(probes)  # for tensors that can no longer be sampled
    sampled = [(index, old) for index, old in enumerate(probes) if isinstance(old, torch.Tensor)]
    pairs = [(index, (old, new)) for index, old in sampled if (new := sample(tensors[index])) is not None]
    for (index, _), differs in zip(pairs, samples_differ([pair for _, pair in pairs]), strict=True):
        results[index] = differs
    pending = [index for index, old in enumerate(probes) if type(old) is DeferredValue]
    if norms is None:
        norms = device_norms(tensors) if pending else ()
    for index in pending:
        results[index] = not_equal(probes[index], norms[index])
    read = [index for index, old in enumerate(probes) if old is None or type(old) is int]
    for index, value in zip(read, fingerprints([tensors[index] for index in read]), strict=True):
        results[index] = value != probes[index]
    return results
