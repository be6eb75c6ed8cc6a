"""Collects the states of parameters, and some numbers, in the steps around a finding."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from traincheck.vocab.events import LIVE, RESULT, TRAIN, Call, TensorSummary, Window
from traincheck.vocab.facts import value_of
from traincheck.vocab.finding_details import (
    EMPTY,
    FAINT,
    FULL,
    UNKNOWN,
    WRONG,
    Aspect,
    Curve,
    History,
    Row,
    State,
    Strip,
)

MAX_ROWS = 12
"""Rows of a history: more would not be looked at. Things that do not differ share one."""

LEAST_POINTS = 3
"""Points that make a curve."""

MAX_CURVES = 3

_UPDATE, _BACKWARD = "torch.optim.Optimizer.step", "torch.autograd.backward"
_FORWARD, _CLIP, _LOSS = "torch.nn.Module.forward", "clip_grad_norm_", "torch.nn.modules.loss._Loss.forward"

_LEVELS = {"none": 0, "unused": 0, "zero": 1, "some": 2}
"""The states of a gradient, as facts and changes tell them."""

BEGAN, USED, UPDATED = (
    Aspect(
        "gradient left when the backward began",
        (State("none", EMPTY), State("zero", FAINT), State("left over", WRONG)),
    ),
    Aspect(
        "gradient that the update used",
        (State("none", EMPTY), State("zero", FAINT), State("some", FULL)),
    ),
    Aspect("value after the update", (State("as before", EMPTY), State("changed", FULL))),
)
ASPECTS = (BEGAN, USED, UPDATED)


class Surroundings:
    """The states and numbers in the windows of the steps around a finding. Add the windows in order."""

    def __init__(self, mark: int, concerned: Collection[str]) -> None:
        self._mark = mark
        self._concerned = frozenset(concerned)
        self._steps: list[int] = []
        self._states: dict[str, dict[tuple[int, int], int]] = {}
        self._numbers: dict[str, dict[int, float]] = {}
        self._rates: dict[str, float] = {}

    def add(self, window: Window) -> None:
        """Add a window; only windows of training steps count."""
        if window.stage != TRAIN or window.step < 1:
            return
        self._steps.append(window.step)
        for variable, aspect, state in _states(window):
            self._states.setdefault(variable, {})[aspect, window.step] = state
        for title, number in _norms(window):
            self._numbers.setdefault(title, {})[window.step] = number
        for reading in window.readings:
            is_rate = reading.kind == "hyperparameter" and reading.attribute == "lr" and reading.role == LIVE
            if is_rate and isinstance(reading.value, (int, float)):
                self._rates[reading.variable] = float(reading.value)
        for variable, rate in self._rates.items():  # recorded when they change
            self._numbers.setdefault(f"Learning rate of {variable}", {})[window.step] = rate

    def history(self) -> History | None:
        """The states of gradients and values in each step, with the parameters of the finding first.

        None if the recording has no parameters.
        """
        states = self._states
        if not states:
            return None
        steps = tuple(range(min(self._steps), max(self._steps) + 1))
        recorded = {aspect for by_step in states.values() for aspect, _ in by_step}
        shown = [index for index in range(len(ASPECTS)) if index in recorded]
        strips = {
            name: tuple(Strip(tuple(by_step.get((index, step), UNKNOWN) for step in steps)) for index in shown)
            for name, by_step in states.items()
        }
        rows = rows_of(strips, self._concerned)
        aspects = tuple(ASPECTS[index] for index in shown)
        return History("Parameters", steps, self._mark, aspects, rows[:MAX_ROWS], max(len(rows) - MAX_ROWS, 0))

    def curves(self) -> tuple[Curve, ...]:
        """Numbers that enough steps have: the loss, norms, learning rates that change."""
        first, last = min(self._steps, default=0), max(self._steps, default=0)
        curves = (
            Curve(title, first, last, self._mark, tuple(sorted(by_step.items())))
            for title, by_step in self._numbers.items()
        )
        return tuple(curve for curve in curves if len(curve.points) >= LEAST_POINTS and _is_news(curve))[:MAX_CURVES]


def rows_of(strips: dict[str, tuple[Strip, ...]], concerned: Collection[str]) -> tuple[Row, ...]:
    """One row for all names with the same strips; rows with a `concerned` name come first."""
    names_by_strips: dict[tuple[Strip, ...], list[str]] = {}
    for name in sorted(strips, key=lambda name: name not in concerned):  # stable sort
        names_by_strips.setdefault(strips[name], []).append(name)
    return tuple(Row(tuple(names), strips_of_row) for strips_of_row, names in names_by_strips.items())


def _states(window: Window) -> Iterator[tuple[str, int, int]]:
    """The variable, the number of the aspect and the number of the state, for each state in a window."""
    began: set[str] = set()
    held: set[str] = set()
    for call in window.calls:
        if _BACKWARD in call.levels:
            for change in window.changes_of.get(call.seq, ()):
                if change.kind == "parameter" and change.attribute == "grad" and change.variable not in began:
                    began.add(change.variable)  # of several backwards the first finds what an earlier step left
                    yield change.variable, 0, _LEVELS.get(change.before, UNKNOWN)
        elif _UPDATE in call.levels:
            for change in window.changes_of.get(call.seq, ()):
                if change.kind != "parameter":
                    continue
                by_this = value_of(change.context, "held") in ("this", None)
                if change.attribute == "data":
                    if change.variable in held and not by_this:
                        continue  # another optimizer steps, and this is none of its own
                    held |= {change.variable} if by_this else set()
                    gradient = value_of(change.context, "grad")
                    if gradient is not None:
                        yield change.variable, 1, _LEVELS.get(str(gradient), UNKNOWN)
                    yield change.variable, 2, int(change.changed)
                elif by_this and value_of(change.context, "grad") is None:
                    yield change.variable, 1, _LEVELS.get(change.before, UNKNOWN)


def _is_news(curve: Curve) -> bool:
    """Whether a curve is worth showing; a constant learning rate is not."""
    return not curve.title.startswith("Learning rate") or len({value for _, value in curve.points}) > 1


def _norms(window: Window) -> Iterator[tuple[str, float]]:
    """The norms of this step, the last of each kind. The norm of a single element is its absolute value."""
    loss: TensorSummary | None = None
    output: TensorSummary | None = None
    clipped: TensorSummary | None = None
    for call in window.calls:
        if _BACKWARD in call.levels:
            loss = _first(call, "tensors") or loss
        elif _LOSS in call.levels:
            loss = _first(call, RESULT) or loss
        elif call.name.endswith(_CLIP):
            clipped = _first(call, RESULT) or clipped
        elif _FORWARD in call.levels and value_of(call.context, "parametric") and value_of(call.context, "outermost"):
            output = _first(call, RESULT) or output
    if loss is not None and not any(size > 1 for size in loss.shape):
        yield "Size of the loss", _norm(loss)
    if clipped is not None:
        yield "Norm of the gradients before clipping", _norm(clipped)
    if output is not None:
        yield "Norm of what the model returns", _norm(output)


def _first(call: Call, role: str) -> TensorSummary | None:
    """The first tensor of a role whose norm was read."""
    return next(
        (
            tensor
            for tensor in call.tensors
            if tensor.role.partition("[")[0] == role and value_of(tensor.facts, "norm") is not None
        ),
        None,
    )


def _norm(tensor: TensorSummary) -> float:
    norm = value_of(tensor.facts, "norm")
    return float(norm) if isinstance(norm, (int, float)) else float("nan")
