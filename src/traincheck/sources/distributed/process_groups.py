"""Keeps a process group alive as long as its model, to avoid a deadlock at the end of a run.

Note [Groups that end with their model]
`DistributedDataParallel` owns its process group through its reducer, an object of C++. A program may destroy the group
first, so that the group ends in the destructor of the reducer when the model dies. That destructor holds Python's lock
and waits for the threads of the group. A group thread needs the same lock to drop an operation that holds the last
reference to a Python object: both wait forever. Without TrainCheck this is rare (an operation that nobody waited for).
With a mode on the stack each operation holds such a reference, so the last exchange before the end suffices. TrainCheck
therefore holds a Python reference to the group until the reducer and the logger, its owners, are gone. Python then
destroys the group without the lock.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import Any

from torch.nn.parallel import DistributedDataParallel

from traincheck.sources.base import replace
from traincheck.sources.recording.patches import UndoStack
from traincheck.sources.recording.recorder import Recorder

_OWNERS = ("reducer", "logger")


def destroy_without_gil(source: str, recorder: Recorder, undo: UndoStack) -> None:
    """Have groups end without Python's lock where their model is the last owner.

    Known limitations: models built before this call, and reducers that a program builds itself, are not covered.
    """
    keep_group = recorder.guarded(source, _keep_group, always=True)

    def keeping(function: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(function)
        def wrapper(model: Any, *args: Any, **kwargs: Any) -> None:
            function(model, *args, **kwargs)
            keep_group(model)

        return wrapper

    replace(undo, DistributedDataParallel, "__init__", keeping)


def _keep_group(model: Any) -> None:
    group = getattr(model, "process_group", None)
    for owner in (getattr(model, name, None) for name in _OWNERS):
        if group is not None and owner is not None:
            # (Python cleans up by itself at exit.)
            weakref.finalize(owner, _release_group, group).atexit = False


def _release_group(group: Any) -> None:
    """Drop the reference to the group, after its owner is gone: it leaves with the arguments of this call."""
