"""Consistent(Va, Vb): two variables, or one variable at two times, have the same value.

Source: OSDI '25, section 3.2. Its parts:
* saved and loaded values against live ones (checkpoint_match.py);
* values that stay from update to update (constancy.py);
* training flags over an evaluation (train_mode_restored.py);
* the learning rate against its scheduler (learning_rates.py), and its course (rate_course.py);
* the settings of a program (configuration.py), the operations of its modules (computation.py), its parameters,
  modules, batches, checkpoints and copies of models (descriptions.py), the values of its tensors (value_forms.py), and
  the order of its calls (call_order.py);
* the size of its updates and gradients (bands.py);
* the batches of one rank from step to step (repeated_batches.py), its random keys (repeated_keys.py), and the ends of
  passes (pass_ends.py);
* what has to happen before a model is used (readiness.py);
* the settings of a restarted optimizer (restarts.py);
* in `ranks/`: one name on several ranks (replicas.py and buffers.py), their batches (batches.py) and seeds (seeds.py),
  and the copies that ranks of one model hold (one_model.py);
* steps that are computed twice (replayed_steps.py), and parts that are computed in a second way (experiments.py);
* what runs of the program do at some time (whole_runs.py).

Subjects name the kind of thing and its attribute (`hyperparameter.weight_decay`), never a variable, so that rules apply
to other programs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from itertools import chain
from typing import ClassVar

from traincheck.relations.consistent.bands import Bands
from traincheck.relations.consistent.call_order import CallOrder
from traincheck.relations.consistent.checkpoint_match import CheckpointMatch
from traincheck.relations.consistent.computation import Computation
from traincheck.relations.consistent.configuration import Configuration
from traincheck.relations.consistent.constancy import Constancy
from traincheck.relations.consistent.descriptions import Descriptions
from traincheck.relations.consistent.experiments import Experiments
from traincheck.relations.consistent.learning_rates import LearningRates
from traincheck.relations.consistent.pass_ends import PassEnds
from traincheck.relations.consistent.ranks import buffers, replicas
from traincheck.relations.consistent.ranks.batches import Batches
from traincheck.relations.consistent.ranks.buffers import Buffers
from traincheck.relations.consistent.ranks.one_model import OneModel
from traincheck.relations.consistent.ranks.replicas import Replicas
from traincheck.relations.consistent.ranks.seeds import Seeds
from traincheck.relations.consistent.rate_course import RateCourse
from traincheck.relations.consistent.readiness import Readiness
from traincheck.relations.consistent.repeated_batches import RepeatedBatches
from traincheck.relations.consistent.repeated_keys import RepeatedKeys
from traincheck.relations.consistent.replayed_steps import ReplayedSteps
from traincheck.relations.consistent.restarts import Restarts
from traincheck.relations.consistent.train_mode_restored import TrainModeRestored
from traincheck.relations.consistent.value_forms import ValueForms
from traincheck.relations.consistent.whole_runs import WholeRuns
from traincheck.relations.parts import Composite, RelationPart
from traincheck.vocab.events import Window
from traincheck.vocab.occasion import RANKS, Occasion, Property, Subject
from traincheck.vocab.properties import IS


class Consistent(Composite):
    """See the module."""

    name: ClassVar[str] = "Consistent"
    compares_ranks: ClassVar[bool] = True
    parts: ClassVar[tuple[type[RelationPart], ...]] = (
        WholeRuns,  # first, as its subjects are those of other parts, in a run
        CheckpointMatch,
        Constancy,
        TrainModeRestored,
        LearningRates,
        RateCourse,
        Configuration,
        Computation,
        Descriptions,
        ValueForms,
        CallOrder,
        Bands,
        RepeatedBatches,
        RepeatedKeys,
        PassEnds,
        Readiness,
        Restarts,
        ReplayedSteps,
        Experiments,
        Batches,
        Buffers,
        Seeds,
        OneModel,
        Replicas,
    )

    def __init__(self, interest: Set[Subject] | None = None) -> None:
        super().__init__(interest)
        self._comparing = (Replicas(), Batches(), Buffers(), Seeds(), OneModel())
        self._compares = interest is None or any(subject.grain == RANKS for subject in interest)

    def across(self, windows: Sequence[Window]) -> Iterator[Occasion]:
        """Yield the occasions in windows of several ranks at the same step, see `_comparing`."""
        if self._compares and len(windows) > 1:
            for part in self._comparing:
                for occasion in part.across(windows):
                    if self._is_requested(occasion.subject):
                        yield occasion

    @staticmethod
    def values(window: Window) -> Iterator[tuple[str, str, object]]:
        """See `ComparesRanks.values`."""
        return chain(replicas.values(window), buffers.values(window))

    @staticmethod
    def is_setting(prop: Property) -> bool:
        """See `Relation.is_setting`."""
        return prop.verb == IS
