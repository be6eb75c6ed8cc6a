"""`traincheck diff`: compare two books."""

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
    """Compare two books.

    It lists rules that only one book has, and rules whose condition, severity, support or mute differs.
    """
    raise typer.Exit(diff(a, b, as_json, fail_on_change))


def diff(a: Path, b: Path, as_json: bool = False, fail_on_change: bool = False) -> int:
    """Print the differences; 3 when there are any and `fail_on_change`."""
    from traincheck.invariants.book import read_book
    from traincheck.invariants.diff import compare

    difference = compare(read_book(a), read_book(b))
    if as_json:
        out_json(data(difference, str(a), str(b)))
    else:
        for line in lines(difference, str(a), str(b)):
            out(line)
    return FINDINGS if fail_on_change and not difference.empty else 0


def lines(difference: Difference, a: str, b: str) -> Iterator[str]:
    """The differences for people, by relation."""
    relations = {
        rule.relation
        for rule in (*difference.only_in_a, *difference.only_in_b, *(change.a for change in difference.changed))
    }
    for relation in sorted(relations):
        yield relation
        yield from _listed(f"only in {a}", "-", [rule for rule in difference.only_in_a if rule.relation == relation])
        yield from _listed(f"only in {b}", "+", [rule for rule in difference.only_in_b if rule.relation == relation])
        changed = [change for change in difference.changed if change.a.relation == relation]
        if changed:
            yield "  changed"
        for change in changed:
            yield f"    ~ {change.b.id}  {change.b.sentence}"
            yield from (f"        {text}" for text in sentences(change))
        yield ""
    for book, runs in ((a, difference.runs_only_in_a), (b, difference.runs_only_in_b)):
        if runs:
            scripts = ", ".join(f"{run.script} ({amount(run.steps, 'step')})" for run in runs)
            yield f"only {book} was learned from {scripts}"
    if difference.empty:
        yield f"{amount(difference.same, 'rule')} the same"
    else:
        only_a, only_b = len(difference.only_in_a), len(difference.only_in_b)
        counts = f"{only_a} only in {a}, {only_b} only in {b}, {len(difference.changed)} changed"
        yield f"{counts}, {difference.same} the same"


def _listed(title: str, sign: str, rules: list[Invariant]) -> Iterator[str]:
    if rules:
        yield f"  {title}"
    for rule in rules:
        muted = f" (muted: {rule.mute})" if rule.mute else ""
        yield f"    {sign} {rule.id}  {rule.severity}: {rule.sentence}{_when(rule)}{muted}"


def _when(rule: Invariant) -> str:
    condition = str(rule.precondition)
    return "" if condition == "always" else f", when {condition}"


def sentences(change: Changed) -> Iterator[str]:
    """One sentence for each change of a rule."""
    a, b = change.a, change.b
    texts = {
        "condition": f"condition {a.precondition} -> {b.precondition} (its id was {a.id})",
        "experience": _experience(a.experience, b.experience),
        "severity": f"severity {a.severity} -> {b.severity}",
        "confidence": f"confidence {a.confidence:.3f} -> {b.confidence:.3f}",
        "scope": f"scope {a.scope} -> {b.scope}",
        "support": f"support {_support(a)} -> {_support(b)}",
        "origin": _origin(a, b),
        "mute": _mute(a.mute, b.mute),
    }
    return (texts[name] for name in change.fields)


def _experience(a: Precondition, b: Precondition) -> str:
    return f"learned from runs with {_runs_with(a)} -> {_runs_with(b)}"


def _runs_with(experience: Precondition) -> str:
    text = str(experience)
    return "any context" if text == "always" else text


def _support(rule: Invariant) -> str:
    support = rule.support
    steps, runs, scripts = amount(support.steps, "step"), amount(support.runs, "run"), amount(support.scripts, "script")
    return f"{amount(support.occasions, 'occasion')} in {steps}, {runs}, {scripts}"


def _origin(a: Invariant, b: Invariant) -> str:
    gone, new = sorted(set(a.origin) - set(b.origin)), sorted(set(b.origin) - set(a.origin))
    parts = [f"no longer from {', '.join(gone)}"] if gone else []
    parts += [f"now also from {', '.join(new)}"] if new else []
    return "learned " + " and ".join(parts)


def _mute(before: str, after: str) -> str:
    if not after:
        return f"no longer muted (the reason was: {before})"
    return f"muted: {after}" if not before else f"reason of the mute: {before} -> {after}"


def data(difference: Difference, a: str, b: str) -> dict[str, Any]:
    """The differences as plain data; rules look as the lines of a book do."""
    import msgspec

    from traincheck.invariants.book_format import InvariantLine

    def line(rule: Invariant) -> Any:
        return msgspec.to_builtins(InvariantLine.of(rule))

    return {
        "a": a,
        "b": b,
        "only_in_a": [line(rule) for rule in difference.only_in_a],
        "only_in_b": [line(rule) for rule in difference.only_in_b],
        "changed": [
            {"what": list(change.fields), "a": line(change.a), "b": line(change.b)} for change in difference.changed
        ],
        "same": difference.same,
        "runs_only_in_a": [_run(run) for run in difference.runs_only_in_a],
        "runs_only_in_b": [_run(run) for run in difference.runs_only_in_b],
    }


def _run(run: LearnedRun) -> dict[str, Any]:
    return {"script": run.script, "digest": run.digest, "steps": run.steps}
