"""Events: calls, changes of variables around a call, and readings of single values.

A call has a start and an end; a change is the state of one variable around a call; a reading is one value at one time.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from operator import attrgetter
from typing import NamedTuple

from traincheck.vocab.facts import Facts, FactValue

NO_CALL = -1

SETUP, TRAIN, EVAL, END = "setup", "train", "eval", "end"
STAGES = (SETUP, TRAIN, EVAL, END)

LIFECYCLE, REGION, MODULE, FUNCTION, PROJECT = "lifecycle", "region", "module", "function", "project"
CALL_KINDS = (LIFECYCLE, REGION, MODULE, FUNCTION, PROJECT)
"""lifecycle: a call that drives training (step, backward ...); region: a block under a context manager (autocast,
no_grad), which changes nothing by itself; module: a module's forward; function: a public torch function; project: a
function of the user's code."""

COMPILED = "torch.compile"
"""The name of a region around compiled code: sources observe nothing inside."""

TOUCHES = "touches"
"""True in the result of such a region if it changed gradients, parameters or learning rates."""


class TensorSummary(NamedTuple):
    """A tensor that went into a call or came out of it.

    `role` is the name of its parameter (`input`, `weight`; `tensors[1]` for the second of a sequence) or `result`
    (`result[1]` of a tuple). `dtype` is written as torch does, without `torch.`. Tensors over the same memory have the
    same `storage`: the name of the variable if it is one, else `~n` for the n-th other storage of this window; empty if
    it was not demanded. `fingerprint` and `facts` (finite, rows_sum_to_one, norm ...) describe values, and are there
    only if sources read these.
    """

    role: str
    dtype: str
    shape: tuple[int, ...]
    requires_grad: bool = False
    storage: str = ""
    fingerprint: int | None = None
    facts: Facts = ()


RESULT = "result"


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
    tensors: tuple[TensorSummary, ...] = ()

    @property
    def name(self) -> str:
        return self.levels[0]


class Change(NamedTuple):
    """The state of one attribute of one variable before and after a call.

    `kind` is parameter, buffer or optimizer_state; `attribute` is data or grad; `before` and `after` are none, zero or
    some; `changed` says whether the value itself differs. `owner` names the optimizer that holds the variable. `call`
    is the call around the change, or `NO_CALL` if the change occurred between two observed calls. `context` holds the
    facts of the variable. `fingerprint` is xxh3-64 over dtype, shape and bytes after the call, if it was taken.
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


_SEQ = attrgetter("seq")
_CALL, _CONTEXT = (Change._fields.index(name) for name in ("call", "context"))
_LIKE = slice(Change._fields.index("kind"), _CONTEXT)  # from kind to owner

REPLACED = " (replaced)"
"""Suffix for the name of a parameter whose place in its module another one has taken."""

LIVE, SAVED, LOADED, ANNOUNCED, PARTIAL = "live", "saved", "loaded", "announced", "partial"
UNSETTLED = "unsettled"
ROLES = (LIVE, SAVED, LOADED, ANNOUNCED, PARTIAL, UNSETTLED)


class Reading(NamedTuple):
    """The value of one attribute of one object at one time, such as the weight decay of a parameter group.

    `kind` is the kind of object: parameter, buffer, optimizer_state, hyperparameter (of a parameter group), module,
    scheduler, loader, worker (of a data loader), random (a random state), run or source. `value` is a fingerprint for
    `data`. `call` is the call of the reading, or `NO_CALL`. Between calls, a source may omit a value that equals the
    last reading of the same role.

    `role` separates the object that a program holds (live) from the copy in a saved or loaded file, from a number that
    was announced beforehand (the length of a loader, the horizon of a scheduler), from a description of what was not
    seen from its beginning to its end (partial), and from one of a branch that the program took and left again
    (unsettled).
    """

    seq: int
    call: int
    variable: str
    kind: str
    attribute: str
    value: FactValue
    role: str = LIVE
    context: Facts = ()


_POSITION = re.compile(r"\.\d+(?=\.|$)")


@lru_cache(10_000)
def without_positions(name: str) -> str:
    """The name of a module or parameter with `*` for positions in lists, so that modules of one kind share it."""
    return _POSITION.sub(".*", name)


SOURCE, OFF = "source", "off"
"""Kind and attribute of a reading that marks a source (the variable) which observed nothing in this window. The value
is the reason, see vocab/availability.py."""
SWITCHED_OFF, FAILED, MISSING = "switched off", "failed", "could not observe"

DIGEST, OF_VALUES = "digest", "values"
"""Kind and attribute of a reading in which a rank sends one number for the values of several variables."""


class SharedValues(NamedTuple):
    """The values that one window takes from the window of another rank, if ranks are compared by digests.

    `rank` is the one whose window holds the values (its own, if it holds them itself). `sharded` says that values which
    differ from rank to rank (shards) were left out of both.
    """

    rank: int
    sharded: bool = False


class ChangeGroup(NamedTuple):
    """Changes that differ in the variable (and its value) only: statements about `first` are true of all of them.

    `positions` are theirs among the changes of the window.
    """

    first: Change
    positions: list[int]


@dataclass(frozen=True)
class Window:
    """The events of one training step of one process; also those of the set-up, of an evaluation phase, and of the end.

    `index` counts the windows of the process without gaps (a gap means that windows were dropped). `step` is the
    training step that a person would name: 0 before the first, then 1, 2, ...; an evaluation phase has the step that it
    follows. Calls, changes and readings are sorted by `seq`. `shared` is set only if ranks are compared.
    """

    index: int
    step: int
    stage: str
    calls: tuple[Call, ...] = ()
    changes: tuple[Change, ...] = ()
    rank: int = 0
    process: int = 0
    readings: tuple[Reading, ...] = ()
    shared: SharedValues | None = None

    @property
    def values_of(self) -> int:
        """The rank whose window holds the values of this one."""
        return self.rank if self.shared is None else self.shared.rank

    def sharing(self, values: SharedValues, readings: tuple[Reading, ...]) -> Window:
        """This window with other readings, and its values in another one.

        (`dataclasses.replace` takes seven times as long, and a job may have a thousand ranks.)
        """
        fields = self.__dict__.copy()
        fields["shared"], fields["readings"] = values, readings
        fields.pop("readings_of", None)
        window = object.__new__(Window)
        object.__setattr__(window, "__dict__", fields)
        return window

    @cached_property
    def off(self) -> dict[str, str]:
        """The sources that observed nothing in this window, with the reason."""
        return {reading.variable: str(reading.value) for reading in self.readings if reading.kind == SOURCE}

    @cached_property
    def by_seq(self) -> dict[int, Call]:
        """The calls of this window by `seq`."""
        return {call.seq: call for call in self.calls}

    @cached_property
    def calls_like(self) -> dict[tuple[str, tuple[str, ...]], list[Call]]:
        """The calls of this window that ended, by kind and levels. Many calls share few APIs."""
        calls: defaultdict[tuple[str, tuple[str, ...]], list[Call]] = defaultdict(list)
        for call in self.calls:
            if call.end >= 0:
                calls[call.kind, call.levels].append(call)
        return dict(calls)

    @cached_property
    def calls_named(self) -> dict[str, list[Call]]:
        """The same by their most general name, in order."""
        calls: dict[str, list[Call]] = {}
        for (_, levels), same_calls in self.calls_like.items():
            others = calls.get(levels[-1])
            calls[levels[-1]] = same_calls if others is None else sorted(others + same_calls, key=_SEQ)
        return calls

    @cached_property
    def change_groups(self) -> list[ChangeGroup]:
        """The changes of this window in groups, in the order of the first change of each group.

        (Equal contexts are mostly one object, and hashing them would take longer than everything else.)
        """
        changes = self.changes
        groups: defaultdict[object, list[int]] = defaultdict(list)
        positions: list[int] = []
        last: Change | None = None
        last_like: object = None
        for position, change in enumerate(changes):
            like, context = change[_LIKE], change[_CONTEXT]
            # Changes of one group mostly follow each other.
            if last is None or context is not last[_CONTEXT] or change[_CALL] != last[_CALL] or like != last_like:
                positions = groups[change[_CALL], like, id(context)]
                last, last_like = change, like
            positions.append(position)
        return [ChangeGroup(changes[positions[0]], positions) for positions in groups.values()]

    def variables_at(self, positions: Iterable[int]) -> tuple[str, ...]:
        """The variables of the changes at these positions."""
        changes = self.changes
        return tuple([changes[position].variable for position in positions])

    @cached_property
    def changes_of(self) -> dict[int, list[Change]]:
        """The changes of this window by the call they were seen around."""
        changes: dict[int, list[Change]] = {}
        for change in self.changes:
            changes.setdefault(change.call, []).append(change)
        return changes

    @cached_property
    def readings_of(self) -> dict[int, list[Reading]]:
        """The readings of this window by the call they were taken in."""
        readings: dict[int, list[Reading]] = {}
        for reading in self.readings:
            readings.setdefault(reading.call, []).append(reading)
        return readings

    @cached_property
    def hidden(self) -> dict[int, list[Call]]:
        """The calls with an unobserved inside, and the compiled regions in each, at any depth."""
        regions: dict[int, list[Call]] = {}
        for call in self.calls:
            if call.kind == REGION and call.name == COMPILED:
                for around in (call, *self.ancestors(call)):
                    regions.setdefault(around.seq, []).append(call)
        return regions

    def ancestors(self, call: Call) -> list[Call]:
        """The observed calls around `call` in this window, innermost first."""
        calls = []
        parent = self.by_seq.get(call.parent)
        while parent is not None:
            calls.append(parent)
            parent = self.by_seq.get(parent.parent)
        return calls
