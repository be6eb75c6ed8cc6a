"""Hooks on parameters that leave no trace when they are removed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from traincheck.sources.recording.patches import TensorReference


def register_leaf_hook(tensor: torch.Tensor, hook: Callable[[torch.Tensor], Any]) -> Callable[[], None]:
    """Call `hook` with each gradient of a parameter; returns the function that removes it.

    torch leaves an empty table of hooks on the tensor. After `torch.utils.swap_tensors`, such a table is no longer
    connected, and hooks that the program registers later would never be called. So the table is removed as well.
    """
    with torch._C.DisableTorchFunction():  # modes of the program do not see this hook
        handle, reference = tensor.register_hook(hook), TensorReference(tensor)

    def remove() -> None:
        handle.remove()
        hooked = reference()
        with torch._C.DisableTorchFunction():
            if hooked is not None and not hooked._backward_hooks:
                hooked._backward_hooks = None

    return remove
