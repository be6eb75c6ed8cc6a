"""What the sources must observe so that a set of rules can be judged.

Rules say what they need, the demands of all deployed rules are united, and the sources observe nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import repeat
from typing import Final, Literal

ValueKind = Literal["arguments", "tensors", "numbers", "rows", "contents", "scale"]
"""What is read of a call's values, see the constants of the same names."""

ARGUMENTS: Final = "arguments"
"""Its plain arguments."""
TENSORS: Final = "tensors"
"""Shapes, dtypes and devices of the tensors that go in and come out."""
NUMBERS: Final = "numbers"
"""Whether these tensors are finite or all zero, and their norms."""
ROWS: Final = "rows"
"""Whether the rows of these tensors sum to one."""
CONTENTS: Final = "contents"
"""Fingerprints of these tensors, and whether the call changed its inputs."""
SCALE: Final = "scale"
"""Whether a loss was scaled."""

TENSOR_VALUES: Final[tuple[ValueKind, ...]] = (NUMBERS, ROWS, CONTENTS)
"""The kinds for which elements of tensors have to be read."""

VALUE_KINDS: Final[tuple[ValueKind, ...]] = (ARGUMENTS, TENSORS, NUMBERS, ROWS, CONTENTS, SCALE)

SOME_STATE: Final = "optimizer_state.some"
"""In `state_changes`: changes of what an optimizer keeps for a few variables, which show whether it keeps anything."""

COMPUTATION: Final = "computation"
"""The kind of readings about steps that are executed again, see replayed_computations.py."""

GRAPH, NO_GRAD = "graph", "no_grad"
OPERATIONS, OPERATION_NUMBERS = "operations", "numbers"
"""The kinds and the attributes of readings that describe what a program computes: with gradients
(sources/gradients/graphs.py), and without (sources/functions/no_grad_operations.py)."""

COMPILED_CODE = "compiled code of "
"""Start of the variable of a reading of operations that a compiler has traced (sources/compile/compiled_graphs.py)."""

DESCRIBED_ALL = "described_all"
"""The attribute of a reading at the end of a run: whether all its windows were described."""

MODEL, PARAMETERS, MODULES = "model", "parameters", "modules"
"""The kind and the attributes of readings that describe how a program treats its parameters
(sources/optimizers/parameter_treatment.py), and what its modules are (sources/modules/module_attributes.py)."""

MAGNITUDES = "magnitudes"
"""The attribute of readings with the size of updates and gradients in a model (sources/optimizers/magnitudes.py), and
of outputs (sources/modules/output_sizes.py)."""

UPDATE_RATIO, GRADIENT_SHARE, NONZERO_SHARE, OUTPUT_SIZE = "update", "gradient", "nonzero", "output"
"""What a line of such a reading measures: an update relative to the weights, the gradient of a module relative to that
of the model, the share of gradient elements that are not zero, and the root mean square of the output of a module."""

BATCH, FORM = "batch", "form"
CHECKPOINT, ENTRIES, KEPT, MERGED = "checkpoint", "entries", "kept", "merged"
RESUMED, RESUMED_HERE, RESTARTED = "resumed", "resumed_here", "restarted_schedule"
EVALUATION, CHANGED = "evaluation", "changed"
"""The same for what a model is called with (sources/data/batch_forms.py), for what a checkpoint holds
(sources/checkpoints/saved_entries.py), and for what an evaluation changes (sources/modules/evaluation_changes.py)."""

VALUES = "values"
BEFORE_UPDATE, HOLDS, FAILS = ", before an update", "+ ", "- "
"""The kind of readings that describe the values of a function's tensors (sources/functions/value_forms.py), the end of
their first line if no update has come since a rollout, and the prefixes of their other lines."""
MARK = "mark "
"""Start of such a line about a value that the program marks, before its name."""

WEIGHTS = "weights"
"""The attribute of readings that compare a copy of a model with the trained one (sources/modules/model_copies.py)."""

WITH_GRADIENTS, WITHOUT_GRADIENTS = "with gradients", "without gradients"
"""The first line of a form: how the model is called."""

ALL: Final = "*"
"""In `readings`: every attribute of a kind."""


@dataclass(frozen=True, slots=True)
class Demand:
    """Calls to record, changes and values to read around them, and readings to take. Unite demands with `|`.

    * `calls`: APIs whose calls are recorded. An API may be named at any level of generality.
    * `state_changes`: (API, attribute) such as `("torch.optim.Optimizer.step", "parameter.data")`. Sources compare the
      attribute before and after each call of the API.
    * `call_values`: (API, kind of value) such as `("torch.relu", NUMBERS)`.
    * `readings`: (kind, attribute) such as `("hyperparameter", "lr")`, or `ALL` as the attribute.
    * `everything`: all that the sources can observe, as in a recording by `traincheck collect`.
    """

    calls: frozenset[str] = frozenset()
    state_changes: frozenset[tuple[str, str]] = frozenset()
    call_values: frozenset[tuple[str, ValueKind]] = frozenset()
    readings: frozenset[tuple[str, str]] = frozenset()
    everything: bool = False

    # -- what a rule needs ------------------------------------------------------------------------------------------

    @classmethod
    def of_calls(cls, *apis: str, changes: Iterable[str] = (), values: Iterable[ValueKind] = ()) -> Demand:
        """Record the calls of `apis`, changes of these attributes around each of them, and these values of each."""
        changes, values = tuple(changes), tuple(values)
        return cls(
            calls=frozenset(apis),
            state_changes=frozenset((api, attribute) for api in apis for attribute in changes),
            call_values=frozenset((api, kind) for api in apis for kind in values),
        )

    @classmethod
    def of_changes(cls, *changes: tuple[str, str]) -> Demand:
        """Compare attributes around calls of APIs, given as (API, attribute); the calls need not be recorded."""
        return cls(state_changes=frozenset(changes))

    @classmethod
    def of_readings(cls, *names: str) -> Demand:
        """Take readings, given as `hyperparameter.lr`; `hyperparameter.*` stands for all of that kind."""
        split = (name.partition(".") for name in names)
        return cls(readings=frozenset((kind, attribute) for kind, _, attribute in split))

    # -- what a source asks ------------------------------------------------------------------------------------------

    def records_call(self, levels: Iterable[str]) -> bool:
        """Whether a call is recorded that has any of these names."""
        return self.everything or not self.calls.isdisjoint(levels)

    def observes_state(self, levels: Iterable[str], attribute: str) -> bool:
        """Whether `attribute` (such as `parameter.grad`) is compared before and after a call of these names."""
        return self.everything or not self.state_changes.isdisjoint(zip(levels, repeat(attribute)))

    def reads_values(self, levels: Iterable[str], kind: ValueKind) -> bool:
        """Whether values of this kind are read of a call of these names."""
        return self.everything or not self.call_values.isdisjoint(zip(levels, repeat(kind)))

    def takes_reading(self, kind: str, attribute: str) -> bool:
        """Whether readings of this attribute of this kind are taken."""
        return self.everything or (kind, attribute) in self.readings or (kind, ALL) in self.readings

    def takes_readings(self, kind: str) -> bool:
        """Whether readings of any attribute of this kind are taken."""
        return self.everything or any(read == kind for read, _ in self.readings)

    def has_other_than(self, kind: str) -> bool:
        """Whether the demand holds anything other than readings of this kind."""
        return (
            self.everything
            or bool(self.calls or self.state_changes or self.call_values)
            or any(read != kind for read, _ in self.readings)
        )

    # -- as a whole --------------------------------------------------------------------------------------------------

    @property
    def is_empty(self) -> bool:
        """Whether nothing is demanded."""
        return not (self.everything or self.calls or self.state_changes or self.call_values or self.readings)

    def named_apis(self) -> frozenset[str]:
        """Every API whose calls are recorded, or around which something is read."""
        return self.calls.union((api for api, _ in self.state_changes), (api for api, _ in self.call_values))

    def covers(self, other: Demand) -> bool:
        """Whether everything in `other` is observed under this demand."""
        return self.everything or (
            other.calls <= self.calls
            and other.state_changes <= self.state_changes
            and other.call_values <= self.call_values
            and other.readings <= self.readings
        )

    def __or__(self, other: Demand) -> Demand:
        return Demand(
            self.calls | other.calls,
            self.state_changes | other.state_changes,
            self.call_values | other.call_values,
            self.readings | other.readings,
            self.everything or other.everything,
        )


EVERYTHING = Demand(everything=True)
NOTHING = Demand()


def union_of(demands: Iterable[Demand]) -> Demand:
    """The union of all `demands`, in time linear in their number."""
    several = list(demands)
    return Demand(
        frozenset().union(*(demand.calls for demand in several)),
        frozenset().union(*(demand.state_changes for demand in several)),
        frozenset().union(*(demand.call_values for demand in several)),
        frozenset().union(*(demand.readings for demand in several)),
        any(demand.everything for demand in several),
    )
