"""Absence: what a source that observes nothing takes from rules, and how windows and reports tell of it.

Note [Silence is not absence]
A source that failed, that could not attach or that was switched off tells of nothing. Rules would take that silence for
something that the program does not do. So each window says which sources observed nothing in it (a reading of kind
`source`), and rules that rest on one of them are not judged there. Windows in which that changes are left out, so that
none is observed in part, and relations forget what was before, as they do wherever windows are missing.

The table says which of a demand a source serves: sources and checks read it here, as a recording is checked where torch
is not installed. It may say more than is so, never less; `traincheck.testing.availability` proves that.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from traincheck.vocab.demand import ARGUMENTS, READINGS, TENSORS, VALUES, Demand
from traincheck.vocab.events import FAILED, MISSING, SWITCHED_OFF

CORE = ("regions", "optimizers", "modules", "autograd", "lifecycle", "loaders", "compiled")
"""They tell steps, stages, names, gradients and the contexts of calls, on which all others rest: without one of them
nothing is judged, so they cannot be switched off."""

OTHERS = (
    "module_state",
    "buffers",
    "clipping",
    "checkpoints",
    "collectives",
    "functions",
    "run",
    "project",
)
"""The sources that can be switched off."""

WITHOUT_COLLECTIVES = frozenset((*CORE, "collectives"))
"""Without one of these it is not known how the windows of several ranks lie side by side."""

_CLIPPING = ("torch.nn.utils.clip_grad_norm_", "torch.nn.utils.clip_grad_value_")
_DISTRIBUTED = "torch.distributed."
_METHODS = ("forward", "step", "zero_grad", "train", "eval", "__init__", "__iter__", "__next__")
_STATES = ("save", "save_file", "state_dict", "load_state_dict")
_NO_FUNCTIONS = ("torch.utils.data.", _DISTRIBUTED, "torch.optim.", "torch.autograd.", "torch.amp.")
_READ = {
    "module_state": (
        "module.training",
        "module.parameters",
        "module.class",
        "module.input",
        "module.attributes",
        "module.own_train",
        "buffer.made",
    ),
    "buffers": ("buffer.used_data",),
    "run": ("run.",),
}
"""Readings that a source takes; a name that ends with a dot stands for all that begin with it."""


def serves(source: str, demand: Demand) -> bool:
    """Whether `demand` asks anything of `source`; of those in `CORE`, and of one that is not known here, it does."""
    if source not in OTHERS or demand.everything:
        return True
    read = {name for name, what in demand.states if what == READINGS}
    if any(_takes(one, name) for name in read for one in _READ.get(source, ())):
        return True
    asked = {*demand.apis, *(api for api, what in demand.states if what != READINGS)}
    return any(_tells(source, api) for api in asked)


def _takes(one: str, name: str) -> bool:
    return name.startswith(one) if one.endswith(".") else name == one


def _tells(source: str, api: str) -> bool:
    """Whether calls of `api` may be told by `source`; a name tells which source it is of only so far."""
    method = api.rsplit(".", 1)[-1]
    if source == "clipping":
        return api in _CLIPPING
    if source == "checkpoints":
        return method in _STATES
    if source == "collectives":
        return api.startswith(_DISTRIBUTED)
    if source == "functions":
        return api.startswith("torch.") and method not in _METHODS and not api.startswith(_NO_FUNCTIONS)
    if source == "project":
        return api in _CLIPPING or (not api.startswith("torch.") and method != "forward")
    return False


def touched(off: Iterable[str], demand: Demand) -> str:
    """The first of the sources `off` that rules with this demand rest on, empty where there is none."""
    for source in sorted(off):
        if source == SUMMARIES:
            if demand.everything or any(what in (ARGUMENTS, TENSORS, *VALUES) for _, what in demand.states):
                return source
        elif serves(source, demand):
            return source
    return ""


SUMMARIES = "summaries"
"""What tells of the arguments and results of calls, for all sources; it can fail as a source can."""


@dataclass(frozen=True, slots=True)
class Absence:
    """A source that observed nothing from step `since` on, and `why`; `until` is the step in which it did again."""

    source: str
    why: str
    since: int
    until: int | None = None

    def __str__(self) -> str:
        what = {SWITCHED_OFF: "was switched off", FAILED: "failed", MISSING: "could not observe"}.get(
            self.why, self.why
        )
        since = f" at step {self.since}" if self.since else ""
        again = f", and observed again from step {self.until} on" if self.until is not None else ""
        return f"source {self.source} {what}{since}: what rests on it was not judged{' then' if again else ''}{again}"
