"""Writes what a diagnosis says as a page: for `traincheck explain SLUG`, and for docs/findings."""

from __future__ import annotations

from collections.abc import Iterator

from traincheck.diagnoses.diagnosis import Diagnosis, Match, Patterns
from traincheck.vocab.finding import UNEXPLAINED

FIELDS = {
    "relation": "relation",
    "api": "API",
    "grain": "grain",
    "verb": "property",
    "object": "object",
    "detail": "detail",
    "stage": "stage",
    "note": "note of the violation",
    "evidence": "evidence of the violation",
}
"""The fields of a match, in the words of a page."""


def page(entry: Diagnosis) -> str:
    """The page as Markdown. It ends with a line break."""
    return "\n".join(_lines(entry)) + "\n"


def _lines(entry: Diagnosis) -> Iterator[str]:
    yield from (f"# {entry.title}", "", f"`{entry.slug}`", "")
    yield from ("## What is wrong", "", entry.problem, "")
    yield from ("## What to check first", "")
    yield from (f"{number}. {line}" for number, line in enumerate(entry.advice, 1))
    yield from ("", "## Example", "", "```", entry.example.rstrip(), "```", "")
    yield from ("## Which rules", "")
    yield from _rules(entry)
    yield ""
    yield "If several diagnoses begin in the same step, the one with the lowest priority number leads the finding."
    yield f"This one has {entry.priority}: {_lower(entry.priority_reason)}"
    if entry.stands_alone:
        yield from ("", "TrainCheck always reports it as a finding of its own.")
    if entry.url:
        yield from ("", f"More: {entry.url}")


def _lower(sentence: str) -> str:
    first = sentence.partition(" ")[0]
    is_name = (first.isupper() and len(first) > 1) or first == "TrainCheck"
    return sentence if is_name else sentence[:1].lower() + sentence[1:]


def _rules(entry: Diagnosis) -> Iterator[str]:
    if entry.slug == UNEXPLAINED:
        yield "Every rule that no other diagnosis explains."
        return
    yield "A finding has this diagnosis if its leading rule has (`*` stands for any text):"
    yield ""
    for match in entry.explains:
        yield f"* {_match(match)}"


def _match(match: Match) -> str:
    conditions = [
        f"{word} {_alternatives(getattr(match, field))}" for field, word in FIELDS.items() if getattr(match, field)
    ]
    conditions += ["a setting of one program"] if match.setting else []
    conditions += ["a condition that only code can state"] if match.test else []
    return ", ".join(conditions)


def _alternatives(patterns: Patterns) -> str:
    return " or ".join(f"`{pattern}`" for pattern in ((patterns,) if isinstance(patterns, str) else patterns))
