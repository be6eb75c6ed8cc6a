"""Process groups: how one ends whose last owner is a model.

Note [Groups that end with their model]
`DistributedDataParallel` owns its process group through its reducer, an object of C++. Where the program destroys the
group first and the model dies later, the group ends inside the destructor of the reducer, which holds Python's lock and
waits for the threads of the group. One of these threads needs the same lock where it drops an operation that holds the
last reference to a Python object: both wait for ever. Torch alone comes to it seldom (an operation that nobody waited
for). With a mode on the stack, as ours is, each operation holds such a reference, so that the last exchange before the
end is enough. Therefore a reference of Python's to the group lives as long as the reducer and the logger, which owns
the reducer too, and goes right after them: what Python drops itself is destroyed without the lock.
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
    """Let groups end without Python's lock where their model is the last to own them.

    Known limitations: models made before this call are not known, nor are reducers that a program makes itself.
    """
    keeps = recorder.guarded(source, _keep_group, always=True)

    def keeping(function: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(function)
        def wrapper(model: Any, *args: Any, **kwargs: Any) -> None:
            function(model, *args, **kwargs)
            keeps(model)

        return wrapper

    replace(undo, DistributedDataParallel, "__init__", keeping)


def _keep_group(model: Any) -> None:
    group = getattr(model, "process_group", None)
    for owner in (getattr(model, name, None) for name in _OWNERS):
        if group is not None and owner is not None:
            # (When Python ends, all is left to it.)
            weakref.finalize(owner, _release_group, group).atexit = False


def _release_group(group: Any) -> None:
    """The owner is gone; the reference goes with the arguments of this call."""
