"""Occasions: on every occasion of a subject, in some context, properties hold or do not."""

from __future__ import annotations

from collections.abc import Set
from typing import NamedTuple

from traincheck.vocab.facts import Facts
from traincheck.vocab.ranks import NONE_DIFFER, DifferingRanks

RANKS = "ranks"
"""The grain of what is said of several ranks together: there, and nowhere else, windows of all of them are needed."""


class Subject(NamedTuple):
    """Whose occasions are counted: an API at one level, at the grain of the call or of each variable around it.

    `grain` is `call`, or the attribute of the variables it is offered for, such as `parameter.grad`.
    """

    api: str
    grain: str = "call"


class Property(NamedTuple):
    """What may hold on an occasion: a verb, its object, and a detail such as a fixed argument.

    `Property("contains call", "torch.nn.Module.forward", "training=True")`,
    `Property("contains change", "parameter.data", "changes")`, `Property("preceded by", "torch.Tensor.backward")`.
    """

    verb: str
    object: str
    detail: str = ""


class Occasion(NamedTuple):
    """One occasion: which properties held on it.

    `failed` is None when every property that is not in `held` failed (a closed world); otherwise only those in
    `failed` did, and the rest could not be judged here. `seq` is the call it happened in; `variables` are set at the
    grain of a variable. What the call does not tell a reader of a finding may be told here: `site` is the place in the
    user's code, where it is that of an earlier call, `note` what was seen, as a clause in the past tense, and `apart`,
    of ranks that are compared, which of them differ.
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
