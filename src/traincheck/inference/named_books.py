"""How a rule is treated on programs that it was not learned from, if the user names the book.

Note [What a rule speaks of]
The demand of a relation names the calls that must be observed to judge a rule. If all of these are torch's, the rule
means the same in every program: it counts as if three programs had supported it, see Note [Confidence]. A rule about
functions of a package may mean the same, so a violation is a notice. A rule about functions and classes of a script
cannot apply to other scripts, and a setting belongs to its program.

An optional practice stays a notice. So does a rule with a literal argument, unless the argument is a fact (`training`,
`set_to_none`): another value may be a choice.
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
"""Kinds of calls that contain no name of a program."""


def elsewhere_of(
    relation: Any, subject: Subject, prop: Property, support: Support, mains: Collection[str], experience: Precondition
) -> Elsewhere | None:
    """How the rule is treated on other programs, see Note [What a rule speaks of]; None if it does not apply there.

    `mains` are the names of the entry modules of its programs, `experience` holds the circumstances that it needs there
    in addition.
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
    """Whether the property depends on a literal argument (`reduction=sum`) that is no fact."""
    return any(word.partition("=")[0] not in FACTS for word in prop.detail.split() if "=" in word)
