"""The order of the calls that drive training: what follows what in good runs, and nothing else.

A pair of calls that follow each other is a line such as `backward, then Optimizer.step`. A program has few of them, and
another seed, length or batch size gives the same ones, unless it leaves a rare branch. A missing call shows as a new
pair, too: without the update, `zero_grad` follows `backward`. Pairs do not count, so each update also says whether it
follows one backward, several or none: an exact number would change with a ragged end of gradient accumulation.

Calls inside another one do not count: what a gradient scaler, a closure or a library does between is its own affair.
Which optimizer and which model are not part of a line: people tune the class of an optimizer, wrap a model for several
ranks, and train several models in turn.

Note [The end of a pass]
Where a pass over the data ends depends on the batch size: in the middle of an accumulation, or right after an update.
So nothing is said of the last call before a pass, or before a change to evaluation or training, nor of how many
backwards the last update follows.
"""

from __future__ import annotations

from collections.abc import Iterator

from traincheck.relations.base import short
from traincheck.relations.parts import BACKWARD, FORWARD, ITER, SCHEDULE, UPDATE, Part
from traincheck.vocab.demand import Demand
from traincheck.vocab.events import COMPILED, REGION, Call, Window
from traincheck.vocab.facts import value_of
from traincheck.vocab.occasion import Occasion, Property, Subject
from traincheck.vocab.properties import FOLLOWS

GRAIN = "order of calls"
START = "the start"
THEN = ", then "

DRIVING = (
    UPDATE,
    BACKWARD,
    SCHEDULE,
    "torch.optim.Optimizer.__init__",
    "torch.optim.Optimizer.load_state_dict",
    "torch.optim.Optimizer.zero_grad",
    "torch.nn.Module.zero_grad",
    "torch.nn.Module.train",
    "torch.nn.Module.eval",
    "torch.nn.Module.load_state_dict",
    "torch.nn.utils.clip_grad_norm_",
    "torch.nn.utils.clip_grad_value_",
    "torch.amp.GradScaler.unscale_",
    "torch.amp.GradScaler.step",
    "torch.amp.GradScaler.update",
    ITER,
)
"""The calls that drive training, by their most general name."""

BOUNDARIES = ("torch.nn.Module.train", "torch.nn.Module.eval", ITER)
"""Of these, the calls that may come after the end of a pass."""

ORDER = Demand.of_calls(*DRIVING, FORWARD)
"""The demand for all of them. Without one of these calls, others would seem to follow each other."""

SUBJECT = Subject(UPDATE, GRAIN)

_COUNTS = ("no backward", "one backward", "several backwards")


class CallOrder(Part):
    """Yields an occasion for each pair of calls that follow each other, and for each update, once in a window."""

    def __init__(self) -> None:
        self._last: dict[int, str] = {}
        self._backwards: dict[int, int] = {}
        self._updates: dict[int, str] = {}
        self._from_start = True

    def occasions(self, window: Window) -> Iterator[Occasion]:
        first_calls: dict[str, Call] = {}
        for call, name in driving_calls(window):
            if not name:
                self._lose_track(call.thread)
            for line in self._lines(call, name) if name else ():
                first_calls.setdefault(line, call)
        for line, call in first_calls.items():
            held = frozenset((Property(FOLLOWS, GRAIN, line),))
            yield Occasion(SUBJECT, (), held, frozenset(), call.seq, site=call.site)

    def _lines(self, call: Call, name: str) -> Iterator[str]:
        """What `call` shows together with the call before it, see Note [The end of a pass]."""
        thread, api = call.thread, call.levels[-1]
        last = self._last.get(thread, START if self._from_start else "")
        if api in BOUNDARIES:
            self._updates.pop(thread, None)
        else:
            if api in (FORWARD, BACKWARD) and self._updates.get(thread):
                yield self._updates.pop(thread)
            if last:
                yield f"{last}{THEN}{name}"
        self._last[thread] = name
        if api == BACKWARD:
            self._backwards[thread] = self._backwards.get(thread, 0) + 1
        elif api == UPDATE:
            backwards = min(self._backwards.pop(thread, 0), len(_COUNTS) - 1)
            self._updates[thread] = f"{name} after {_COUNTS[backwards]}" if last else ""

    def _lose_track(self, thread: int) -> None:
        """Compiled code may have made any of these calls."""
        self._last[thread] = ""
        self._backwards.pop(thread, None)
        self._updates.pop(thread, None)

    def forget(self) -> None:
        """The calls of dropped windows are unknown."""
        self._last.clear()
        self._backwards.clear()
        self._updates.clear()
        self._from_start = False

    @staticmethod
    def speaks_of(subject: Subject) -> bool:
        return subject.grain == GRAIN

    @staticmethod
    def needs(subject: Subject, prop: Property) -> Demand:
        return ORDER

    @staticmethod
    def describe(subject: Subject, prop: Property) -> str:
        return "the calls that drive training follow each other as in good runs"


def driving_calls(window: Window) -> Iterator[tuple[Call, str]]:
    """The calls that drive training and are not inside another one, with their names, and compiled code without one."""
    inside: dict[int, int] = {}  # the end of the call that is under way, by thread
    for call in window.calls:
        if call.seq < inside.get(call.thread, -1):
            continue
        if call.kind == REGION and call.name == COMPILED:
            yield call, ""
        name = _name_of(call)
        if name:
            inside[call.thread] = call.end
            yield call, name


def _name_of(call: Call) -> str:
    """The name of a call that drives training: of `DRIVING`, or the forward of a whole model in training mode. Empty
    for other calls."""
    api = call.levels[-1]
    if api in DRIVING:
        return short(api)
    if api != FORWARD or not all(value_of(call.context, fact) for fact in ("outermost", "parametric", "training")):
        return ""
    return "forward" if value_of(call.context, "grad_mode") == "on" else "forward without gradients"
