"""Occasions: on each occasion of a subject, in some context, properties hold or fail."""

from __future__ import annotations

from collections.abc import Set
from typing import NamedTuple

from traincheck.vocab.facts import Facts
from traincheck.vocab.ranks import NONE_DIFFER, DifferingRanks

RANKS = "ranks"
"""The grain of rules that compare several ranks. Only these need the windows of all ranks."""


class Subject(NamedTuple):
    """The API that a rule is about, at one level, with the grain of its occasions.

    The grain is `call`, or the attribute of the variables around the call, such as `parameter.grad`. Relations add
    further grains.
    """

    api: str
    grain: str = "call"


class Property(NamedTuple):
    """A statement that may hold on an occasion: a verb, its object, and a detail such as a fixed argument.

    `Property("contains call", "torch.nn.Module.forward", "training=True")`, `Property("contains change",
    "parameter.data", "changes")`, `Property("preceded by", "torch.Tensor.backward")`. vocab/properties.py declares the
    verbs.
    """

    verb: str
    object: str
    detail: str = ""


class Occasion(NamedTuple):
    """One occasion with the properties that held on it.

    `failed` is None if every property outside `held` failed (a closed world). Otherwise only those in `failed` did, and
    the rest could not be judged. `seq` is the call of the occasion; `variables` are set at the grain of a variable. The
    next three fields add what a finding cannot take from the call. `site` is a line of the user's code, if an earlier
    call matters. `note` says what was observed, as a clause in the past tense. `differing` names the ranks that differ,
    if several were compared. `sometimes` are those of the `held` that occasions need not have, although this one has
    them: inference does not learn from a closed world that all occasions do. An `unsettled` occasion is a branch that
    the program took once, perhaps because of its data: inference learns from it, and a check does not judge it.
    """

    subject: Subject
    context: Facts
    held: Set[Property]
    failed: Set[Property] | None
    seq: int
    variables: tuple[str, ...] = ()
    site: str = ""
    note: str = ""
    differing: DifferingRanks = NONE_DIFFER
    sometimes: Set[Property] = frozenset()
    unsettled: bool = False
