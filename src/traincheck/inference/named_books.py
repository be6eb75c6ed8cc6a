"""Transfer: what a rule is on programs that it was not learned from, where the user names the book.

Note [What a rule speaks of]
To judge a rule some calls have to be observed: the demand of its relation names them. A rule whose calls are all
torch's means the same in every program: it is believed as if three programs had borne it out, see Note [Confidence].
A rule about functions of a package may mean the same: breaking it is a notice. A rule about functions and classes of a
script cannot speak of other scripts, and a setting is that of its program.

A habit stays a notice, and so does a rule with a literal argument, unless the argument is a fact (`training`,
`set_to_none`): of another value nobody can say whether it is a choice.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from traincheck.inference.confidence import of_named, severity
from traincheck.relations.base import needed
from traincheck.vocab.call_kinds import LAYERED, NORMALISATION
from traincheck.vocab.facts import FACTS
from traincheck.vocab.invariant import NOTICE, Elsewhere, Precondition, Support
from traincheck.vocab.occasion import Property, Subject

TORCH = "torch."
KINDS = frozenset((LAYERED, NORMALISATION))
"""Kinds of calls that hold no name of a program."""


def elsewhere_of(
    relation: Any, subject: Subject, prop: Property, support: Support, mains: Collection[str], experience: Precondition
) -> Elsewhere | None:
    """What the rule is on other programs, see Note [What a rule speaks of]; None where it says nothing of them.

    `mains` are the names that the entry modules of its programs have, `experience` what it needs there besides its own.
    """
    apis = needed(relation, subject, prop).calls
    certainty = of_named(support)
    if all(api.startswith(TORCH) or api in KINDS for api in apis):
        habit = relation.is_optional_practice(prop) or _is_literal(prop)
        return Elsewhere(severity(certainty, habit=habit), certainty, experience)
    if any(api == main or api.startswith(f"{main}.") for api in apis for main in mains):
        return None
    return Elsewhere(NOTICE, certainty, experience)


def _is_literal(prop: Property) -> bool:
    """Whether the property rests on a literal argument (`reduction=sum`) that is no fact."""
    return any(word.partition("=")[0] not in FACTS for word in prop.detail.split() if "=" in word)
