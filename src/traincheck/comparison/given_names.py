"""Names of two runs that the user matches: `--map OLD=NEW`.

Note [Names by hand]
OLD is a name in the first run, and NEW the name in the second: of a module, a parameter or a buffer. The outermost
module may be left out. `*` stands for any text, the same in both names. Everything inside a module is matched with it.
Several names, separated by commas, are together one parameter of the other run.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import NamedTuple

from traincheck.comparison.alignment import is_of_variable
from traincheck.comparison.ranks import sizes
from traincheck.errors import BadOption
from traincheck.vocab.operations import BEFORE, INPUT, Sketch, StepOperations, other_name

OPTION = "--map"
MOST_NEAR = 3
"""Names in an error."""

Names = tuple[str, ...]


class Fusion(NamedTuple):
    """Parameters `parts` of one run are one in the other, which gets this `name`. `in_b` if the parts are in `b`."""

    name: str
    parts: Names
    in_b: bool


class GivenName(NamedTuple):
    """The value of an option: patterns of names in the first run, and in the second."""

    text: str
    a: Names
    b: Names


@dataclass(frozen=True)
class Match:
    """What a given name matches: names of the second run by those of the first, and fusions."""

    text: str
    names: Mapping[str, str]
    fusions: tuple[Fusion, ...] = ()

    @property
    def shown(self) -> dict[str, str]:
        """Names of the second run by those of the first."""
        return {**self.names, **shown_fusions(self.fusions)}


def shown_fusions(fusions: Iterable[Fusion]) -> dict[str, str]:
    """Names of the second run by those of the first, where several belong to one."""
    pairs = ((", ".join(fusion.parts), fusion.name, fusion.in_b) for fusion in fusions)
    return {(parts if in_b else name): (name if in_b else parts) for parts, name, in_b in pairs}


def given_names(texts: Iterable[str]) -> tuple[GivenName, ...]:
    """Parse the values of the option. Raises BadOption."""
    return tuple(map(_parsed, texts))


def _parsed(text: str) -> GivenName:
    sides = [tuple(name.strip() for name in side.split(",")) for side in text.split("=")]
    if len(sides) != 2 or not all(name for side in sides for name in side):
        raise BadOption(OPTION, text, "OLD=NEW, a name in the first run and its name in the second")
    a, b = sides
    if min(len(a), len(b)) > 1:
        raise BadOption(OPTION, text, "one name on one side at least")
    if len({name.count("*") for name in (*a, *b)}) > 1:
        raise BadOption(OPTION, text, "as many * in each name, as * stands for the same text in all of them")
    return GivenName(text, a, b)


def matches_of(
    given: Iterable[GivenName], a: StepOperations, b: StepOperations, roots: Mapping[str, str]
) -> tuple[Match, ...]:
    """What given names match in the first step of two runs. `roots` are the outermost modules of `b` by those of `a`.

    Raises BadOption for a name that matches nothing, and for parameters of other sizes.
    """
    runs = _Run(a), _Run(b)
    return tuple(_match(name, *runs, roots) for name in given)


class _Run:
    """The paths of modules and variables of a step, and the sketches of its variables."""

    def __init__(self, step: StepOperations) -> None:
        self.sketches: dict[str, Sketch] = {}
        self.paths: dict[str, None] = {}
        self._behind_root: dict[str, list[str]] = {}
        for operation in step.operations:
            if operation.name == INPUT:
                continue
            for path in reversed([*paths_above(operation.module)]):
                self.paths[path] = None
            if operation.phase == BEFORE:
                self.sketches[operation.module] = step.values[operation.outputs[0]]
            elif is_of_variable(operation) and operation.outputs:
                self.sketches.setdefault(operation.module, step.values[operation.outputs[0]])
        for path in self.paths:
            self._behind_root.setdefault(path.partition(".")[2], []).append(path)

    def matching(self, pattern: str) -> Iterator[tuple[str, Names]]:
        """The paths that match a pattern with or without their outermost module, each with the text of each `*`."""
        expression = re.compile("(.+)".join(map(re.escape, pattern.split("*"))))
        for path in self.paths:
            for text in (path, path.partition(".")[2]):
                matched = expression.fullmatch(text)
                if matched:
                    yield path, matched.groups()

    def named(self, pattern: str, stars: Names, root: str) -> str | None:
        """The path of a pattern with these texts. If several have it behind their outermost module, that of `root`."""
        name = "".join(part + star for part, star in zip(pattern.split("*"), (*stars, ""), strict=True))
        if name in self.paths:
            return name
        others = self._behind_root.get(name, ())
        return next((path for path in others if path.partition(".")[0] == root), next(iter(others), None))

    def near(self, pattern: str) -> str:
        """Names that are similar to a pattern, for an error."""
        candidates: dict[str, None] = {}
        for path in self.paths:
            for text in (path.partition(".")[2], path):
                candidates[re.sub(r"(?<![^.])\d+(?![^.])", "*", text) if "*" in pattern else text] = None
        similar = get_close_matches(pattern, candidates, MOST_NEAR, cutoff=0.5)
        return f", such as {', '.join(similar)}" if similar else ""


def paths_above(name: str) -> Iterator[str]:
    """A path, and the paths of the modules around it."""
    while name:
        yield name
        name = name.rpartition(".")[0]


def _match(given: GivenName, a: _Run, b: _Run, roots: Mapping[str, str]) -> Match:
    for patterns, run, other, number in ((given.a, a, b, "first"), (given.b, b, a, "second")):
        for pattern in patterns:
            if next(run.matching(pattern), None) is None:
                swapped = ". It is a name in the other run: the first run comes first"
                hint = swapped if next(other.matching(pattern), None) is not None else run.near(pattern)
                raise BadOption(OPTION, given.text, f"a name in the {number} run in place of {pattern!r}{hint}")
    own, other, whole, parts = (b, a, given.b[0], given.a) if len(given.a) > 1 else (a, b, given.a[0], given.b)
    other_roots = {old: new for new, old in roots.items()} if own is a else roots
    names: dict[str, str] = {}
    fusions: dict[str, Fusion] = {}
    for path, stars in own.matching(whole):
        root = other_name(path.partition(".")[0], other_roots)
        matched = tuple(name for part in parts if (name := other.named(part, stars, root)) is not None)
        if len(matched) < len(parts):
            continue
        if len(parts) > 1:
            fusions.update((fusion.name, fusion) for fusion in _fusions(path, matched, own, other, in_b=own is a))
        elif (path in own.sketches) == (matched[0] in other.sketches):
            names.setdefault(matched[0], path)
    if not names and not fusions:
        raise BadOption(OPTION, given.text, _expected_pair(given, a, b))
    for new, old in names.items():
        _check_sizes(given, (old,), (new,), a, b)
    for fusion in fusions.values():
        whole_name = (fusion.name,)
        own_names, other_names = (whole_name, fusion.parts) if fusion.in_b else (fusion.parts, whole_name)
        _check_sizes(given, own_names, other_names, a, b)
    return Match(given.text, names, tuple(fusions.values()))


def _fusions(path: str, parts: Names, own: _Run, other: _Run, *, in_b: bool) -> Iterator[Fusion]:
    """The parameter `path` and its parts, or the parameters of the modules with these names."""
    if path in own.sketches and all(part in other.sketches for part in parts):
        yield Fusion(path, parts, in_b)
    for name in own.sketches:
        module, _, last = name.rpartition(".")
        matched = tuple(f"{part}.{last}" for part in parts)
        if module == path and all(part in other.sketches for part in matched):
            yield Fusion(name, matched, in_b)


def _expected_pair(given: GivenName, a: _Run, b: _Run) -> str:
    examples = [next(run.matching(names[0]))[0] for names, run in ((given.a, a), (given.b, b))]
    same = "the same text for *" if "*" in given.text else "two modules or two parameters"
    return f"names with {same} in both runs; {given.a[0]!r} matches {examples[0]}, {given.b[0]!r} matches {examples[1]}"


def _check_sizes(given: GivenName, own: Names, other: Names, a: _Run, b: _Run) -> None:
    """Raise BadOption if variables cannot be the same, as they have other numbers of elements."""
    sketches = [[run.sketches[name] for name in names if name in run.sketches] for run, names in ((a, own), (b, other))]
    if not all(sketches) or _sizes(sketches[0]) & _sizes(sketches[1]):
        return
    texts = [
        f"{name} has {'x'.join(map(str, sketch.shape)) or '1'}"
        for names, run in zip((own, other), sketches, strict=True)
        for name, sketch in zip(names, run, strict=True)
    ]
    raise BadOption(OPTION, given.text, f"parameters with as many elements in both runs; {', '.join(texts)}")


def _sizes(sketches: Sequence[Sketch]) -> set[int]:
    """How many elements variables may have together."""
    return {sum(choose(sizes(sketch)) for sketch in sketches) for choose in (min, max)}
