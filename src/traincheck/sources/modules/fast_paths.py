"""Fast paths: attention modules of torch that compute otherwise while a function mode is active, as ours is.

In evaluation these modules compute in one fused operation, whose results differ in their last bits, and for padding
altogether, unless a mode might want to see the single steps. They ask torch whether there is one. So ours is not there
while they ask: the program gets what it would get without us, and its one operation is there to be seen.
"""

from __future__ import annotations

import functools
import sys
from typing import Any

import torch

from traincheck.sources.base import replace
from traincheck.sources.recording.patches import UndoStack

FAST_PATH_MODULES = ("torch.nn.modules.activation", "torch.nn.modules.transformer")
"""Where the modules with a fast path are."""


def preserve(undo: UndoStack, mode: Any) -> None:
    """Have `mode` count for nothing where a module asks whether it may take its fast path, until `undo` is closed."""

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
    """Whether `mode` is the only one: with another one of the program's there is no fast path anyway."""
    stack = torch.overrides._get_current_function_mode_stack()
    return len(stack) == 1 and stack[0] is mode
