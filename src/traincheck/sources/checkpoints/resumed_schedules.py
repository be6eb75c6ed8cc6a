"""Finds schedulers that begin again although the run of their checkpoint had come further.

The program restores the state of an optimizer from a file. Two signs show that a scheduler of it begins again:
* The program has just written the file, so it resumes. The file also holds the state of a scheduler. A scheduler that
  existed when the file was loaded has the same settings, and no scheduler has loaded the state. Its first step leads to
  position 1.
* The state of the optimizer has the learning rate to which a schedule had come. A scheduler with the same first rate is
  at its beginning, and has set the rate to that of the beginning, which is another one. Schedulers that multiply the
  current rate go on from the restored one, so they show nothing.

A program may restore the position without `load_state_dict`, by an argument, an attribute or further steps. Then the
position is not 0 before the first update, or it jumps.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

POSITION, STEPS = "last_epoch", "_step_count"
"""Attributes of the schedulers of torch, and entries of their states."""

FEWEST_STEPS = 2
"""Position in a file from which a restart is judged: an absolute position of 1 may be right after a smaller one."""


DIFFERENT = 0.1
"""The relative difference from which two learning rates are not neighbours in a schedule."""


class Rates(NamedTuple):
    """The learning rate of a group of parameters, and the one with which it started."""

    now: float
    first: float


class RestoredRates(NamedTuple):
    """An optimizer that has loaded its state from a file, the line that loaded the file, and the rates in the state."""

    optimizer: weakref.ref[Any]
    site: str
    saved: tuple[Rates, ...]


def restored_rates(optimizer: Any, state: Mapping[str, Any], site: str) -> RestoredRates | None:
    """The rates in a state that an optimizer is about to load; None if it had no scheduler."""
    saved = _rates(state.get("param_groups", ()))
    return None if saved is None else RestoredRates(weakref.ref(optimizer), site, saved)


class Beginning(NamedTuple):
    """Whether a schedule has begun again: the class of the scheduler and the sign, both empty if not. `is_open` as long
    as this is not known."""

    scheduler: str = ""
    sign: str = ""
    is_open: bool = False


def beginning(restored: RestoredRates, schedulers: Sequence[weakref.ref[Any]]) -> Beginning:
    """Judge the schedulers of an optimizer that is about to step, after it has loaded its state."""
    optimizer = restored.optimizer()
    own = [scheduler for reference in schedulers if (scheduler := reference()) is not None]
    own = [scheduler for scheduler in own if getattr(scheduler, "optimizer", None) is optimizer]
    positions = [getattr(scheduler, POSITION, FEWEST_STEPS) for scheduler in own]
    now = None if optimizer is None else _rates(optimizer.param_groups)
    if not own or max(positions) >= FEWEST_STEPS or now is None or len(now) != len(restored.saved):
        return Beginning()
    pairs = list(zip(restored.saved, now, strict=True))
    if any(before.first != after.first for before, after in pairs):
        return Beginning()
    moved = next(((before.now, after.now) for before, after in pairs if _differ(before.now, after.now)), None)
    if moved is None:
        return Beginning(is_open=max(positions) == 0)
    first = next((s for s, position in zip(own, positions, strict=True) if not position or _starts_from_base(s)), None)
    if first is None:
        return Beginning()
    sign = f"its rate is {moved[1]:.4g} at position {getattr(first, POSITION)}, and {moved[0]:.4g} in the file"
    return Beginning(type(first).__name__, sign)


def _rates(groups: Any) -> tuple[Rates, ...] | None:
    """The rates of groups of parameters; None if one has no scheduler."""
    try:
        return tuple(Rates(float(group["lr"]), float(group["initial_lr"])) for group in groups)
    except (KeyError, TypeError, ValueError):
        return None


def _differ(saved: float, now: float) -> bool:
    return abs(saved - now) > DIFFERENT * max(abs(saved), abs(now))


def _starts_from_base(scheduler: Any) -> bool:
    """Whether a scheduler computes each rate from the first one, not from the one before."""
    schedulers = sys.modules["torch.optim.lr_scheduler"]
    names = ("LambdaLR", "OneCycleLR", "CyclicLR", "CosineAnnealingWarmRestarts")
    return isinstance(scheduler, tuple(getattr(schedulers, name) for name in names))


class Restarting(NamedTuple):
    """A scheduler that has not restored its position, its optimizer, and the line that loaded the file."""

    scheduler: weakref.ref[Any]
    optimizer: weakref.ref[Any]
    site: str
    saved_position: int

    @property
    def position(self) -> int:
        """The position of the scheduler now, which is 0 before its first step."""
        return getattr(self.scheduler(), POSITION, -1)


def unrestored(
    states: Sequence[Mapping[str, Any]], schedulers: Sequence[weakref.ref[Any]], optimizer: Any, site: str
) -> Iterator[Restarting]:
    """Yield the schedulers of an optimizer that have the settings of a saved one, and not its position."""
    saved = [state for state in states if POSITION in state and STEPS in state]
    if len(saved) != 1 or saved[0][POSITION] < FEWEST_STEPS:
        return
    own = [scheduler for reference in schedulers if (scheduler := reference()) is not None]
    own = [scheduler for scheduler in own if getattr(scheduler, "optimizer", None) is optimizer]
    if len(own) == 1 and _is_like(own[0], saved[0]):
        yield Restarting(weakref.ref(own[0]), weakref.ref(optimizer), site, saved[0][POSITION])


def _is_like(scheduler: Any, saved: Mapping[str, Any]) -> bool:
    now = vars(scheduler)
    settings = {name: value for name, value in saved.items() if name != POSITION and not name.startswith("_")}
    return now.get(POSITION) == 0 and all(name in now and now[name] == value for name, value in settings.items())
