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

from traincheck.sources.tensors.deferred_values import Pending, lies_here, unlike
from traincheck.sources.tensors.reading import WORDS, fingerprints, local
from traincheck.sources.tensors.value_facts import device_norms

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


def differ(pairs: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> list[bool | Pending]:
    """Whether the two samples of each pair, which are of the same tensor, have different bits: pending where they lie
    on an accelerator. Call under `unseen`."""
    found: list[bool | Pending] = []
    for old, new in pairs:
        if old.dtype != new.dtype or old.shape != new.shape or old.device != new.device:
            found.append(True)
            continue
        words = WORDS[old.element_size()]
        if lies_here(old):
            found.append(not torch.equal(old.view(words), new.view(words)))
        else:
            found.append(Pending(((old.view(words) != new.view(words)).any(),), bool))
    return found


Look: TypeAlias = "int | torch.Tensor | Pending | None"
"""What a tensor was: its fingerprint, or a sample of a large one, or what is pending: on an accelerator its norm, which
is one computation for all; None of one that cannot be read."""


def look(tensors: Sequence[torch.Tensor]) -> list[Look]:
    """What tensors are before a call that can only scale them, all elements of each by one factor: of the large ones
    that would show it a sample is enough. Call under `unseen`."""
    found: list[Look] = list(device_norms(tensors))
    for place, tensor in enumerate(tensors):
        # (Elements of one byte torch cannot compare with zero.)
        elements = sample(tensor) if found[place] is None and tensor.element_size() > 1 else None
        if elements is not None and elements.count_nonzero() >= ENOUGH:
            found[place] = elements
    unread = [place for place, known in enumerate(found) if known is None]
    for place, value in zip(unread, fingerprints([tensors[place] for place in unread]), strict=True):
        found[place] = value
    return found


def changed(looks: Sequence[Look], tensors: Sequence[torch.Tensor]) -> list[bool | Pending]:
    """Whether tensors are now something else than they were, as far as these looks show. Call under `unseen`."""
    found: list[bool | Pending] = [True] * len(looks)  # a sample cannot be taken any more
    sampled = [(place, old) for place, old in enumerate(looks) if isinstance(old, torch.Tensor)]
    pairs = [(place, (old, new)) for place, old in sampled if (new := sample(tensors[place])) is not None]
    for (place, _), so in zip(pairs, differ([pair for _, pair in pairs]), strict=True):
        found[place] = so
    pending = [place for place, old in enumerate(looks) if type(old) is Pending]
    for place, norm in zip(pending, device_norms([tensors[place] for place in pending]), strict=True):
        found[place] = unlike(looks[place], norm)
    read = [place for place, old in enumerate(looks) if old is None or type(old) is int]
    for place, value in zip(read, fingerprints([tensors[place] for place in read]), strict=True):
        found[place] = value != looks[place]
    return found
