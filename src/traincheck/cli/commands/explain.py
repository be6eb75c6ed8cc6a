"""`traincheck explain`: a diagnosis, one invariant at length, or the way of candidates through the inference."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Optional

import typer

from traincheck.cli import flags
from traincheck.cli.commands.infer import checked_jobs
from traincheck.cli.console import Progress, amount, columns, out, out_json, remark
from traincheck.errors import BadOption

if TYPE_CHECKING:
    from traincheck.diagnoses.diagnosis import Diagnosis
    from traincheck.inference.candidate_trace import CandidateTrace, ContextCounts
    from traincheck.vocab.demand import Demand
    from traincheck.vocab.finding import Violation
    from traincheck.vocab.invariant import Invariant

EPILOG = """\b
Examples:
  traincheck explain gradients-not-cleared
  traincheck explain good.jsonl 3f9a0c11d2
  traincheck explain --filter "zero_grad resets gradients" runs/cnn runs/lstm
  traincheck explain --filter "zero_grad resets gradients" --journal good.jsonl.journal.jsonl

Every finding shows its diagnosis in brackets, as in [gradients-not-cleared].

With runs (or tally files), TrainCheck follows a candidate through the inference: the contexts in which it held and
failed, the condition, the decision and its reason. The journal that `traincheck infer` left holds the decision only,
but needs no runs.
"""

Arguments = Annotated[
    Optional[list[Path]],  # noqa: UP045
    typer.Argument(
        metavar="DIAGNOSIS|BOOK ID|RUN...",
        help="A diagnosis; a book and an id; or run folders and tally files.",
        show_default=False,
    ),
]


def command(
    arguments: Arguments = None,
    candidate: flags.Candidate = None,
    journal: flags.JournalRead = None,
    jobs: flags.Jobs = None,
    as_json: flags.AsJson = False,
) -> None:
    """Explain a diagnosis, a rule or a candidate.

    Given a diagnosis: the problem, what to check first, and an example. Given a book and an id: everything about that
    invariant. Given --filter and run folders or a journal: why these candidates were kept or dropped.
    """
    paths = list(arguments or ())
    if candidate is not None:
        if (journal is None) == (not paths):
            raise BadOption("--filter", candidate, "run folders or --journal FILE to look for it in, one of the two")
        traces = in_journal(candidate, journal) if journal is not None else in_runs(candidate, paths, jobs)
        raise typer.Exit(print_candidates(candidate, traces, as_json))
    if len(paths) == 1 and journal is None:
        raise typer.Exit(explain_diagnosis(str(paths[0]), as_json))
    if len(paths) != 2 or journal is not None:
        raise BadOption("explain", " ".join(map(str, paths)), "DIAGNOSIS, BOOK ID, or --filter TEXT RUN...")
    raise typer.Exit(explain(paths[0], str(paths[1]), as_json))


# -- a diagnosis -----------------------------------------------------------------------------------------------------


def explain_diagnosis(slug: str, as_json: bool = False) -> int:
    """Print the page of a diagnosis. Raises BadOption for an unknown slug, with those that are similar."""
    from traincheck.diagnoses.catalogue import catalogue
    from traincheck.diagnoses.page import page

    entry = catalogue().get(slug.strip("[]"))
    if entry is None:
        from difflib import get_close_matches

        similar = ", ".join(get_close_matches(slug, catalogue(), cutoff=0.5))
        raise BadOption("explain", slug, f"a diagnosis{f', such as {similar}' if similar else ''}, or BOOK ID")
    if as_json:
        out_json(diagnosis_data(entry))
    else:
        out(page(entry).rstrip())
    return 0


def diagnosis_data(entry: Diagnosis) -> dict[str, Any]:
    """A diagnosis as plain data."""
    return {
        "diagnosis": entry.slug,
        "title": entry.title,
        "cause": entry.problem,
        "advice": list(entry.advice),
        "example": entry.example,
        "priority": entry.priority,
        "priority_reason": entry.priority_reason,
        "stands_alone": entry.stands_alone,
    }


# -- an invariant ----------------------------------------------------------------------------------------------------


def explain(path: Path, name: str, as_json: bool = False) -> int:
    """Print everything about the invariant `name` (its id, or the unique start of it) of a book."""
    from traincheck.invariants.book import read_book
    from traincheck.invariants.lookup import invariant_by_id

    rule = invariant_by_id(read_book(path), path, name)
    if as_json:
        out_json(data(rule))
        return 0
    out(rule.sentence)
    for line in columns(facts_of(rule)):
        out(line)
    out("")
    for line in meaning(rule):
        out(line)
    if rule.mute:
        out(f"It is not checked. To check it again: traincheck mute {path} {rule.id} --unmute")
    else:
        out(f'If your program is right to break it: traincheck mute {path} {rule.id} --reason "..."')
    return 0


def facts_of(rule: Invariant) -> list[tuple[str, str]]:
    """Label and text of each fact about the invariant."""
    from traincheck.inference.candidate_trace import arithmetic
    from traincheck.reporting.phrases import MAX_PROGRAMS, listed

    support = rule.support
    experience = str(rule.experience)
    evidence = f"{amount(support.occasions, 'occasion')} in {amount(support.steps, 'step')}, "
    rows = [
        ("id", rule.id),
        ("relation", rule.relation),
        ("subject", f"{rule.subject.api} (each {rule.subject.grain})"),
        ("property", " ".join(filter(None, rule.property))),
        ("when", str(rule.precondition)),
        ("applies to", "" if experience == "always" else f"runs like those it was learned from: {experience}"),
        ("severity", rule.severity),
        ("scope", rule.scope),
        ("rests on", f"{evidence}{amount(support.runs, 'run')}, {amount(support.scripts, 'script')}"),
        ("confidence", f"{rule.confidence:.3f}: {arithmetic(rule)}"),
        ("learned from", listed(rule.origin, MAX_PROGRAMS)),
        ("checked on", rule.program),
        ("observes", "; ".join(observed(rule))),
        ("muted", rule.mute),
    ]
    return [(label, text) for label, text in rows if text]


def observed(rule: Invariant) -> list[str]:
    """What TrainCheck must observe to judge the invariant: calls, and their values."""
    from traincheck import plugins
    from traincheck.relations.base import needed

    relation = plugins.load("traincheck.relations").get(rule.relation)
    if relation is None:
        return [f"the relation {rule.relation} is not installed here, so it cannot be judged"]
    return list(_parts_of(needed(relation, rule.subject, rule.property)))


def _parts_of(demand: Demand) -> Iterator[str]:
    """The parts of a demand, each as a phrase such as `arguments of torch.relu`."""
    if demand.calls:
        yield f"calls of {', '.join(sorted(demand.calls))}"
    apis: dict[str, list[str]] = {}
    for api, kind in demand.call_values:
        apis.setdefault(f"{_VALUES.get(kind, kind)} of", []).append(api)
    for api, attribute in demand.state_changes:
        apis.setdefault(f"{attribute} around", []).append(api)
    for quantity in (f"{kind}.{attribute}" for kind, attribute in demand.readings):
        apis.setdefault("readings of", []).append(quantity)
    yield from (f"{phrase} {', '.join(sorted(names))}" for phrase, names in sorted(apis.items()))


_VALUES = {"numbers": "numbers in tensors", "rows": "rows in tensors", "contents": "contents of tensors"}


def meaning(rule: Invariant) -> Iterator[str]:
    """The diagnosis of a finding about this invariant."""
    entry = diagnosis_of(rule)
    yield f"If it breaks: {entry.title} [{entry.slug}]"
    yield f"  {entry.problem}"
    yield from (f"  - {advice}" for advice in entry.advice)


def diagnosis_of(rule: Invariant) -> Diagnosis:
    """The diagnosis of a violation of this invariant, as far as the invariant determines it."""
    from traincheck.diagnoses.catalogue import diagnose

    return diagnose(_violation_of(rule))


def _violation_of(rule: Invariant) -> Violation:
    """A violation without a call, variables or notes."""
    from traincheck.vocab.events import NO_CALL, TRAIN
    from traincheck.vocab.finding import Violation

    return Violation(
        rule, step=1, rank=0, process=0, window=0, stage=TRAIN, seq=NO_CALL, site=None, receiver="", variables=()
    )


def data(rule: Invariant) -> dict[str, Any]:
    """The invariant as its line in a book, with its confidence, demand and diagnosis."""
    import msgspec

    from traincheck.inference.candidate_trace import arithmetic
    from traincheck.invariants.book_format import InvariantLine

    entry = diagnosis_of(rule)
    line: dict[str, Any] = msgspec.to_builtins(InvariantLine.of(rule))
    return line | {
        "arithmetic": arithmetic(rule),
        "observes": observed(rule),
        "catches": {
            "diagnosis": entry.slug,
            "title": entry.title,
            "cause": entry.problem,
            "advice": list(entry.advice),
        },
    }


# -- candidates ------------------------------------------------------------------------------------------------------


def in_runs(candidate: str, runs: Sequence[Path], jobs: int | None = None) -> list[CandidateTrace]:
    """Learn from the runs and follow the candidates that `candidate` names."""
    from traincheck.inference.candidate_trace import trace_candidates
    from traincheck.inference.learn import learn

    with Progress() as progress:
        learned = learn(runs, progress, checked_jobs(jobs, runs))
    for line in learned.remarks:
        remark(line)
    return trace_candidates(candidate, learned)


def in_journal(candidate: str, journal: Path) -> list[CandidateTrace]:
    """The candidates that `candidate` names, as far as a saved journal knows them."""
    from traincheck.inference.candidate_trace import trace_in_journal
    from traincheck.inference.journal import Journal

    return trace_in_journal(candidate, Journal.read(journal))


def print_candidates(candidate: str, traces: Sequence[CandidateTrace], as_json: bool) -> int:
    """Print what the inference decided about each candidate."""
    if as_json:
        out_json([candidate_data(trace) for trace in traces])
        return 0
    for trace in traces:
        out(str(trace.entry))
        for line in details(trace):
            out(f"    {line}")
    if not traces:
        remark(f"no candidate says '{candidate}'; nothing in these runs suggested it")
    return 0


def details(trace: CandidateTrace) -> Iterator[str]:
    """What the journal does not hold: the contexts, and the arithmetic of the confidence."""
    from traincheck.inference.candidate_trace import arithmetic

    if trace.by is not None:
        condition = "" if trace.by.precondition == "always" else f", when {trace.by.precondition}"
        yield f"kept is {trace.by.id}: {trace.by.sentence}{condition}"
    if trace.rule is not None:
        yield f"confidence: {arithmetic(trace.rule)}"
    if trace.seen:
        yield from contexts(trace.seen)


MAX_CONTEXTS = 12
"""Lines of contexts for each candidate; those in which it failed come first."""


def contexts(seen: Sequence[ContextCounts]) -> Iterator[str]:
    """A table of the contexts. Facts that are the same in all of them come first, once."""
    same = set.intersection(*(set(map(_fact, row.context)) for row in seen))
    shared = [text for text in map(_fact, seen[0].context) if text in same]
    yield f"in all {amount(len(seen), 'context')}: {', '.join(shared) or 'nothing is the same'}"
    rows = [("held", "failed", "steps", "runs", "context")]
    for row in seen[:MAX_CONTEXTS]:
        differs = [text for text in map(_fact, row.context) if text not in same]
        rows.append((f"{row.held:,}", f"{row.failed:,}", f"{row.steps:,}", f"{row.runs}", ", ".join(differs) or "-"))
    yield from columns(rows)
    if len(seen) > MAX_CONTEXTS:
        yield f"  and {len(seen) - MAX_CONTEXTS} contexts more"


def _fact(pair: tuple[str, object]) -> str:
    return f"{pair[0]} {pair[1]}"


def candidate_data(trace: CandidateTrace) -> dict[str, Any]:
    """A candidate as plain data: its entry in the journal, and what was counted where the runs are known."""
    import msgspec

    record: dict[str, Any] = msgspec.to_builtins(trace.entry)
    if trace.subject is not None and trace.property is not None:
        record["subject"], record["property"] = trace.subject._asdict(), trace.property._asdict()
        record["contexts"] = [
            {
                "context": dict(seen.context),
                "held": seen.held,
                "failed": seen.failed,
                "steps": seen.steps,
                "runs": seen.runs,
            }
            for seen in trace.seen
        ]
    if trace.by is not None:
        record["implied_by"] = trace.by.id
    return record
