"""Keeps the fused fast paths of torch's attention modules enabled while TrainCheck's function mode is active.

In evaluation, these modules compute one fused operation. Its results differ from the single steps in their last bits,
and completely at padding. The modules ask torch whether a function mode is active, and then avoid the fast path.
TrainCheck removes its mode for this query. So the program computes what it would compute without TrainCheck, and
TrainCheck observes the fused operation.
"""

from __future__ import annotations

import functools
import sys
from typing import Any

import torch

from traincheck.sources.base import replace
from traincheck.sources.recording.patches import UndoStack

FAST_PATH_MODULES = ("torch.nn.modules.activation", "torch.nn.modules.transformer")
"""Modules of torch with fast paths."""


def preserve(undo: UndoStack, mode: Any) -> None:
    """Hide `mode` from modules that ask whether they may take their fast path, until `undo` is closed."""

    def without_mode(original: Any) -> Any:
        @functools.wraps(original)
        def has_torch_function(*args: Any) -> Any:
            if sys._getframe(1).f_globals.get("__name__") not in FAST_PATH_MODULES or not _is_only_mode(mode):
                return original(*args)
            torch.overrides._pop_mode()
            try:
                return original(*args)
            finally:
                if not mode.off:
                    torch.overrides._push_mode(mode)

        return has_torch_function

    replace(undo, torch.overrides, "has_torch_function", without_mode)


def _is_only_mode(mode: Any) -> bool:
    """Whether `mode` is the only active mode. If the program has another one, there is no fast path anyway."""
    stack = torch.overrides._get_current_function_mode_stack()
    return len(stack) == 1 and stack[0] is mode
