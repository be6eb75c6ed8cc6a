"""Events: what a source saw. A call has a start and an end; a change is the state of one variable around a call."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from traincheck.vocab.facts import Facts

NO_CALL = -1

SETUP, TRAIN, EVAL, END = "setup", "train", "eval", "end"
STAGES = (SETUP, TRAIN, EVAL, END)

LIFECYCLE, REGION, MODULE, FUNCTION, PROJECT = "lifecycle", "region", "module", "function", "project"
CALL_KINDS = (LIFECYCLE, REGION, MODULE, FUNCTION, PROJECT)
"""lifecycle: a call that drives training (step, backward ...); region: a block under a context manager (autocast,
no_grad), which changes nothing by itself; module: a module's forward; function: a public torch function; project: a
function of the user's own code."""


class Call(NamedTuple):
    """One call of an API. (A named tuple: thousands are made in a training step, and it is built fastest.)

    `seq` and `end` are the positions of its start and end among the events of its process (`end` is -1 when the call
    raised or was still open when the window closed); `parent` is the `seq` of the enclosing observed call. `levels`
    are the names of the same method along the classes that the receiver inherits it from, most specific first:
    `("torch.optim.Adam.step", "torch.optim.Optimizer.step")`; `levels[0]` is the call's own name.
    """

    seq: int
    end: int
    parent: int
    kind: str
    levels: tuple[str, ...]
    receiver: str = ""
    site: str = ""
    context: Facts = ()
    args: Facts = ()
    result: Facts = ()
    thread: int = 0

    @property
    def name(self) -> str:
        return self.levels[0]


class Change(NamedTuple):
    """What one attribute of one variable was before and after a call.

    `kind` is parameter, buffer or optimizer_state; `attribute` is data or grad; `before` and `after` are none, zero or
    some; `changed` says whether the value itself differs. `owner` names the optimizer that holds the variable.
    `call` is the call it was seen around, or `NO_CALL` when it came about between two observed calls. `context` holds
    the facts of the variable. `fingerprint` is xxh3-64 over dtype, shape and bytes after the call, where it was taken.
    """

    seq: int
    call: int
    variable: str
    kind: str
    attribute: str
    before: str
    after: str
    changed: bool
    owner: str = ""
    context: Facts = ()
    fingerprint: int | None = None


@dataclass(frozen=True)
class Window:
    """The events of one training step of one process; also the set-up before the first, an evaluation phase, the end.

    `index` counts the windows of the process without gaps (a gap means that windows were dropped). `step` is the
    training step that a person would name: 0 before the first, then 1, 2, ...; an evaluation phase carries the step
    that it follows. Calls and changes are sorted by `seq`.
    """

    index: int
    step: int
    stage: str
    calls: tuple[Call, ...] = ()
    changes: tuple[Change, ...] = ()
    rank: int = 0
    process: int = 0

    @cached_property
    def by_seq(self) -> dict[int, Call]:
        """The calls of this window by `seq`."""
        return {call.seq: call for call in self.calls}

    @cached_property
    def changes_of(self) -> dict[int, list[Change]]:
        """The changes of this window by the call they were seen around."""
        found: dict[int, list[Change]] = {}
        for change in self.changes:
            found.setdefault(change.call, []).append(change)
        return found

    def ancestors(self, call: Call) -> list[Call]:
        """The observed calls around `call` in this window, innermost first."""
        found = []
        parent = self.by_seq.get(call.parent)
        while parent is not None:
            found.append(parent)
            parent = self.by_seq.get(parent.parent)
        return found
