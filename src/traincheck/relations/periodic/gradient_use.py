"""Follows each gradient from the backward that computes it to the update that uses it.

Training is a flow: a backward computes a gradient, clipping may scale it, one update uses it as it is then, and it is
cleared. A gradient that leaves this path is lost, in any program:

* it is cleared, or replaced by that of another backward, before an update used it;
* a backward adds to it after it was clipped, so the update uses more than the limit allows, or (if it is clipped
  again) the parts of a sum were clipped and not the sum;
* clipping sees no gradient, and the next update uses some;
* an update uses a gradient that `DistributedDataParallel` has not averaged, because each backward ran under `no_sync`;
* a gradient of a loss that a scaler has scaled is clipped, or updates parameters, before it is unscaled;
* clipping changes a gradient after the update that used it;
* an update uses the gradient of a loss that is NaN or infinite, or the program skips three of them in a row;
* an optimizer steps with a learning rate of zero again and again.

Note [What is meant so]
Gradients of an attack on the inputs are meant to be lost: the model was called on a leaf that requires a gradient, so
its backward is left out. So are gradients that the program takes without an optimizer (`taken`, see
sources/gradients/gradients.py). A scaler that skips an update uses gradients as well. A program may compute gradients
once to look at them (a warm-up, an estimate of importance), so a gradient is lost only if it happens in two cycles from
update to update. A program that sets single gradients to None, and updates the other parameters next, keeps these from
learning on purpose (the last layer of DINO). (What is wrong with whole layers is judged in model_use.py.)

The rules need no good run (builtin_rules.py). So an occasion arises only if they fail, and nothing is learned from it.
They are judged if other rules need gradients.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterator

from traincheck.relations.base import context_of, outcome_of
from traincheck.relations.parts import (
    BACKWARD,
    UPDATE,
    Part,
    calls_of,
    in_order,
    number,
)
from traincheck.vocab.builtin_rules import (
    AFTER_AVERAGING,
    AFTER_UNSCALING,
    CLIPPED_IN_TIME,
    CLIPPED_LAST,
    FINITE_LOSS,
    FIRST,
    FLOW,
    GRAD,
    INFINITE_LOSS,
    LOSS,
    NOT_FINITE,
    SEEN_BY_CLIPPING,
    TO_DESCEND,
    USED_BEFORE_CLEARED,
    WITH_A_RATE,
    sentence_of,
)
from traincheck.vocab.demand import Demand
from traincheck.vocab.events import NO_CALL, Call, Change, Reading, Window
from traincheck.vocab.facts import value_of
from traincheck.vocab.occasion import Occasion, Property, Subject

CLIPPING = ("torch.nn.utils.clip_grad_norm_", "torch.nn.utils.clip_grad_value_")
NO_SYNC = "no_sync"
COLLECTIVES = (
    "torch.distributed.all_reduce",
    "torch.distributed.all_gather",
    "torch.distributed.reduce_scatter_tensor",
)
SCALER, SCALE, UNSCALE = (f"torch.amp.GradScaler.{method}" for method in ("step", "scale", "unscale_"))

MAX_SKIPPED = 3
"""Losses in a row that are not finite, from which it is an error also if no update uses them."""

MAX_VARIABLES = 100_000
"""A program with more makes parameters in a loop; further ones are not followed."""

ENOUGH_NEGATIVE = 2
"""Updates in a row with a negative learning rate that are an error: one step up the loss may be meant."""

_BAD_RATES = {"zero": (WITH_A_RATE, FIRST), "negative": (TO_DESCEND, ENOUGH_NEGATIVE)}
"""The rules about learning rates, each with the updates in a row that break it."""

_FILLED, _USED, _CLIPPED, _ADDED, _SCALED, _LOCAL, _SPENT, _PARTLY = 1, 2, 4, 8, 16, 32, 64, 128
"""The history of a gradient since it was cleared, as flags in one number, because there is one for each parameter."""


class GradientUse(Part):
    """See the module."""

    def __init__(self) -> None:
        self._reported: set[tuple[Property, str]] = set()
        self._bad_rates: dict[str, tuple[str, int]] = {}  # by optimizer: zero or negative, and the updates in a row
        self._begin()

    def _begin(self) -> None:
        self._flags: dict[str, int] = {}
        self._updates = 0
        self._lost_in: dict[str, int] = {}  # by parameter: the number of updates when its gradient was lost
        self._used: set[str] = set()  # those of them that an update has used since
        self._set_to_none: dict[str, int] = {}  # by parameter: the updates when the program took its gradient away
        self._empty_clipping: Call | None = None
        self._scaled_backwards: set[int] = set()  # of this window
        self._averages: list[int] = []  # the positions of collectives of this window that are still to come
        self._unscalings: list[int] = []  # and of calls that unscale gradients
        self._are_scaled = self._are_local = False  # whether some gradient has the flag
        self._is_scaled = False  # the program has scaled a loss since the last backward
        self._useful_clipping: set[int] = set()  # calls of this window that clipped gradients before their update
        self._spent: dict[str, int] = {}  # for gradients that were clipped too late: the call
        self._infinite: dict[int, Reading] = {}  # of this window: losses that are not finite, by backward
        self._unused_loss: Reading | None = None  # the last of them, whose gradients are there
        self._used_loss: Reading | None = None  # the first of them whose gradients an update used
        self._skipped_losses = 0  # such losses since the last update

    def forget(self) -> None:
        self._begin()

    def occasions(self, window: Window) -> Iterator[Occasion]:
        """Yield an occasion for each gradient that leaves its path, once for each parameter."""
        failures: _Failures = {}
        self._note_positions(window)
        self._useful_clipping.clear()
        for positions, change in in_order([(positions, change) for change, positions in window.change_groups]):
            self._follow(window, change, window.variables_at(positions), failures)
        yield from self._judge_clipping(window)
        if self._infinite or self._skipped_losses:
            yield from self._judge_losses(window)
        for (prop, seq), names in failures.items():
            if prop == CLIPPED_IN_TIME and seq in self._useful_clipping:
                continue  # it clipped gradients of a later backward as well
            new = tuple(name for name in names if (prop, name) not in self._reported)
            if new and len(self._reported) < MAX_VARIABLES:
                self._reported.update((prop, name) for name in new)
                yield _occasion(window, prop, seq, new)

    def _note_positions(self, window: Window) -> None:
        """Note which backwards start from a scaled loss, and where gradients are unscaled or averaged."""
        self._scaled_backwards.clear()
        self._unscalings = [call.seq for call in calls_of(window, UNSCALE, SCALER)]
        self._infinite = {
            reading.call: reading
            for reading in window.readings
            if reading.kind == LOSS and reading.attribute == NOT_FINITE
        }
        self._averages = [call.seq for call in calls_of(window, *COLLECTIVES)]  # the program may average by itself
        for call in calls_of(window, SCALE, BACKWARD) if self._is_scaled or window.calls_named.get(SCALE) else ():
            if call.levels[-1] == BACKWARD and self._is_scaled:
                self._scaled_backwards.add(call.seq)
            self._is_scaled = call.levels[-1] == SCALE

    # -- gradients -------------------------------------------------------------------------------------------------

    def _follow(self, window: Window, change: Change, names: list[str] | tuple[str, ...], failures: _Failures) -> None:
        if change.kind != "parameter":
            return
        if self._are_scaled and _passes(self._unscalings, change.seq):
            self._remove_flag(_SCALED)
            self._are_scaled = False
        if self._are_local and _passes(self._averages, change.seq):
            self._remove_flag(_LOCAL)
            self._are_local = False
        call = window.by_seq.get(change.call)
        api = call.levels[-1] if call is not None else ""
        if change.attribute == "data":
            self._follow_data(change, call, names, failures)
        elif call is not None and _is_inside(call, UPDATE, window):
            self._flags.update(dict.fromkeys(names, 0))  # a closure of the update, which uses all of its gradients
            self._used_loss = self._used_loss or self._infinite.get(change.call)
        elif call is not None and _is_inside(call, BACKWARD, window):
            return  # checkpointing computes a part again; the changes around the whole backward count
        elif api == BACKWARD and call is not None:
            if change.call in self._infinite or change.before != "some":
                self._unused_loss = self._infinite.get(change.call)
            if change.changed and change.after == "some" and value_of(call.result, "leaf_input") is not True:
                self._fill(window, change, names, failures)
        elif change.before == "some" and change.after != "some":
            self._clear(change, names, failures)
        elif api in CLIPPING:
            for name in names:
                if change.changed and self._flags.get(name, 0) & _SCALED:
                    failures.setdefault((AFTER_UNSCALING, change.call), []).append(name)
                if change.changed and self._flags.get(name, 0) & _SPENT:
                    self._note_spent(name, change.call, failures)
                elif change.changed:
                    self._useful_clipping.add(change.call)
                flags = self._flags.get(name, 0)
                partly = _PARTLY if flags & _ADDED else 0
                self._flags[name] = flags & ~_ADDED | partly | (_CLIPPED if change.changed else 0)

    def _fill(self, window: Window, change: Change, names: list[str] | tuple[str, ...], failures: _Failures) -> None:
        is_held = value_of(change.context, "held") != "none"
        backward = window.by_seq[change.call]
        is_local = NO_SYNC in str(value_of(backward.context, "within"))
        is_scaled = change.call in self._scaled_backwards
        self._are_local, self._are_scaled = self._are_local or is_local, self._are_scaled or is_scaled
        new = _FILLED | (_SCALED if is_scaled else 0) | (_LOCAL if is_local else 0)
        for name in names:
            flags = self._flags.get(name, 0)
            if change.before != "some":
                if self._set_to_none.pop(name, None) == self._updates:  # and no update followed
                    flags = _FILLED
                if is_held:
                    self._note_loss(name, flags, change, failures)
                flags = 0
            elif flags & _CLIPPED:
                flags |= _ADDED
            if len(self._flags) < MAX_VARIABLES:
                self._flags[name] = (flags & ~(_LOCAL | _SPENT)) | new

    def _remove_flag(self, flag: int) -> None:
        self._flags = {name: flags & ~flag for name, flags in self._flags.items()}

    def _clear(self, change: Change, names: list[str] | tuple[str, ...], failures: _Failures) -> None:
        self._unused_loss = None
        is_lost = value_of(change.context, "held") != "none" and value_of(change.context, "taken") is not True
        for name in names:
            flags = self._flags.get(name, 0)
            if is_lost and change.call == NO_CALL and change.after == "none":
                if flags & _FILLED and not flags & _USED:
                    self._set_to_none[name] = self._updates
            elif is_lost:
                self._note_loss(name, flags, change, failures)
            self._flags[name] = 0

    def _note_loss(self, name: str, flags: int, change: Change, failures: _Failures) -> None:
        """Note a gradient that is gone. It is lost if no update used it, in two cycles in a row or without an update
        between two such cycles."""
        if flags & _FILLED and not flags & _USED:
            last = self._lost_in.get(name)
            if last is not None and (last == self._updates - 1 or (last < self._updates and name not in self._used)):
                failures.setdefault((USED_BEFORE_CLEARED, max(change.call, 0) or change.seq), []).append(name)
            self._lost_in[name] = self._updates
            self._used.discard(name)

    def _follow_data(
        self, change: Change, call: Call | None, names: list[str] | tuple[str, ...], failures: _Failures
    ) -> None:
        is_use = call is not None and call.levels[-1] == UPDATE and value_of(change.context, "held") == "this"
        if not change.changed and not is_use:
            return
        if is_use and self._unused_loss is not None:
            self._used_loss, self._unused_loss = self._used_loss or self._unused_loss, None
        is_spent = is_use and value_of(change.context, "grad") == "some"
        for name in names:
            flags = self._flags.get(name, 0)
            if is_spent and flags & _FILLED:  # a backward was seen to compute it
                flags |= _SPENT
            if is_use and flags & (_ADDED | _PARTLY):
                failures.setdefault((CLIPPED_LAST, change.call), []).append(name)
            if is_use and flags & _SCALED:
                failures.setdefault((AFTER_UNSCALING, change.call), []).append(name)
            if is_use and flags & _LOCAL:
                failures.setdefault((AFTER_AVERAGING, change.call), []).append(name)
            self._flags[name] = (flags | _USED) & ~(_CLIPPED | _ADDED | _PARTLY)
            if name in self._lost_in:
                self._used.add(name)

    def _note_spent(self, name: str, call: int, failures: _Failures) -> None:
        """Note a gradient that was clipped after its update. It counts at the second call."""
        if self._spent.get(name, call) != call:
            failures.setdefault((CLIPPED_IN_TIME, call), []).append(name)
        elif len(self._spent) < MAX_VARIABLES:
            self._spent.setdefault(name, call)

    def _judge_clipping(self, window: Window) -> Iterator[Occasion]:
        for call in calls_of(window, *CLIPPING, UPDATE, SCALER):
            api = call.levels[-1]
            if api in CLIPPING:
                norm = number(value_of(call.result, "norm_before"))
                self._empty_clipping = call if norm == 0 else None
                continue
            if api == SCALER:
                for name, flags in self._flags.items():
                    self._flags[name] = flags | _USED
                continue
            self._updates += 1
            yield from self._judge_rate(call, window)
            clipping, self._empty_clipping = self._empty_clipping, None
            if clipping is None or value_of(call.context, "grads") not in ("some", "mixed"):
                continue
            if (SEEN_BY_CLIPPING, clipping.site) not in self._reported:
                self._reported.add((SEEN_BY_CLIPPING, clipping.site))
                yield _occasion(window, SEEN_BY_CLIPPING, call.seq, (), site=clipping.site)

    def _judge_losses(self, window: Window) -> Iterator[Occasion]:
        """Yield an occasion for the first update that uses the gradients of a loss that is not finite. A program may
        skip such updates, but not `MAX_SKIPPED` in a row."""
        loss, self._used_loss = self._used_loss, None
        note = "" if loss is None else f"the loss is {loss.value}"
        updates = [(call.seq, None) for call in calls_of(window, UPDATE)]
        for _, skipped in sorted([*updates, *self._infinite.items()]) if self._infinite else updates[:1]:
            self._skipped_losses = 0 if skipped is None else self._skipped_losses + 1
            if loss is None and skipped is not None and self._skipped_losses >= MAX_SKIPPED:
                loss, note = skipped, f"the loss is {skipped.value}, and so were {MAX_SKIPPED - 1} before"
        if loss is not None and (FINITE_LOSS, LOSS) not in self._reported:
            self._reported.add((FINITE_LOSS, LOSS))
            context, outcome = context_of((), window.stage), outcome_of(FINITE_LOSS, False)
            yield Occasion(Subject(GRAD, FLOW), context, *outcome, loss.seq, (LOSS,), note=note)

    def _judge_rate(self, call: Call, window: Window) -> Iterator[Occasion]:
        rate = str(value_of(call.context, "lr")) if value_of(call.context, "grads") in ("some", "mixed") else ""
        former, in_a_row = self._bad_rates.pop(call.receiver, ("", 0))
        prop, enough = _BAD_RATES.get(rate, (None, 0))
        if prop is None:
            return
        in_a_row = in_a_row + 1 if rate == former else 1
        self._bad_rates[call.receiver] = rate, in_a_row
        if in_a_row == enough and (prop, call.receiver) not in self._reported:
            self._reported.add((prop, call.receiver))
            yield _occasion(window, prop, call.seq, (), site=call.site)

    @staticmethod
    def speaks_of(subject: Subject) -> bool:
        return subject.grain == FLOW

    @staticmethod
    def needs(subject: Subject, prop: Property) -> Demand:
        return Demand.of_calls(SCALER, SCALE, UNSCALE, *COLLECTIVES) | Demand.of_readings(INFINITE_LOSS)

    @staticmethod
    def describe(subject: Subject, prop: Property) -> str:
        return sentence_of(subject, prop)


def _passes(positions: list[int], seq: int) -> bool:
    """Remove the positions before `seq`; whether there were any."""
    number = bisect.bisect_left(positions, seq)
    del positions[:number]
    return number > 0


def _is_inside(call: Call, api: str, window: Window) -> bool:
    return any(around.levels[-1] == api for around in window.ancestors(call))


_Failures = dict[tuple[Property, int], list[str]]
"""The parameters for which a property failed at a call."""


def _occasion(window: Window, prop: Property, seq: int, names: tuple[str, ...], site: str = "") -> Occasion:
    context = context_of((), window.stage)
    return Occasion(Subject(GRAD, FLOW), context, *outcome_of(prop, False), seq, names, site=site, note=_NOTES[prop])


_NOTES = {
    CLIPPED_IN_TIME: "clipping changed these gradients after an update had used them, and before the next backward",
    TO_DESCEND: f"{ENOUGH_NEGATIVE} updates in a row had a negative learning rate in all groups: they raise the loss",
    WITH_A_RATE: f"{FIRST} updates in a row had a learning rate of zero in all parameter groups",
    USED_BEFORE_CLEARED: "these gradients were cleared or replaced, and no update had used them",
    CLIPPED_LAST: "a backward added to these gradients after they were clipped",
    SEEN_BY_CLIPPING: "clipping saw a norm of zero, and the next update used gradients that are not zero",
    AFTER_AVERAGING: "each backward since they were cleared ran under no_sync, so no rank averaged them",
    AFTER_UNSCALING: "a backward of a scaled loss computed these gradients, and nothing has unscaled them",
}
