"""Generalisation: the level at which a rule is kept, and the programs that it applies to.

Note [Levels]
A call is an occasion under every class that its method is inherited through: `Adam.step` is also `Optimizer.step`. If
the rule holds at a more general level under no stronger condition, the specific one adds nothing and is left out. A
rule learned with Adadelta then applies to AdamW. If it does not hold in general (Linear returns the type of its
autocast, a module in general does not), the most general level at which it holds remains. A specific rule is also left
out if its condition is weaker only because nothing that requires a stronger one was ever seen of its class. For that,
the general rule has to apply on every occasion that supported the specific one. A call inside another has several names
as well. A call of `SGD.step` inside `fit` says more than one of `Optimizer.step`, but other programs share the
latter.

Note [Classes by chance]
A statement that fails in general may hold of one class only because few programs used the class. Six programs with
NAdam whose gradients are cleared inside its step were all written with the same library, and other optimizers show that
a step clears no gradients. So the class counts as a condition like others, and must be sound, see Note [False
discovery] in chance.py: programs are the observations, and the subclasses with as many programs are the conditions
tried. Programs that supported the rule, and whose other classes failed, count twice: once for each. With so few
programs that no class could be proven, whatever number of them failed, the rule is kept.

Note [Scope]
The spelling of a name does not show whether it means something to other programs: it does if several programs used it.
A rule that rests on one program belongs to that program's *pipeline*. It is checked on that program alone, and there
distinct runs take the place of distinct programs in its confidence. Every other rule is *general*. Programs are
separated by the name of their script: two versions of one script are one program, so different programs should not all
be called `main.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from traincheck.inference.chance import ALPHA, avoids
from traincheck.inference.rule_index import Implication, RuleIndex, first_covering
from traincheck.inference.tally import Key, Tally
from traincheck.vocab.invariant import GENERAL, PIPELINE, Invariant, Support
from traincheck.vocab.occasion import Subject

General = Mapping[str, frozenset[str]]
"""For each API, its more general names."""


def scope_of(support: Support) -> str:
    """general or pipeline, see Note [Scope]."""
    return GENERAL if support.scripts > 1 else PIPELINE


class Generalisation:
    """The rules that a more general one implies, see Note [Levels]. `levels` are names, most specific first."""

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
        """The same rule with a more general name of the call inside."""
        for api in sorted(self._general.get(rule.property.object, ())):
            prop = rule.property._replace(object=api)
            other = first_covering(rule, index.saying(rule.relation, rule.subject, prop))
            if other is not None:
                return other, "another rule names the call inside by its more general name"
        return None


class Classes:
    """Whether a rule holds of a class by chance, see Note [Classes by chance]."""

    def __init__(self, tallies: Sequence[Tally], levels: Iterable[tuple[str, ...]]) -> None:
        self._tallies = tallies
        self._general = more_general(levels)
        self._subclasses: dict[str, set[str]] = {}
        for api, names in self._general.items():
            for name in names:
                self._subclasses.setdefault(name, set()).add(api)
        self._programs: dict[Key, set[str]] = {}
        for tally in tallies:
            for key in tally.cells:
                self._programs.setdefault(key, set()).add(tally.script)

    def doubt(self, rule: Invariant) -> str | None:
        """Why the general rule `rule` may hold of its class by chance; None if that is not to be expected."""
        supporting = set(rule.origin)
        for api in sorted(self._general.get(rule.subject.api, ())):
            programs, failing = self._programs_of(rule, api)
            if not failing:
                continue
            of_subclasses = [
                len(self._programs.get((rule.relation, rule.subject._replace(api=subclass)), ()))
                for subclass in self._subclasses[api]
            ]
            everything = len(supporting) + len(programs - supporting) + len(failing & supporting)
            half = everything // 2
            if len(of_subclasses) * avoids(everything, half, everything - half) > ALPHA:
                continue
            tried = sum(count >= len(supporting) for count in of_subclasses)
            expected = tried * avoids(everything, len(failing), len(supporting))
            if expected > ALPHA:
                return (
                    f"{len(supporting)} programs may obey it by chance: of {len(programs)} programs with {api}, "
                    f"{len(failing)} do not; {expected:.2g} such classes are to be expected, and {ALPHA:g} at most is "
                    "allowed"
                )
        return None

    def _programs_of(self, rule: Invariant, api: str) -> tuple[set[str], set[str]]:
        """The programs that show what the rule says of `api` where it applies, and those that break it there."""
        key = (rule.relation, rule.subject._replace(api=api))
        programs: set[str] = set()
        failing: set[str] = set()
        for tally in self._tallies:
            for context, count in tally.evidence(key, rule.property):
                if rule.applies(context):
                    programs.add(tally.script)
                    if count.failed:
                        failing.add(tally.script)
        return programs, failing


def more_general(levels: Iterable[tuple[str, ...]]) -> General:
    """For each API in `levels` (most specific first), the names that follow it."""
    general: dict[str, set[str]] = {}
    for hierarchy in levels:
        for position, api in enumerate(hierarchy):
            general.setdefault(api, set()).update(hierarchy[position + 1 :])
    return {api: frozenset(names - {api}) for api, names in general.items()}
