"""Spot checks: whether a large tensor has changed, as some of its elements show.

Note [Some elements stand for all]
To read a tensor as a whole before a call and after it takes memory's time: most of what observing a large model costs.
What most calls do to a tensor they do to all of it: an update moves every element, clipping scales every element that
is not zero. There some elements from all over it, the same before and after, show that it changed. That they are
unchanged shows nothing of the others where only some rows are written to (of an embedding), so whoever asks here has to
know what an unchanged sample means, or to read the whole tensor beforehand.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import torch

from traincheck.sources.tensors import WORDS, fingerprints, local

LARGE = 1 << 18
"""Bytes from which on it is worth it: to take and compare two samples takes as long as to read some 50 kB."""

ELEMENTS = 128
"""Elements of a sample, from all over the tensor."""

ENOUGH = 8
"""Elements of a sample that are not zero, from which on it shows that a tensor was scaled."""


def is_large(tensor: torch.Tensor) -> bool:
    """Whether a sample is worth it. Call under `unseen`."""
    return bool(tensor.numel() * tensor.element_size() >= LARGE)


def sample(tensor: torch.Tensor) -> torch.Tensor | None:
    """Some elements of a large tensor, copied; None of one that is small or cannot be read. Call under `unseen`."""
    if not is_large(tensor):
        return None
    dense = local(tensor)
    if dense is None or not dense.is_contiguous() or dense.element_size() not in WORDS:
        return None
    every = dense.numel() // ELEMENTS | 1  # odd: of a matrix elements of all columns
    return dense.as_strided(((dense.numel() - 1) // every + 1,), (every,)).clone()


def differ(pairs: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> list[bool]:
    """Whether the two samples of each pair, which are of the same tensor, have different bits. One transfer for each
    device. Call under `unseen`."""
    found = [False] * len(pairs)
    pending: dict[torch.device, list[tuple[int, torch.Tensor]]] = {}
    for place, (old, new) in enumerate(pairs):
        if old.dtype != new.dtype or old.shape != new.shape or old.device != new.device:
            found[place] = True
            continue
        words = WORDS[old.element_size()]
        if old.is_cpu:
            found[place] = not torch.equal(old.view(words), new.view(words))
        else:
            pending.setdefault(old.device, []).append((place, (old.view(words) != new.view(words)).any()))
    return transferred(found, pending)


Look: TypeAlias = "int | torch.Tensor | None"
"""What a tensor was: its fingerprint, or a sample of a large one; None of one that cannot be read."""


def look(tensors: Sequence[torch.Tensor]) -> list[Look]:
    """What tensors are before a call that can only scale them, all elements of each by one factor: of the large ones
    that would show it a sample is enough. Call under `unseen`."""
    # (Elements of one byte torch cannot compare with zero.)
    found: list[Look] = [sample(tensor) if tensor.element_size() > 1 else None for tensor in tensors]
    taken = [(place, elements) for place, elements in enumerate(found) if isinstance(elements, torch.Tensor)]
    for (place, _), so in zip(taken, _show_scaling([elements for _, elements in taken]), strict=True):
        if not so:
            found[place] = None
    unread = [place for place, elements in enumerate(found) if elements is None]
    for place, value in zip(unread, fingerprints([tensors[place] for place in unread]), strict=True):
        found[place] = value
    return found


def changed(looks: Sequence[Look], tensors: Sequence[torch.Tensor]) -> list[bool]:
    """Whether tensors are now something else than they were, as far as these looks show. Call under `unseen`."""
    found = [True] * len(looks)  # a sample cannot be taken any more
    sampled = [(place, old) for place, old in enumerate(looks) if isinstance(old, torch.Tensor)]
    pairs = [(place, (old, new)) for place, old in sampled if (new := sample(tensors[place])) is not None]
    for (place, _), so in zip(pairs, differ([pair for _, pair in pairs]), strict=True):
        found[place] = so
    read = [place for place, old in enumerate(looks) if not isinstance(old, torch.Tensor)]
    for place, value in zip(read, fingerprints([tensors[place] for place in read]), strict=True):
        found[place] = value != looks[place]
    return found


def _show_scaling(samples: Sequence[torch.Tensor]) -> list[bool]:
    """Of each sample whether it would show that its tensor is scaled: it has elements that are not zero."""
    found = [False] * len(samples)
    pending: dict[torch.device, list[tuple[int, torch.Tensor]]] = {}
    for place, taken in enumerate(samples):
        enough = taken.count_nonzero() >= ENOUGH
        if enough.is_cpu:
            found[place] = bool(enough)
        else:
            pending.setdefault(enough.device, []).append((place, enough))
    return transferred(found, pending)


def transferred(found: list[bool], pending: dict[torch.device, list[tuple[int, torch.Tensor]]]) -> list[bool]:
    """`found`, with what was found on each device put to its places: one transfer for each."""
    for entries in pending.values():
        for (place, _), value in zip(entries, torch.stack([each for _, each in entries]).tolist(), strict=True):
            found[place] = value
    return found
