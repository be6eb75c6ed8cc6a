"""The order of the calls that drive training: what follows what in good runs, and nothing else.

A pair of calls that follow each other is a line such as `backward, then Optimizer.step`. A program has few of them, and
another seed, length or batch size gives the same ones, unless it leaves a rare branch. A missing call shows as a new
pair, too: without the update, `zero_grad` follows `backward`. Pairs do not count, so each update also says whether it
follows one backward, several or none: an exact number would change with a ragged end of gradient accumulation.

Calls inside another one do not count: what a gradient scaler, a closure or a library does between is its own affair.
The class of an optimizer is not part of a line, because people tune it. Models are numbered in the order of their first
forward, because a wrapper for several ranks changes their names.
"""

from __future__ import annotations

from collections.abc import Iterator

from traincheck.relations.base import short
from traincheck.relations.parts import BACKWARD, FORWARD, SCHEDULE, UPDATE
from traincheck.vocab.demand import Demand
from traincheck.vocab.events import Call, Window
from traincheck.vocab.facts import value_of
from traincheck.vocab.occasion import Occasion, Property, Subject
from traincheck.vocab.properties import FOLLOWS

GRAIN = "order of calls"
START = "the start"

DRIVING = (
    UPDATE,
    BACKWARD,
    SCHEDULE,
    "torch.optim.Optimizer.__init__",
    "torch.optim.Optimizer.zero_grad",
    "torch.nn.Module.zero_grad",
    "torch.nn.Module.train",
    "torch.nn.Module.eval",
    "torch.nn.utils.clip_grad_norm_",
    "torch.nn.utils.clip_grad_value_",
    "torch.amp.GradScaler.unscale_",
    "torch.amp.GradScaler.step",
    "torch.amp.GradScaler.update",
    "torch.utils.data.DataLoader.__iter__",
)
"""The calls that drive training, by their most general name."""

ORDER = Demand.of_calls(*DRIVING, FORWARD)
"""The demand for all of them. Without one of these calls, others would seem to follow each other."""

SUBJECT = Subject(UPDATE, GRAIN)

MAX_MODELS = 8
"""A program with more models builds new ones all the time."""

_COUNTS = ("no backward", "one backward", "several backwards")


class CallOrder:
    """Yields an occasion for each pair of calls that follow each other, and for each update, once in a window."""

    def __init__(self) -> None:
        self._last: dict[int, str] = {}
        self._backwards: dict[int, int] = {}
        self._models: dict[str, int] = {}
        self._from_start = True

    def occasions(self, window: Window) -> Iterator[Occasion]:
        pairs: dict[str, Call] = {}
        inside: dict[int, int] = {}  # the end of the call that is under way, by thread
        for call in window.calls:
            name = self._name(call)
            if not name or call.seq < inside.get(call.thread, -1):
                continue
            inside[call.thread] = call.end
            last = self._last.get(call.thread, START if self._from_start else "")
            if last:
                pairs.setdefault(f"{last}, then {name}", call)
            self._last[call.thread] = name
            if call.levels[-1] == BACKWARD:
                self._backwards[call.thread] = self._backwards.get(call.thread, 0) + 1
            elif call.levels[-1] == UPDATE and (last or self._backwards):
                backwards = min(self._backwards.pop(call.thread, 0), len(_COUNTS) - 1)
                pairs.setdefault(f"{name} after {_COUNTS[backwards]}", call)
        for pair, call in pairs.items():
            held = frozenset((Property(FOLLOWS, GRAIN, pair),))
            yield Occasion(SUBJECT, (), held, frozenset(), call.seq, site=call.site)

    def _name(self, call: Call) -> str:
        """The name of a call that drives training: of `DRIVING`, or the forward of a whole model in training mode.
        Empty for other calls."""
        api = call.levels[-1]
        if api in DRIVING:
            return short(api)
        if api != FORWARD or not all(value_of(call.context, fact) for fact in ("outermost", "parametric", "training")):
            return ""
        number = self._models.setdefault(call.receiver, len(self._models) + 1)
        which = f"model {number}" if number <= MAX_MODELS else "a further model"
        gradients = "" if value_of(call.context, "grad_mode") == "on" else " without gradients"
        return f"forward of {which}{gradients}"

    def forget(self) -> None:
        """The calls of dropped windows are unknown."""
        self._last.clear()
        self._backwards.clear()
        self._from_start = False

    @staticmethod
    def speaks_of(subject: Subject) -> bool:
        return subject.grain == GRAIN

    @staticmethod
    def needs(subject: Subject, prop: Property) -> Demand:
        return ORDER

    @staticmethod
    def is_optional_practice(prop: Property) -> bool:
        return False

    @staticmethod
    def describe(subject: Subject, prop: Property) -> str:
        return "the calls that drive training follow each other as in good runs"
