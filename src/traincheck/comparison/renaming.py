"""Which name of one run is which of another: modules, parameters and buffers.

Note [Names]
Two runs mostly use the same names. If each has one outermost module that the other lacks, the two are matched. A port
may rename more. Parameters that only one run has are matched by value, in the order of their first use: they are equal
at the begin of the first step. Their modules are matched as well. A parameter of one run may be the concatenation of
several of the other (the weight of queries, keys and values): their sums and squared norms add up. What the user
matches comes before all of this, see Note [Names by hand].
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from difflib import SequenceMatcher
from functools import cached_property

from traincheck.comparison.alignment import Rename, is_of_variable
from traincheck.comparison.given_names import Fusion, GivenName, Match, matches_of, paths_above, shown_fusions
from traincheck.comparison.sums import Sums, sums_of
from traincheck.vocab.operations import BEFORE, INPUT, Operation, StepOperations, other_name, renamed_roots

MOST_FUSED = 4
"""Parameters that may be fused to one: queries, keys, values, and a gate."""

ANOTHER = " (another)"
"""Behind a name of the second run that the user gave to another variable or module of it."""

_Variables = dict[str, Sums]


@dataclass(frozen=True)
class Renaming:
    """Names of `b` by the names that they have in `a`: of outermost modules, of other modules, and of variables."""

    roots: dict[str, str] = field(default_factory=dict)
    modules: dict[str, str] = field(default_factory=dict)
    variables: dict[str, str] = field(default_factory=dict)
    fusions: tuple[Fusion, ...] = ()
    by_hand: tuple[Match, ...] = ()

    def __call__(self, name: str) -> str:
        """The name in `a` of a module or variable of `b`."""
        given = self._given
        if name in given:
            return given[name]
        if name in self.variables:
            return self.variables[name]
        if name in self.modules:
            return self.modules[name]
        module, dot, last = name.rpartition(".")
        if module in self.modules:
            return f"{self.modules[module]}{dot}{last}"
        if not given:
            return other_name(name, self.roots)
        for path in paths_above(name):
            if path in given:
                return given[path] + name[len(path) :]
        renamed = other_name(name, self.roots)
        return f"{renamed}{ANOTHER}" if self._taken.intersection(paths_above(renamed)) else renamed

    @cached_property
    def _given(self) -> dict[str, str]:
        return {new: old for match in self.by_hand for new, old in match.names.items()}

    @cached_property
    def _taken(self) -> set[str]:
        """Names in `a` that no other name of `b` may get."""
        return set(self._given.values())

    @property
    def all_fusions(self) -> tuple[Fusion, ...]:
        """All fusions, those by hand first."""
        return (*(fusion for match in self.by_hand for fusion in match.fusions), *self.fusions)

    @property
    def shown(self) -> dict[str, str]:
        """What is worth showing: outermost modules, and parameters with another name behind them."""
        moved = {new: old for new, old in self.variables.items() if _behind_root(new) != _behind_root(old)}
        return {**self.roots, **moved, **shown_fusions(self.fusions)}


def renaming(a: StepOperations, b: StepOperations, given: Sequence[GivenName] = ()) -> Renaming:
    """The names of `b` in `a`, from the first step of both. Raises BadOption for given names that do not fit."""
    roots = _matched_roots(a.operations, b.operations)
    rename = Renaming(roots, by_hand=matches_of(given, a, b, roots))
    fused = {name for fusion in rename.all_fusions for name in (fusion.name, *fusion.parts)}
    own, other = ({name: each for name, each in _variables(step).items() if name not in fused} for step in (a, b))
    known = {rename(name) for name in other}
    own_only = {name: sums for name, sums in own.items() if name not in known}
    other_only = {name: sums for name, sums in other.items() if rename(name) not in own}
    matched = _matched_by_value(own_only, other_only)
    fusions = (
        *_fusions(own_only, other_only, matched, in_b=True),
        *_fusions(other_only, own_only, matched, in_b=False),
    )
    return replace(rename, modules=_matched_modules(matched), variables=matched, fusions=fusions)


def lacking_variables(a: StepOperations, b: StepOperations, rename: Rename) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The parameters and buffers of a step that only the first or only the second run has, by their own names."""
    own = dict.fromkeys(_state_names(a))
    other = {rename(name): name for name in _state_names(b)}
    return (
        tuple(name for name in own if name not in other),
        tuple(name for renamed, name in other.items() if renamed not in own),
    )


def _state_names(step: StepOperations) -> Iterator[str]:
    return (each.module for each in step.operations if is_of_variable(each) and each.name != INPUT)


# -- outermost modules -------------------------------------------------------------------------------------------------


def _matched_roots(a: Sequence[Operation], b: Sequence[Operation]) -> dict[str, str]:
    """The outermost modules of `b` by the names that they have in `a`, where each run has as many that the other
    lacks."""
    return renamed_roots(_names(a), _names(b))


def _names(operations: Iterable[Operation]) -> Iterator[str]:
    return (operation.module for operation in operations if operation.name != INPUT)


# -- parameters --------------------------------------------------------------------------------------------------------


def _variables(step: StepOperations) -> _Variables:
    """The variables that the step begins with, in the order of their first use."""
    begun = (each for each in step.operations if each.phase == BEFORE and each.name != INPUT)
    return {each.module: sums_of(step.values[each.outputs[0]]) for each in begun}


def _matched_by_value(own: _Variables, other: _Variables) -> dict[str, str]:
    """The variables of `other` by those of `own` that have equal values, both in their order."""
    names_own, names_other = list(own), list(other)
    matcher = SequenceMatcher(
        None, [own[name].key for name in names_own], [other[name].key for name in names_other], autojunk=False
    )
    matched = {}
    for block in matcher.get_matching_blocks():
        for offset in range(block.size):
            new, old = names_other[block.b + offset], names_own[block.a + offset]
            if own[old].is_near(other[new]):
                matched[new] = old
    return matched


def _matched_modules(variables: dict[str, str]) -> dict[str, str]:
    """The modules of matched variables, and the modules around them where both are equally deep."""
    votes: dict[str, Counter[str]] = {}
    for new, old in variables.items():
        parts_new, parts_old = new.split(".")[:-1], old.split(".")[:-1]
        shortest = min(len(parts_new), len(parts_old))
        depths = range(1, shortest + 1) if len(parts_new) == len(parts_old) else (0,)
        for depth in depths:
            own = ".".join(parts_old[:depth] if depth else parts_old)
            votes.setdefault(".".join(parts_new[:depth] if depth else parts_new), Counter())[own] += 1
    return {new: counter.most_common(1)[0][0] for new, counter in votes.items()}


def _fusions(wholes: _Variables, parts: _Variables, matched: dict[str, str], *, in_b: bool) -> Iterable[Fusion]:
    """The variables without a partner that are a concatenation of variables of the other run without a partner."""
    taken = {*matched, *matched.values()}
    free = [name for name in parts if name not in taken]
    for whole in (name for name in wholes if name not in taken):
        found = _concatenation(wholes[whole], free, parts)
        if found:
            free = [name for name in free if name not in found]
            yield Fusion(whole, found, in_b)


def _concatenation(whole: Sums, free: Sequence[str], parts: _Variables) -> tuple[str, ...]:
    """Variables of one module or of its children, in their order, that are the whole together; empty if there are none.

    They have one last name (`weight`), and follow each other among the variables with this name.
    """
    for last in dict.fromkeys(name.rpartition(".")[2] for name in free):
        names = [name for name in free if name.rpartition(".")[2] == last]
        for count in range(2, MOST_FUSED + 1):
            for begin in range(len(names) - count + 1):
                chosen = names[begin : begin + count]
                if whole.is_near(Sums.of_parts([parts[name] for name in chosen])):
                    return tuple(chosen)
    return ()


def _behind_root(name: str) -> str:
    return name.partition(".")[2]
