"""How long a trainer of a library declares its run to be, and in which unit it steps the schedulers.

Trainers of Lightning and of transformers know the number of epochs and of updates before the first update. They are
found in the frames around an update, and only plain attributes of them are read: `estimated_stepping_batches` of
Lightning, for example, may build the loaders.

Known limitations: manual optimization, micro-batches whose number changes, data without a length, Lightning before 2.0,
and other libraries declare nothing.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

EPOCHS, UPDATES, BATCHES = "epochs", "updates", "batches"
"""Units of the length of a run."""

MANY_UPDATES = 1000
"""Updates of a run that declares only them. A trial of fewer may be as long as the number of epochs in a program."""

DEFAULT_EPOCHS = 1000
"""The epochs that Lightning assumes if a program declares no length at all."""

_MAX_FRAMES = 48
"""Frames between the step of an optimizer and its trainer: hooks of torch and ours, precision plugins and closures."""


class DeclaredRun(NamedTuple):
    """What a trainer declares: the length of the whole run in each unit that is known, and the units whose number the
    program itself chose; the updates and batches of an epoch; and its schedulers, each with the unit of its steps."""

    lengths: dict[str, int]
    chosen: frozenset[str]
    epoch: tuple[int, ...]
    schedulers: tuple[tuple[Any, str], ...]


def declared_run() -> DeclaredRun | None:
    """Return what the trainer that makes the current update declares, or None without such a trainer."""
    frame = sys._getframe(1)
    for _ in range(_MAX_FRAMES):
        read = _TRAINERS.get((frame.f_globals.get("__name__", ""), frame.f_code.co_name))
        if read is not None:
            return read(frame.f_locals.get("self"))
        if frame.f_back is None:
            break
        frame = frame.f_back
    return None


def _of_lightning(loop: Any) -> DeclaredRun | None:
    trainer = getattr(loop, "trainer", None)
    epochs, limit, group = (_integer(trainer, name) for name in ("max_epochs", "max_steps", "accumulate_grad_batches"))
    if getattr(trainer, "fast_dev_run", True) or epochs is None or limit is None or not group:
        return None
    if any(hasattr(callback, "going_to_accumulate_grad_batches") for callback in getattr(trainer, "callbacks", ())):
        return None  # the number of micro-batches of an update changes
    schedulers = tuple(
        (config.scheduler, UPDATES if config.interval == "step" else EPOCHS)
        for config in getattr(trainer, "lr_scheduler_configs", ())
        if config.frequency == 1 and not config.reduce_on_plateau
    )
    share = getattr(trainer, "limit_train_batches", None)
    is_limited = bool(getattr(trainer, "overfit_batches", 0)) or not (isinstance(share, float) and share == 1.0)
    batches = _integer(trainer, "num_training_batches")
    if epochs == -1:  # the program declares only updates
        is_long = limit >= MANY_UPDATES and not is_limited
        return DeclaredRun({UPDATES: limit}, frozenset({UPDATES}), (), schedulers) if is_long else None
    if epochs < 1 or not batches:
        return None
    updates = math.ceil(batches / group)
    if 0 <= limit < updates * epochs:
        return None  # a trial, or another end than that of the epochs
    chosen = {UPDATES, BATCHES} if not is_limited else set()
    if epochs != DEFAULT_EPOCHS:
        chosen.add(EPOCHS)
    lengths = {EPOCHS: epochs, UPDATES: updates * epochs, BATCHES: batches * epochs}
    return DeclaredRun(lengths, frozenset(chosen), (updates, batches), schedulers)


def _of_transformers(trainer: Any) -> DeclaredRun | None:
    arguments = getattr(trainer, "args", None)
    epochs = getattr(arguments, "num_train_epochs", None)
    updates, limit = _integer(getattr(trainer, "state", None), "max_steps"), _integer(arguments, "max_steps")
    group = _integer(arguments, "gradient_accumulation_steps")
    if not updates or not group or limit is None or limit > 0:
        return None
    if not isinstance(epochs, int | float) or epochs < 1 or epochs != int(epochs):
        return None
    lengths = {EPOCHS: int(epochs), UPDATES: updates, BATCHES: updates * group}
    in_epoch = updates // int(epochs)
    schedulers = ((getattr(trainer, "lr_scheduler", None), UPDATES),)
    return DeclaredRun(lengths, frozenset(lengths), (in_epoch, in_epoch * group), schedulers)


def _integer(instance: Any, name: str) -> int | None:
    value = getattr(instance, name, None)
    return value if type(value) is int else None


_TRAINERS: dict[tuple[str, str], Callable[[Any], DeclaredRun | None]] = {
    ("lightning.pytorch.loops.optimization.automatic", "_optimizer_step"): _of_lightning,
    ("pytorch_lightning.loops.optimization.automatic", "_optimizer_step"): _of_lightning,
    ("transformers.trainer", "train"): _of_transformers,
}
"""By module and function: how to read the trainer. The local variables of these functions hold no batch, because a
frame keeps what was read of it (`f_locals`) until it ends."""
