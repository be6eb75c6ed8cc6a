"""Reads tensors that operations saved for the backward.

Known limitation: versions of torch that do not show whether hooks changed a saved tensor (before
`SavedTensor.unpack_hook`) are not read: to unpack a tensor that checkpointing saved would compute it again.
"""

from __future__ import annotations

from typing import Any

import torch


def saved_tensor(function: Any, name: str) -> torch.Tensor | None:
    """Return a tensor that an operation saved, None if it saved none or if hooks changed it."""
    raw = getattr(function, f"_raw_saved_{name}", None)
    if raw is None or getattr(raw, "unpack_hook", raw) is not None:
        return None
    tensor = getattr(function, f"_saved_{name}")
    return tensor if isinstance(tensor, torch.Tensor) else None
