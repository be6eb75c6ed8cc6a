"""Arguments that follow the training mode of the module around the call, as dropout does.

Note [Arguments that follow the mode]
Most arguments that never vary are the author's choice, and so are most that follow the stage of the run or the gradient
mode. The mode of the enclosing module shows what an argument has to do with training. A flag that always equals the
mode is meant to. A number that is not zero in training, and zero in the evaluation of the same module, controls
something that evaluation switches off. (It may be zero in training as well.)
"""

from __future__ import annotations

from collections.abc import Iterator

from traincheck.relations.base import ended, short
from traincheck.relations.parts import FORWARD
from traincheck.vocab.demand import ARGUMENTS, Demand
from traincheck.vocab.events import MODULE, Call, Window
from traincheck.vocab.facts import FactValue, value_of
from traincheck.vocab.occasion import Occasion, Property, Subject
from traincheck.vocab.properties import ARGUMENT_AGREES

OFF = "zero in evaluation"
TRAINING = "training"


class ModeArguments:
    """Follows the windows of one process. Keeps which numbers were not zero in training, by call and module."""

    grain = "switch"

    def __init__(self) -> None:
        self._on: set[tuple[str, str, str]] = set()

    def occasions(self, window: Window) -> Iterator[Occasion]:
        """Yield one occasion for each call in a module with a flag or a number that can be judged.

        The context is empty, because nothing but the mode may explain the value.
        """
        for call in window.calls:
            mode = value_of(call.context, TRAINING)
            if call.kind == MODULE or not isinstance(mode, bool) or not call.args or not ended(call):
                continue
            held: set[Property] = set()
            failed: set[Property] = set()
            for name, value in call.args:
                if isinstance(value, bool):
                    (held if value is mode else failed).add(Property(ARGUMENT_AGREES, name))
                elif type(value) in (int, float) and self._is_switched_on(call, name, value, mode=mode, window=window):
                    (failed if value else held).add(Property(ARGUMENT_AGREES, name, OFF))
            if held or failed:
                subject = Subject(call.name, self.grain)
                yield Occasion(subject, (), frozenset(held), frozenset(failed), call.seq)

    def _is_switched_on(self, call: Call, name: str, value: FactValue, *, mode: bool, window: Window) -> bool:
        """Whether a number of a call in evaluation was not zero when the same module made the call in training."""
        if mode and not isinstance(value, float):
            return False  # a count or a dimension
        if mode and not value:
            return False
        module = next((ancestor.receiver for ancestor in window.ancestors(call) if ancestor.kind == MODULE), "")
        key = (call.name, name, module)
        if mode:
            self._on.add(key)
        return not mode and key in self._on

    @classmethod
    def needs(cls, subject: Subject, prop: Property) -> Demand:
        """The arguments; for numbers also the module that makes the call."""
        demand = Demand.of_calls(subject.api, values=(ARGUMENTS,))
        return demand | Demand.of_calls(FORWARD) if prop.detail == OFF else demand

    @staticmethod
    def describe(subject: Subject, prop: Property) -> str:
        """The rule as a sentence."""
        if prop.detail == OFF:
            return f"{short(subject.api)} is called with {prop.object}=0 in evaluation, where it is not 0 in training"
        return f"{short(subject.api)} is called with {prop.object} as it is for the module around the call"
