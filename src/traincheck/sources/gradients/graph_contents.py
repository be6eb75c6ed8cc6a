"""What the tensors that a graph keeps say about the data: the form of a mask, and which tokens a loss expects.

Both are judged by their form and never by their size. A form is there only if it is certain: short sequences show none.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

MASKS = ("_raw_saved_mask", "_raw_saved_condition", "_raw_saved_attn_mask")
"""Saved tensors that choose elements of others, such as that of `masked_fill`."""
TARGET, INDICES = "_raw_saved_target", "_raw_saved_indices"
"""Saved by `nll_loss`, and by `embedding`."""

MAX_ELEMENTS = 4_000_000
MIN_LENGTH = 4
"""In shorter sequences, several forms are the same."""
_DIAGONALS = (-1, 0, 1, 2)
_HIDDEN = -1e4
"""Numbers added to scores at hidden positions are at most this."""
_CERTAIN = 0.98
"""The share of tokens that has to agree. Padding and noise are in the rest."""
_IGNORED = -100


def mask_form(node: Any) -> str:
    """`triangle 1`: a mask is the part of a square above its diagonal, as in causal attention, or all but that part.
    `another` for other masks over squares; empty if the node keeps no such mask."""
    mask = next((tensor for name in MASKS if (tensor := _saved(node, name)) is not None), None)
    if mask is None or mask.dim() < 2 or mask.shape[-1] != mask.shape[-2] or mask.shape[-1] < MIN_LENGTH:
        return ""
    if mask.dtype is not torch.bool:
        if not mask.is_floating_point():
            return ""
        mask = mask <= _HIDDEN
    whole = torch.ones(mask.shape[-2:], dtype=torch.bool, device=mask.device)
    for diagonal in _DIAGONALS:
        triangle = whole.triu(diagonal).expand_as(mask)
        if torch.equal(mask, triangle) or torch.equal(mask, ~triangle):
            return f"triangle {diagonal}"
    return "another"


OFFSETS = ("the tokens of the input", "the next tokens of the input", "the second next tokens of the input")
OTHERS = "other tokens than the input"


def expected_tokens(node: Any, nodes: Iterable[Any]) -> str:
    """Which tokens a loss expects at each position, one of `OFFSETS` or `OTHERS`.

    Empty if the loss keeps no class indices, or if they do not fit the indices of an embedding in `nodes`.
    """
    target = _saved(node, TARGET)
    if target is None or target.is_floating_point():
        return ""
    found = ""
    for other in nodes:
        indices = _saved(other, INDICES)
        if indices is None or indices.dim() < 2 or indices.shape[-1] < MIN_LENGTH or indices.device != target.device:
            continue
        rows, length = indices[..., 0].numel(), indices.shape[-1]
        if target.numel() % rows or not length - 2 <= target.numel() // rows <= length:
            continue
        found = _offset(indices.reshape(rows, length), target.reshape(rows, -1))
        if found != OTHERS:
            return found
    return found


def _offset(indices: torch.Tensor, target: torch.Tensor) -> str:
    for offset, name in enumerate(OFFSETS):
        expected = indices[:, offset:]
        width = min(expected.shape[1], target.shape[1])
        counted = target[:, :width] != _IGNORED
        alike = (expected[:, :width] == target[:, :width]) & counted
        if counted.any() and alike.sum() >= _CERTAIN * counted.sum():
            return name
    return OTHERS


def unpacked(saved: Any) -> torch.Tensor | None:
    """The tensor of a `_raw_saved_` attribute; None if there is none, if a hook has packed it, or if it was freed."""
    if saved is None or isinstance(saved, tuple) or getattr(saved, "unpack_hook", saved) is not None:
        return None
    try:
        tensor = saved.data
    except RuntimeError:
        return None  # freed by an earlier backward
    return tensor if isinstance(tensor, torch.Tensor) else None


def is_absent(saved: Any) -> bool:
    """Whether a `_raw_saved_` attribute has no tensor: an optional input that nobody passed, such as class weights."""
    try:
        return not isinstance(saved, tuple) and getattr(saved, "data", saved) is None
    except RuntimeError:
        return False  # freed by an earlier backward


def _saved(node: Any, name: str) -> torch.Tensor | None:
    """A tensor that a node keeps; None if it keeps none of this name, or none that can be read at once."""
    tensor = unpacked(getattr(node, name, None))
    if tensor is None or type(tensor) not in (torch.Tensor, torch.nn.Parameter) or tensor.layout is not torch.strided:
        return None
    return tensor if 0 < tensor.numel() <= MAX_ELEMENTS else None
