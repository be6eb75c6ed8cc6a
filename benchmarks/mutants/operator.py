"""What a mutation operator is, and the list of all of them.

An operator is a function in a module of `benchmarks/mutants/operators/` that gets a `Script` and yields the mutants it
can make of it, each as a list of edits. It finds its place by what the code does (a call of `backward`, the loss it is
called on, the optimizer that a constructor made), not by the names of one corpus, so that it works on any script.
"""

from __future__ import annotations

import importlib
import pkgutil
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from benchmarks.mutants import operators as _operators
from benchmarks.mutants.script import Edit, EditFailed, Script

RESERVED_SEED = 1
"""The seed that draws the reserved operators: a third of each kind's, which nobody looks at one by one."""

KINDS = (
    "clearing", "stepping", "modes", "detaching", "freezing", "groups", "schedule", "clipping", "accumulation", "loss",
    "masks", "axes", "dropout", "normalization", "initialization", "tying", "state", "targets", "replay", "data-order",
    "worker-seeds", "augmentation", "precision", "scaler", "checkpoints", "resume", "samplers", "gradient-averaging",
    "process-groups", "wrapper", "buffers", "caches", "in-place",
)  # fmt: skip
"""The kinds of silent errors, in the order of the tables."""


_COMPUTATION = ("detaching", "loss", "masks", "axes", "dropout", "normalization", "precision")
GENERAL = {
    "computation-differs": (
        *_COMPUTATION,
        *("accumulation", "clipping", "state", "in-place", "caches"),
        *("targets", "augmentation", "replay", "initialization"),  # what is computed without gradients
    ),
    "module-differs": (*_COMPUTATION, "tying", "groups", "buffers"),
    "parameters-treated-differently": ("freezing", "groups", "tying", "buffers", "targets"),
    "checkpoint-differs-from-good-runs": ("checkpoints", "resume", "buffers"),
    "batch-differs": ("augmentation", "precision"),
    "output-depends-on-other-samples": ("axes", "masks", "normalization"),
    "target-is-not-the-next-token": ("axes", "masks", "loss"),
    "passes-left-early": ("data-order", "samplers"),
    "rate-takes-new-course": ("schedule",),
    "evaluation-changes-training-state": ("modes", "buffers"),
    "magnitudes-differ-from-good-runs": ("loss", "initialization", "accumulation"),
    "batches-repeat": ("data-order", "samplers", "augmentation", "worker-seeds"),
    "setting-changed": ("data-order", "samplers", "groups", "precision"),
    "calls-follow-in-new-order": (
        "clearing",
        "stepping",
        "modes",
        "schedule",
        "clipping",
        "accumulation",
        "scaler",
        "checkpoints",
        "resume",
    ),
}
"""Diagnoses that name errors of whole kinds, as those do that compare a run with earlier ones."""


@dataclass(frozen=True)
class Operator:
    """A mutation operator.

    `diagnoses` are the slugs of diagnoses that name its error: the leading finding of a detected mutant should carry
    one of them. `edits` yields the mutants of a script, the most likely mistake first.
    """

    name: str
    kind: str
    about: str
    diagnoses: tuple[str, ...]
    edits: Callable[[Script], Iterator[Sequence[Edit]]]

    def mutants(self, script: Script) -> Iterator[Script]:
        """The changed scripts; edits that fail or change nothing are left out."""
        for edits in self.edits(script):
            try:
                mutant = script.apply(edits)
            except EditFailed:
                continue
            if mutant.text != script.text:
                yield mutant


_registered: dict[str, Operator] = {}

Mutants = Iterator[Sequence[Edit]]
"""The mutants of a script, each as its edits."""

EditFunction = Callable[[Script], Mutants]


def operator(kind: str, *diagnoses: str) -> Callable[[EditFunction], EditFunction]:
    """Register the decorated function as an operator: its name with dashes, its docstring as `about`."""

    def register(function: EditFunction) -> EditFunction:
        name = function.__name__.replace("_", "-")
        if kind not in KINDS:
            raise ValueError(f"operator {name}: kind {kind!r} is not one of {', '.join(KINDS)}")
        if name in _registered:
            raise ValueError(f"two operators have the name {name}")
        named = (*diagnoses, *(slug for slug, kinds in GENERAL.items() if kind in kinds))
        about = (function.__doc__ or "").strip().splitlines()[0]
        _registered[name] = Operator(name, kind, about, named, function)
        return function

    return register


def all_operators() -> list[Operator]:
    """All operators, by kind and name."""
    for module in pkgutil.iter_modules(_operators.__path__):
        importlib.import_module(f"{_operators.__name__}.{module.name}")
    return sorted(_registered.values(), key=lambda entry: (KINDS.index(entry.kind), entry.name))


def reserved(operators: Sequence[Operator]) -> frozenset[str]:
    """The names of the reserved third. Each draw depends on the seed and the name, so a new operator moves no other."""
    return frozenset(
        entry.name for entry in operators if random.Random(f"{RESERVED_SEED} {entry.name}").random() < 1 / 3
    )
