"""`traincheck diff`: what differs between two books."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from traincheck.cli import flags
from traincheck.cli.console import FINDINGS, amount, out, out_json

if TYPE_CHECKING:
    from traincheck.invariants.book import LearnedRun
    from traincheck.invariants.diff import Changed, Difference
    from traincheck.vocab.invariant import Invariant, Precondition

EPILOG = """\b
Examples:
  traincheck diff last-week.jsonl good.jsonl
  traincheck diff last-week.jsonl good.jsonl --json
  traincheck diff last-week.jsonl good.jsonl --fail-on-change

Exit codes: 0 whether or not they differ, 3 with --fail-on-change when they do, 2 wrong usage, 1 TrainCheck failed.
"""


def command(
    a: flags.BookA, b: flags.BookB, as_json: flags.AsJson = False, fail_on_change: flags.FailOnChange = False
) -> None:
    """Tell what differs between two books.

    Rules that only one of them has, and rules of both whose condition, severity, support or mute is not the same.
    """
    raise typer.Exit(diff(a, b, as_json, fail_on_change))


def diff(a: Path, b: Path, as_json: bool = False, fail_on_change: bool = False) -> int:
    """Print the differences; 3 when there are any and `fail_on_change`."""
    from traincheck.invariants.book import read_book
    from traincheck.invariants.diff import compare

    found = compare(read_book(a), read_book(b))
    if as_json:
        out_json(data(found, str(a), str(b)))
    else:
        for line in lines(found, str(a), str(b)):
            out(line)
    return FINDINGS if fail_on_change and not found.empty else 0


def lines(found: Difference, a: str, b: str) -> Iterator[str]:
    """The differences for people, by relation."""
    relations = {rule.relation for rule in (*found.only_in_a, *found.only_in_b, *(one.a for one in found.changed))}
    for relation in sorted(relations):
        yield relation
        yield from _listed(f"only in {a}", "-", [rule for rule in found.only_in_a if rule.relation == relation])
        yield from _listed(f"only in {b}", "+", [rule for rule in found.only_in_b if rule.relation == relation])
        changed = [one for one in found.changed if one.a.relation == relation]
        if changed:
            yield "  changed"
        for one in changed:
            yield f"    ~ {one.b.id}  {one.b.sentence}"
            yield from (f"        {text}" for text in told(one))
        yield ""
    for book, runs in ((a, found.runs_only_in_a), (b, found.runs_only_in_b)):
        if runs:
            named = ", ".join(f"{run.script} ({amount(run.steps, 'step')})" for run in runs)
            yield f"only {book} was learned from {named}"
    counts = f"{len(found.only_in_a)} only in {a}, {len(found.only_in_b)} only in {b}, {len(found.changed)} changed"
    yield f"{amount(found.same, 'invariant')} the same" if found.empty else f"{counts}, {found.same} the same"


def _listed(title: str, sign: str, rules: list[Invariant]) -> Iterator[str]:
    if rules:
        yield f"  {title}"
    for rule in rules:
        muted = f" (muted: {rule.mute})" if rule.mute else ""
        yield f"    {sign} {rule.id}  {rule.severity}: {rule.sentence}{_when(rule)}{muted}"


def _when(rule: Invariant) -> str:
    condition = str(rule.precondition)
    return "" if condition == "always" else f", when {condition}"


def told(one: Changed) -> Iterator[str]:
    """What changed of a rule, a sentence each."""
    a, b = one.a, one.b
    texts = {
        "condition": f"its condition was: {a.precondition}; now: {b.precondition} (its id was {a.id})",
        "experience": _experience(a.experience, b.experience),
        "severity": f"breaking it was {_article(a.severity)} and is now {_article(b.severity)}",
        "confidence": f"confidence {a.confidence:.3f} -> {b.confidence:.3f}",
        "scope": f"it was {a.scope} and is now {b.scope}",
        "support": f"it rested on {_support(a)}; now on {_support(b)}",
        "origin": _origin(a, b),
        "mute": _mute(a.mute, b.mute),
    }
    return (texts[name] for name in one.what)


def _experience(a: Precondition, b: Precondition) -> str:
    return f"it spoke of runs in which {_said(a)}; now of those in which {_said(b)}"


def _said(experience: Precondition) -> str:
    text = str(experience)
    return "anything may be so" if text == "always" else text


def _article(severity: str) -> str:
    return f"an {severity}" if severity[0] in "aeiou" else f"a {severity}"


def _support(rule: Invariant) -> str:
    support = rule.support
    steps, runs, scripts = amount(support.steps, "step"), amount(support.runs, "run"), amount(support.scripts, "script")
    return f"{amount(support.occasions, 'occasion')} in {steps}, {runs}, {scripts}"


def _origin(a: Invariant, b: Invariant) -> str:
    gone, new = sorted(set(a.origin) - set(b.origin)), sorted(set(b.origin) - set(a.origin))
    told = [f"no more from {', '.join(gone)}"] if gone else []
    told += [f"now from {', '.join(new)}, too"] if new else []
    return "learned " + " and ".join(told)


def _mute(before: str, after: str) -> str:
    if not after:
        return f"it is not muted any more (the reason was: {before})"
    return f"it is muted now: {after}" if not before else f"its mute was: {before}; now: {after}"


def data(found: Difference, a: str, b: str) -> dict[str, Any]:
    """The differences as plain data; rules look as the lines of a book do."""
    import msgspec

    from traincheck.invariants.book_format import InvariantLine

    def line(rule: Invariant) -> Any:
        return msgspec.to_builtins(InvariantLine.of(rule))

    return {
        "a": a,
        "b": b,
        "only_in_a": [line(rule) for rule in found.only_in_a],
        "only_in_b": [line(rule) for rule in found.only_in_b],
        "changed": [{"what": list(one.what), "a": line(one.a), "b": line(one.b)} for one in found.changed],
        "same": found.same,
        "runs_only_in_a": [_run(run) for run in found.runs_only_in_a],
        "runs_only_in_b": [_run(run) for run in found.runs_only_in_b],
    }


def _run(run: LearnedRun) -> dict[str, Any]:
    return {"script": run.script, "digest": run.digest, "steps": run.steps}
