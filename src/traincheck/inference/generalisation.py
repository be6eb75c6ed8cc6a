"""Generalisation: at which level a rule is kept, and of which programs it speaks.

Note [Levels]
A call is an occasion under every class that its method is inherited through: `Adam.step` is also `Optimizer.step`.
Where the rule holds at a more general level under no stronger condition, the specific one says nothing more and is left
out; what was learned with Adadelta then speaks of AdamW. Where it does not hold in general (Linear returns what its
autocast says, a module in general does not), the most general level at which it holds remains by itself. Nor does the
specific one say more where its condition is weaker only because nothing that would call for a stronger one was ever
seen of its class: it goes, too, if the general rule speaks on every occasion that bore it out. A call that
is told to be inside another has several names as well; that `fit` calls an `SGD.step` says more than that it calls an
`Optimizer.step`, but the latter is what other programs share.

Note [Scope]
Whether a name means something to other programs is not told by its spelling: it does if several programs used it. A
rule that rests on one program only is of that program's *pipeline*: it is checked on that program alone, and there
distinct runs take the place of distinct programs in its confidence. Every other rule is *general*. Programs are told
apart by the name they were started under: two versions of one script are one program, so different ones should not all
be called `main.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from traincheck.inference.rule_index import Implication, RuleIndex, first_covering
from traincheck.vocab.invariant import GENERAL, PIPELINE, Invariant, Support
from traincheck.vocab.occasion import Subject

General = Mapping[str, frozenset[str]]
"""For each API the more general names of it."""


def scope_of(support: Support) -> str:
    """general or pipeline, see Note [Scope]."""
    return GENERAL if support.scripts > 1 else PIPELINE


class Generalisation:
    """Which rules are told by a more general one, see Note [Levels]. `levels` are names, most specific first."""

    def __init__(self, levels: Iterable[tuple[str, ...]]) -> None:
        self._general = more_general(levels)

    def by_class(self, rule: Invariant, index: RuleIndex) -> Implication | None:
        """The same rule about a more general class."""
        for api in sorted(self._general.get(rule.subject.api, ())):
            subject = Subject(api, rule.subject.grain)
            others = list(index.saying(rule.relation, subject, rule.property))
            other = first_covering(rule, others)
            if other is not None:
                return other, "the same holds of a more general class"
            other = next((other for other in others if index.borne_out_under(other, rule)), None)
            if other is not None:
                return other, "the same holds of a more general class wherever this was seen to hold"
        return None

    def by_content(self, rule: Invariant, index: RuleIndex) -> Implication | None:
        """The same rule in which the call inside has its more general name."""
        for api in sorted(self._general.get(rule.property.object, ())):
            prop = rule.property._replace(object=api)
            other = first_covering(rule, index.saying(rule.relation, rule.subject, prop))
            if other is not None:
                return other, "the call inside is told by its more general name, which transfers"
        return None


def more_general(levels: Iterable[tuple[str, ...]]) -> General:
    """For each API in `levels` (most specific first) the names that follow it."""
    general: dict[str, set[str]] = {}
    for hierarchy in levels:
        for position, api in enumerate(hierarchy):
            general.setdefault(api, set()).update(hierarchy[position + 1 :])
    return {api: frozenset(names - {api}) for api, names in general.items()}
