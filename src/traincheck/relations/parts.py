"""The parts of a composite relation: `Consistent` and `Periodic` combine one part for each kind of statement.

A part is written like a small relation. The grain of a subject shows which part it belongs to.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence, Set
from itertools import chain, pairwise
from operator import attrgetter, itemgetter
from typing import ClassVar, Protocol, TypeVar

from traincheck.vocab.builtin_rules import LOADED
from traincheck.vocab.demand import Demand
from traincheck.vocab.events import Call, Reading, Window
from traincheck.vocab.facts import FactValue, value_of
from traincheck.vocab.occasion import Occasion, Property, Subject

UPDATE = "torch.optim.Optimizer.step"
SCHEDULE = "torch.optim.lr_scheduler.LRScheduler.step"
FORWARD = "torch.nn.Module.forward"
BACKWARD = "torch.autograd.backward"
LOAD = "torch.nn.Module.load_state_dict"
ITER, NEXT = "torch.utils.data.DataLoader.__iter__", "torch.utils.data.DataLoader.__next__"
"""A pass over the data begins, and a batch is fetched."""

KEPT_LOADERS = 8
"""The latest loaders that are remembered across a gap: a program uses few at a time."""

V = TypeVar("V")

TIME = "time"
"""The grain of rules that compare one variable at two times."""


class RelationPart(Protocol):
    """One kind of statement of a composite relation. It follows the windows of one process, as a relation does."""

    def occasions(self, window: Window) -> Iterator[Occasion]:
        """The occasions in `window`."""

    def forget(self) -> None:
        """Reset the state, because windows were dropped."""

    @staticmethod
    def speaks_of(subject: Subject) -> bool:
        """Whether this part makes the occasions of the subject."""

    @staticmethod
    def needs(subject: Subject, prop: Property) -> Demand:
        """The demand of a rule with this subject and property."""

    @staticmethod
    def is_optional_practice(prop: Property) -> bool:
        """See `Relation.is_optional_practice`."""

    @staticmethod
    def describe(subject: Subject, prop: Property) -> str:
        """The rule as a sentence, see `Relation.describe`."""


class Part:
    """Base of parts, with what most of them answer."""

    @staticmethod
    def is_optional_practice(prop: Property) -> bool:
        return False


class StatelessPart(Part):
    """Base of parts that look at one window at a time."""

    def forget(self) -> None:
        """There is no state."""


class ReadingPart(StatelessPart):
    """Base of parts whose occasions are readings of one window. They have a grain of their own."""

    grain: ClassVar[str]

    @classmethod
    def speaks_of(cls, subject: Subject) -> bool:
        return subject.grain == cls.grain

    @staticmethod
    def needs(subject: Subject, prop: Property) -> Demand:
        return Demand.of_readings(subject.api)


def site_of(reading: Reading) -> str:
    """The site that a reading has in its context; empty if it has none."""
    return str(value_of(reading.context, "site") or "")


class Composite:
    """A relation made of `parts`. Only the parts that the interest requests run."""

    parts: ClassVar[tuple[type[RelationPart], ...]] = ()

    def __init__(self, interest: Set[Subject] | None = None) -> None:
        self._interest = interest
        self._running = [
            part() for part in self.parts if interest is None or any(part.speaks_of(subject) for subject in interest)
        ]
        self._next_index = 0

    def occasions(self, window: Window) -> Iterator[Occasion]:
        """The occasions of all parts, one part after the other."""
        if window.index != self._next_index:
            for part in self._running:
                part.forget()
        self._next_index = window.index + 1
        for part in self._running:
            for occasion in part.occasions(window):
                if self._is_requested(occasion.subject):
                    yield occasion

    def _is_requested(self, subject: Subject) -> bool:
        return self._interest is None or subject in self._interest

    @classmethod
    def _part_of(cls, subject: Subject) -> type[RelationPart]:
        for part in cls.parts:
            if part.speaks_of(subject):
                return part
        raise LookupError(f"{cls.__name__} has no rules about {subject}")

    @classmethod
    def needs(cls, subject: Subject, prop: Property) -> Demand:
        """See `Relation.needs`."""
        return cls._part_of(subject).needs(subject, prop)

    @classmethod
    def is_optional_practice(cls, prop: Property) -> bool:
        """See `Relation.is_optional_practice`."""
        return any(part.is_optional_practice(prop) for part in cls.parts)

    @staticmethod
    def is_setting(prop: Property) -> bool:
        """See `Relation.is_setting`."""
        return False

    @staticmethod
    def argument_of(subject: Subject, prop: Property) -> tuple[str, str] | None:
        """See `Relation.argument_of`."""
        return None

    @staticmethod
    def implied(prop: Property) -> Iterable[Property]:
        """See `Relation.implied`."""
        return ()

    @classmethod
    def describe(cls, subject: Subject, prop: Property) -> str:
        """See `Relation.describe`."""
        return cls._part_of(subject).describe(subject, prop)


def calls_of(window: Window, *apis: str) -> Sequence[Call]:
    """The calls in `window` that ended and whose most general name is one of `apis`, in order."""
    if not window.calls:
        return ()
    call_lists = [calls for calls in map(window.calls_named.get, apis) if calls]
    if len(call_lists) < 2:
        return call_lists[0] if call_lists else ()
    return sorted(chain.from_iterable(call_lists), key=_SEQ)


def with_gradients(call: Call) -> bool:
    """Whether gradients were on when a module was called."""
    return value_of(call.context, "grad_mode") == "on"


def is_in(name: str, model: str) -> bool:
    """Whether a module or parameter is a model itself or a part of it."""
    return name == model or name.startswith(f"{model}.")


_SEQ, _FIRST = attrgetter("seq"), itemgetter(0)


def in_order(groups: Sequence[tuple[list[int], V]]) -> Sequence[tuple[list[int], V]]:
    """The groups of changes (`Window.change_groups`) with their positions, arranged so that all changes come in order.
    Groups that do not overlap stay whole; otherwise each change comes by itself."""
    if all(first[0][-1] < second[0][0] for first, second in pairwise(groups)):
        return groups
    return sorted((([position], content) for positions, content in groups for position in positions), key=_FIRST)


def loaded_models(window: Window) -> set[str]:
    """The models into which a state was loaded, or that say so themselves; empty for one without a name."""
    loads = (call.receiver for call in window.calls if call.levels[-1] == LOAD)
    return {*loads, *(reading.variable for reading in window.readings if named(reading) == LOADED)}


def outermost(call: Call, window: Window) -> bool:
    """Whether no call of the same name encloses `call`. A scheduler may step the schedulers that it is made of."""
    return all(around.levels[-1] != call.levels[-1] for around in window.ancestors(call))


def named(reading: Reading) -> str:
    """The quantity of a reading, as subjects write it: `hyperparameter.lr`."""
    return f"{reading.kind}.{reading.attribute}"


def number(value: FactValue) -> float | None:
    """`value` if it is a number; None for a flag and everything else."""
    return value if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def is_figure(value: FactValue) -> bool:
    """Whether an entry of a parameter group affects what is computed. Flags and None only select how."""
    return value is not None and not isinstance(value, bool)


_PHRASES = {
    "hyperparameter.lr": "learning rate",
    "hyperparameter.keys": "set of entries of a parameter group",
    "optimizer.class": "class of the optimizer",
    "module.class": "class of the model",
    "module.autocast": "precision that autocast gives the model",
    "module.input": "shape of the first input of the model",
    "module.parameters": "number of parameters of the model",
    "module.training": "training flag of a module",
    "loader.batch_size": "batch size of the data loader",
    "loader.dataset_size": "size of the dataset",
    "run.ranks": "number of ranks",
    "parameter.data": "value of a parameter",
    "scheduler.lr": "learning rate of the scheduler",
    "scheduler.span": "number of steps of a scheduler",
    "scheduler.last_epoch": "step count of a scheduler",
    "optimizer_state.step": "step count of the optimizer",
    "optimizer_state.lowest_step": "lowest step count that the optimizer keeps for a parameter",
}


def phrase_for(quantity: str) -> str:
    """The words for a quantity such as `hyperparameter.weight_decay`: a noun without an article."""
    kind, _, attribute = quantity.partition(".")
    words = f"setting of {attribute}" if kind == "hyperparameter" else f"{attribute} of a {kind.replace('_', ' ')}"
    return _PHRASES.get(quantity, words)
