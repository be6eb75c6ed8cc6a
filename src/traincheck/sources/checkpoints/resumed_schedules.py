"""Finds schedulers that begin again although the checkpoint of their run holds their progress.

The program restores the state of an optimizer from a file that it has just written, so it resumes. The file also holds
the state of a scheduler. A scheduler of this optimizer that existed when the file was loaded has the same settings, and
no scheduler has loaded the state. If its first step then leads to position 1, the schedule has restarted.

A program may restore the position without `load_state_dict`, by an argument, an attribute or further steps. Then the
position is not 0 before the first update, or it jumps.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

POSITION, STEPS = "last_epoch", "_step_count"
"""Attributes of the schedulers of torch, and entries of their states."""

FEWEST_STEPS = 2
"""Position in a file from which a restart is judged: an absolute position of 1 may be right after a smaller one."""


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
