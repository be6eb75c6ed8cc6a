"""Compares what two runs of a program print.

The rule is the same for all programs. Of progress bars only what they show at their end is kept. Times, speeds, dates,
addresses in memory and absolute paths are replaced by placeholders, and so are the places that warnings name. Where two
outputs differ, the plain program is compared with itself: a line with its numbers replaced is a *pattern*, and numbers
that differ between two plain runs are not compared in any line of the pattern, nor are lines of a pattern of which two
plain runs have unequal counts. All else must be equal, in order.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_BAR = re.compile(
    r"\d+%\s*\||\|\s*\d+/\d+ \[|\d+(\.\d+)?(it|s|ba|ex\w*|steps?|batch\w*)/(s|it|step)\b.*\]|\[[=>#.\s-]{8,}\]"
)
_NUMBER = r"[-+]?\d[\d,]*\.?\d*(?:[eE][-+]?\d+)?"
_NAME = (
    r"(?<![A-Za-z])(?:times?|runtime|per_second|per second|speed|duration|elapsed|eta|fps|sps|throughput|mfu|sec|ms"
    r"|m?s/(?:batch|it|iter|step|epoch))\b"
)
_MEAN = rf"{_NUMBER} *\( *{_NUMBER}\)"
"""A number and its mean so far, as AverageMeter prints them. Of `Data` it is the time that batches took."""
_RULES = (
    (re.compile(r"[━╸╺╍█▏▎▍▌▋▊▉]{2,} *"), "<bar> "),
    (re.compile(r"\b0x[0-9a-fA-F]{4,}"), "<address>"),
    (
        re.compile(r"\b\d{4}-\d\d-\d\d(?:[T ]\d\d:\d\d(?::\d\d)?(?:[.,]\d+)?)?|\b\d+:\d\d(?::\d\d)?(?:[.,]\d+)?\b"),
        "<date>",
    ),
    (re.compile(r"(?<![\w.])(?:/[\w.@+-]+){2,}/?"), "<path>"),
    (
        re.compile(
            rf"(?i)([\"']?(?:{_NAME}|\bData(?=:? +{_MEAN}))[\"']?(?: ?\([^)]*\))?\s*[:=]?\s*[\"']?)"
            rf"(?:{_MEAN}|{_NUMBER})"
        ),
        r"\1<time>",
    ),
    (re.compile(rf"{_NUMBER} ?[\w]+ ?(?:/|per ) ?(?:s|sec|second)\b"), "<speed>"),
    (re.compile(rf"{_NUMBER} ?(?:ns|us|µs|ms|s|secs?|seconds?|mins?|minutes?|hours?|h|m)\b"), "<time>"),
)
_BAR_END = re.compile(r"^(.*)100%\|[^|]*\| \d+/\d+ \[[^,\]]+, +[^,\]]+, (.*)\]")
_WARNING = re.compile(r"^.*:\d+: (\w*Warning: )")
_LINES_OF_A_WARNING = 3
"""Lines of its text, at most, before the source line that it quotes."""
_PADDING = re.compile(r"(?<=\S) {2,}")
"""Numbers are padded to a width, so how many spaces precede a time depends on the time."""
_DIGITS = re.compile(_NUMBER)


Unsteady = dict[str, "set[int] | None"]
"""By pattern, the positions of the numbers that are not compared; None if its lines are not compared."""


class OutputComparison(NamedTuple):
    """The comparison of two outputs: the first differing lines, and the numbers of compared and of all lines."""

    equal: bool
    compared: int
    lines: int
    expected: str = ""
    got: str = ""


def normalised(text: str) -> list[str]:
    """Return the lines of an output without parts that may differ between equal runs.

    A progress bar may be drawn several times at its end; the last version counts.
    """
    lines: list[str] = []
    warned = 0
    ended = ""  # the name of the bar whose end is the last line kept
    for line in _ESCAPES.sub("", text).split("\n"):
        part = line.rstrip("\r").rsplit("\r", 1)[-1].rstrip()
        quoted = warned > 0 and part.startswith("  ")
        warned = _LINES_OF_A_WARNING if _WARNING.match(part) else 0 if quoted else warned - 1
        shown = _BAR_END.search(part)
        if not part or quoted or (_BAR.search(part) and not shown):
            continue
        if shown and ended == f"bar {shown[1]}":
            lines.pop()
        ended = f"bar {shown[1]}" if shown else ""
        part = shown[2] if shown else part
        part = _WARNING.sub(r"<place>: \1", part)
        for pattern, placeholder in _RULES:
            part = pattern.sub(placeholder, part)
        lines.append(_PADDING.sub(" ", part))
    return lines


def unjoined(lines: Iterable[str], known_lines: Collection[str]) -> list[str]:
    """The lines of several processes, sorted. Two that were printed at once and have become one are split again: a line
    counts as two where both parts are in `known_lines`."""
    heads, whole = sorted(known_lines, key=lambda line: (len(line), line)), frozenset(known_lines)
    return sorted(part for line in lines for part in _parts(line, heads, whole))


def _parts(line: str, heads: Sequence[str], known_lines: frozenset[str]) -> list[str]:
    for head in heads:
        if head and line.startswith(head) and line[len(head) :] in known_lines:
            return [head, *_parts(line[len(head) :], heads, known_lines)]
    return [line]


def pattern(line: str) -> str:
    """The line with its numbers replaced."""
    return _DIGITS.sub("#", line)


def changing_numbers(first: Sequence[str], second: Sequence[str]) -> Unsteady:
    """Return by pattern the positions of differing numbers between two runs of a program.

    None if the runs have different numbers of lines with the pattern.
    """
    ours, theirs = _by_pattern(first), _by_pattern(second)
    positions_of: Unsteady = {}
    for shape in ours.keys() | theirs.keys():
        mine_rows, other = ours.get(shape, []), theirs.get(shape, [])
        if len(mine_rows) != len(other):
            positions_of[shape] = None
        elif mine_rows != other:
            pairs = (pair for rows in zip(mine_rows, other, strict=True) for pair in enumerate(zip(*rows, strict=True)))
            positions_of[shape] = {position for position, (mine, yours) in pairs if mine != yours}
    return positions_of


def merge_unsteady(parts: Iterable[Unsteady]) -> Unsteady:
    """All that differs between any of the runs."""
    merged: Unsteady = {}
    for part in parts:
        for shape, positions in part.items():
            before = merged.get(shape, set())
            merged[shape] = None if before is None or positions is None else before | positions
    return merged


def steady(lines: Sequence[str], ignored: Unsteady) -> list[str]:
    """The lines without the numbers that are not compared, and without the lines that are not compared at all."""
    kept = []
    for line in lines:
        positions = ignored.get(pattern(line), set())
        if positions is not None:
            kept.append(_without(line, positions))
    return kept


def _without(line: str, positions: set[int]) -> str:
    count = itertools.count()
    return _DIGITS.sub(lambda match: "#" if next(count) in positions else match[0], line)


def _by_pattern(lines: Sequence[str]) -> dict[str, list[list[str]]]:
    numbers: dict[str, list[list[str]]] = {}
    for line in lines:
        numbers.setdefault(pattern(line), []).append(_DIGITS.findall(line))
    return numbers


def compare(plain: Sequence[str], observed: Sequence[str], ignored: Unsteady) -> OutputComparison:
    """Return whether all lines are equal in order, except ignored ones."""
    expected, got = steady(plain, ignored), steady(observed, ignored)
    for number in range(max(len(expected), len(got))):
        ours = expected[number] if number < len(expected) else "(end)"
        theirs = got[number] if number < len(got) else "(end)"
        if ours != theirs:
            return OutputComparison(False, len(expected), len(plain), ours, theirs)
    return OutputComparison(True, len(expected), len(plain))


def lost(plain: Sequence[str], observed: Sequence[str], ignored: Unsteady) -> list[str]:
    """Lines of the plain run that the observed one lacks, whatever their order: for stderr, where more is printed."""
    return list(Counter(steady(plain, ignored)) - Counter(steady(observed, ignored)))


def new_warnings(plain: Sequence[str], observed: Sequence[str]) -> list[str]:
    """Lines of the observed run's stderr that warn or complain, and that no plain run has."""
    seen = {pattern(line) for line in plain}
    words = ("Warning:", "Traceback", "Error:", "traincheck: ")
    quiet = ("traincheck: checking against", "traincheck: if this run is as it should be")
    return [
        line
        for line in observed
        if any(word in line for word in words) and pattern(line) not in seen and not line.startswith(quiet)
    ]
