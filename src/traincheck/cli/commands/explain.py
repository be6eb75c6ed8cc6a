"""`traincheck explain`: one invariant at length, or the way of candidates through the inference."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Optional

import typer

from traincheck.cli import flags
from traincheck.cli.commands.infer import workable
from traincheck.cli.console import Progress, amount, columns, out, out_json, remark
from traincheck.errors import BadOption

if TYPE_CHECKING:
    from traincheck.inference.candidate_trace import Followed, Seen
    from traincheck.vocab.finding import Violation
    from traincheck.vocab.invariant import Invariant

EPILOG = """\b
Examples:
  traincheck explain good.jsonl 3f9a0c11d2
  traincheck explain --candidate "zero_grad resets gradients" runs/cnn runs/lstm
  traincheck explain --candidate "zero_grad resets gradients" --journal good.jsonl.journal.jsonl

From runs (or tally files) a candidate is followed through the inference: in which contexts the property held and
failed, which condition was found, what became of it and why. The journal that `traincheck infer` left tells the end of
it, at once and without the runs.
"""

Places = Annotated[
    Optional[list[Path]],  # noqa: UP045
    typer.Argument(
        metavar="BOOK ID|RUN...", help="A book and an id, or run folders and tally files.", show_default=False
    ),
]


def command(
    places: Places = None,
    candidate: flags.Candidate = None,
    journal: flags.JournalRead = None,
    jobs: flags.Jobs = None,
    as_json: flags.AsJson = False,
) -> None:
    """Explain an invariant, or the fate of candidates.

    Given a book and an id: all that is known of that invariant. Given --candidate and run folders or a journal: why the
    candidates that these runs suggested were kept or dropped.
    """
    given = list(places or ())
    if candidate is not None:
        if (journal is None) == (not given):
            raise BadOption("--candidate", candidate, "run folders or --journal FILE to look for it in, one of the two")
        found = in_journal(candidate, journal) if journal is not None else in_runs(candidate, given, jobs)
        raise typer.Exit(tell_candidates(candidate, found, as_json))
    if len(given) != 2 or journal is not None:
        raise BadOption("explain", " ".join(map(str, given)), "BOOK ID, or --candidate TEXT RUN...")
    raise typer.Exit(explain(given[0], str(given[1]), as_json))


# -- an invariant ----------------------------------------------------------------------------------------------------


def explain(path: Path, name: str, as_json: bool = False) -> int:
    """Print all that is known of the invariant `name` (its id, or the unique start of it) of a book."""
    from traincheck.invariants.book import read_book
    from traincheck.invariants.lookup import named

    rule = named(read_book(path), path, name)
    if as_json:
        out_json(data(rule))
        return 0
    out(rule.sentence)
    for line in columns(told(rule)):
        out(line)
    out("")
    for line in meaning(rule):
        out(line)
    if rule.mute:
        out(f"It is not checked. To check it again: traincheck mute {path} {rule.id} --unmute")
    else:
        out(f'If your program is right to break it: traincheck mute {path} {rule.id} --reason "..."')
    return 0


def told(rule: Invariant) -> list[tuple[str, str]]:
    """Label and text of everything about it."""
    from traincheck.inference.candidate_trace import arithmetic

    support = rule.support
    spoken_of = str(rule.experience)
    evidence = f"{amount(support.occasions, 'occasion')} in {amount(support.steps, 'step')}, "
    rows = [
        ("id", rule.id),
        ("relation", rule.relation),
        ("subject", f"{rule.subject.api} (each {rule.subject.grain})"),
        ("property", " ".join(filter(None, rule.property))),
        ("when", str(rule.precondition)),
        ("speaks of", "" if spoken_of == "always" else f"runs as those it was learned from: {spoken_of}"),
        ("severity", rule.severity),
        ("scope", rule.scope),
        ("rests on", f"{evidence}{amount(support.runs, 'run')}, {amount(support.scripts, 'script')}"),
        ("confidence", f"{rule.confidence:.3f}: {arithmetic(rule)}"),
        ("learned from", ", ".join(rule.origin)),
        ("checked on", rule.program),
        ("observes", "; ".join(observed(rule))),
        ("muted", rule.mute),
    ]
    return [(label, text) for label, text in rows if text]


def observed(rule: Invariant) -> list[str]:
    """What must be observed to judge it: the calls, and what of them."""
    from traincheck import plugins
    from traincheck.relations.base import needed
    from traincheck.vocab.demand import ARGUMENTS, CONTENTS, NUMBERS, READINGS, ROWS, TENSORS

    relation = plugins.load("traincheck.relations").get(rule.relation)
    if relation is None:
        return [f"the relation {rule.relation} is not installed here, so it cannot be judged"]
    demand = needed(relation, rule.subject, rule.property)
    said = {ARGUMENTS: "arguments of", TENSORS: "tensors of", READINGS: "readings of"}
    said |= {NUMBERS: "numbers in tensors of", ROWS: "rows in tensors of", CONTENTS: "contents of tensors of"}
    asked: dict[str, list[str]] = {}
    for api, what in sorted(demand.states):
        asked.setdefault(f"{said[what]}" if what in said else f"{what} around", []).append(api)
    calls = [f"calls of {', '.join(sorted(demand.apis))}"] if demand.apis else []
    return [*calls, *(f"{what} {', '.join(apis)}" for what, apis in asked.items())]


def meaning(rule: Invariant) -> Iterator[str]:
    """What it means when the rule is broken, as a finding would say it."""
    from traincheck.checking.causes import cause_of

    cause = cause_of(_broken(rule))
    yield f"What breaks it: {cause.title}"
    yield f"  {cause.cause}"
    yield from (f"  - {advice}" for advice in cause.advice)


def _broken(rule: Invariant) -> Violation:
    """The rule as if it had just been broken, nowhere in particular."""
    from traincheck.vocab.events import NO_CALL, TRAIN
    from traincheck.vocab.finding import Violation

    return Violation(
        rule, step=1, rank=0, process=0, window=0, stage=TRAIN, seq=NO_CALL, site=None, receiver="", variables=()
    )


def data(rule: Invariant) -> dict[str, Any]:
    """The invariant as its line in a book, with what else is known of it."""
    import msgspec

    from traincheck.checking.causes import cause_of
    from traincheck.inference.candidate_trace import arithmetic
    from traincheck.invariants.book_format import InvariantLine

    cause = cause_of(_broken(rule))
    line: dict[str, Any] = msgspec.to_builtins(InvariantLine.of(rule))
    return line | {
        "arithmetic": arithmetic(rule),
        "observes": observed(rule),
        "catches": {"title": cause.title, "cause": cause.cause, "advice": list(cause.advice)},
    }


# -- candidates ------------------------------------------------------------------------------------------------------


def in_runs(candidate: str, runs: Sequence[Path], jobs: int | None = None) -> list[Followed]:
    """Learn from the runs and follow the candidates that `candidate` names."""
    from traincheck.inference.candidate_trace import follow
    from traincheck.inference.learn import learn

    with Progress() as progress:
        learned = learn(runs, progress, workable(jobs, runs))
    for line in learned.remarks:
        remark(line)
    return follow(candidate, learned)


def in_journal(candidate: str, journal: Path) -> list[Followed]:
    """The candidates that `candidate` names, as far as a saved journal knows them."""
    from traincheck.inference.candidate_trace import follow_journal
    from traincheck.inference.journal import Journal

    return follow_journal(candidate, Journal.read(journal))


def tell_candidates(candidate: str, found: Sequence[Followed], as_json: bool) -> int:
    """Print what became of them."""
    if as_json:
        out_json([candidate_data(one) for one in found])
        return 0
    for one in found:
        out(str(one.entry))
        for line in way(one):
            out(f"    {line}")
    if not found:
        remark(f"no candidate says '{candidate}'; nothing in these runs suggested it")
    return 0


def way(one: Followed) -> Iterator[str]:
    """What the journal does not say: the contexts, and how the confidence comes about."""
    from traincheck.inference.candidate_trace import arithmetic

    if one.by is not None:
        condition = "" if one.by.precondition == "always" else f", when {one.by.precondition}"
        yield f"kept is {one.by.id}: {one.by.sentence}{condition}"
    if one.rule is not None:
        yield f"confidence: {arithmetic(one.rule)}"
    if one.seen:
        yield from contexts(one.seen)


MOST_CONTEXTS = 12
"""Lines of contexts for each candidate; those in which it failed come first."""


def contexts(seen: Sequence[Seen]) -> Iterator[str]:
    """A table of the contexts; facts that are the same in all of them are told once."""
    same = set.intersection(*(set(map(_fact, one.context)) for one in seen))
    shared = [text for text in map(_fact, seen[0].context) if text in same]
    yield f"in all {amount(len(seen), 'context')}: {', '.join(shared) or 'nothing is the same'}"
    rows = [("held", "failed", "steps", "runs", "context")]
    for one in seen[:MOST_CONTEXTS]:
        differs = [text for text in map(_fact, one.context) if text not in same]
        rows.append((f"{one.held:,}", f"{one.failed:,}", f"{one.steps:,}", f"{one.runs}", ", ".join(differs) or "-"))
    yield from columns(rows)
    if len(seen) > MOST_CONTEXTS:
        yield f"  and {len(seen) - MOST_CONTEXTS} contexts more"


def _fact(pair: tuple[str, object]) -> str:
    return f"{pair[0]} {pair[1]}"


def candidate_data(one: Followed) -> dict[str, Any]:
    """A candidate as plain data: its entry in the journal, and what was counted where the runs are known."""
    import msgspec

    found: dict[str, Any] = msgspec.to_builtins(one.entry)
    if one.subject is not None and one.property is not None:
        found["subject"], found["property"] = one.subject._asdict(), one.property._asdict()
        found["contexts"] = [
            {
                "context": dict(seen.context),
                "held": seen.held,
                "failed": seen.failed,
                "steps": seen.steps,
                "runs": seen.runs,
            }
            for seen in one.seen
        ]
    if one.by is not None:
        found["implied_by"] = one.by.id
    return found
