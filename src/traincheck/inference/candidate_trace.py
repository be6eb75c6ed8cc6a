"""Trace one candidate through the inference, from its counts to its outcome."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from traincheck import plugins
from traincheck.inference.confidence import ERROR_CONFIDENCE, of_support
from traincheck.inference.journal import KEPT, Entry, Journal
from traincheck.inference.learn import Learned
from traincheck.inference.tally import Key, Tally, candidates
from traincheck.vocab.facts import Facts
from traincheck.vocab.invariant import PIPELINE, Invariant
from traincheck.vocab.occasion import Property, Subject


@dataclass(frozen=True, slots=True)
class ContextCounts:
    """The counts of a property in one context, of all runs together; `runs` counts those with this context."""

    context: Facts
    held: int
    failed: int
    steps: int
    runs: int


@dataclass(frozen=True, slots=True)
class CandidateTrace:
    """A candidate: its entry in the journal, its counts in each context, and the rule if it became one.

    `by` is the kept candidate that implies it in the end. Subject and property are None if only the journal is known.
    """

    entry: Entry
    subject: Subject | None = None
    property: Property | None = None
    seen: tuple[ContextCounts, ...] = ()
    rule: Invariant | None = None
    by: Entry | None = None


def trace_in_journal(text: str, journal: Journal, most: int = 10) -> list[CandidateTrace]:
    """The candidates that match `text`, best first, as far as the journal knows them."""
    by_id = {entry.id: entry for entry in journal.entries if entry.id}
    return [CandidateTrace(entry, by=_implying(entry, by_id)) for entry in journal.find(text, most)]


def trace_candidates(text: str, learned: Learned, most: int = 10) -> list[CandidateTrace]:
    """The candidates that match `text`, best first, as `Journal.find` finds them."""
    traces = trace_in_journal(text, learned.journal, most)
    sentences = {(trace.entry.relation, trace.entry.sentence) for trace in traces}
    relations = plugins.load("traincheck.relations")
    candidates_by_sentence: dict[tuple[str, str], list[tuple[Key, Property]]] = {}
    for key, prop in candidates(learned.tallies):
        if key[0] in relations:
            candidate_key = (key[0], relations[key[0]].describe(key[1], prop))
            if candidate_key in sentences:
                candidates_by_sentence.setdefault(candidate_key, []).append((key, prop))
    return [
        _counted(trace, candidates_by_sentence.get((trace.entry.relation, trace.entry.sentence), []), learned)
        for trace in traces
    ]


def _counted(trace: CandidateTrace, matching: Sequence[tuple[Key, Property]], learned: Learned) -> CandidateTrace:
    rule = learned.book.by_id(trace.entry.id) if trace.entry.id else None
    # Two candidates may have one sentence: two libraries may have classes of the same name.
    for (_, subject), prop in matching:
        if rule is None or (rule.subject, rule.property) == (subject, prop):
            seen = evidence(learned.tallies, (trace.entry.relation, subject), prop)
            return replace(trace, subject=subject, property=prop, seen=tuple(seen), rule=rule)
    return replace(trace, rule=rule)


def _implying(entry: Entry, by_id: Mapping[str, Entry]) -> Entry | None:
    """The kept candidate at the end of a chain of implications."""
    visited: set[str] = set()
    while (implied := _IMPLIED.match(entry.reason)) and implied[1] in by_id and implied[1] not in visited:
        visited.add(implied[1])
        entry = by_id[implied[1]]
    return entry if visited and entry.outcome == KEPT else None


_IMPLIED = re.compile(r"implied by (\w+)")


def evidence(tallies: Sequence[Tally], key: Key, prop: Property) -> list[ContextCounts]:
    """The counts of a candidate in each context: those with failures first, then the most frequent ones."""
    counts: dict[Facts, ContextCounts] = {}
    for tally in tallies:
        for context, count in tally.evidence(key, prop):
            old = counts.get(context, ContextCounts(context, 0, 0, 0, 0))
            counts[context] = ContextCounts(
                old.context, old.held + count.held, old.failed + count.failed, old.steps + count.windows, old.runs + 1
            )
    return sorted(counts.values(), key=lambda seen: (-seen.failed, -seen.held, repr(seen.context)))


def arithmetic(rule: Invariant) -> str:
    """The calculation of a rule's confidence, see Note [Confidence]."""
    support = rule.support
    if rule.scope == PIPELINE:
        formula = f"{support.runs} / ({support.runs} + 1) for {support.runs} runs of one pipeline"
    else:
        formula = f"({support.scripts} + 1) / ({support.scripts} + 2) for {support.scripts} scripts, times "
        formula += f"({support.steps} + 1) / ({support.steps} + 2) for {support.steps:,} steps"
    certainty = of_support(support, pipeline=rule.scope == PIPELINE)
    return f"{formula} = {certainty:.3f}; an error takes {ERROR_CONFIDENCE}"
