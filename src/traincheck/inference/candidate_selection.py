"""Select the candidates in tallies that become rules, and record why the others do not."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence, Set
from itertools import chain
from typing import Any

from traincheck import plugins
from traincheck.inference.confidence import MIN_STEPS, of_support, severity
from traincheck.inference.contexts import Evidence
from traincheck.inference.generalisation import Classes, scope_of
from traincheck.inference.journal import DROPPED, KEPT, Entry, Journal
from traincheck.inference.named_books import elsewhere_of
from traincheck.inference.preconditions import experience
from traincheck.inference.preconditions import learn as learn_precondition
from traincheck.inference.salience import reason_to_skip
from traincheck.inference.suppression import suppress
from traincheck.inference.tally import Key, Tally, candidates
from traincheck.invariants.book import Book, LearnedRun
from traincheck.relations.base import UNKNOWN
from traincheck.vocab.bands import band_of_runs, octave_of
from traincheck.vocab.facts import Facts
from traincheck.vocab.invariant import ERROR, PIPELINE, Invariant, Precondition, Support
from traincheck.vocab.occasion import Property
from traincheck.vocab.program import ProgramIdentity, main_of_name
from traincheck.vocab.properties import ElementSet, set_of, traits_of

MIN_RUNS_OF_A_SETTING = 2
"""A setting from a single run may be meant to vary from run to run, as a seed is."""


def select_rules(tallies: Sequence[Tally], approved: Set[str] = frozenset()) -> tuple[Book, Journal]:
    """Judge every candidate in the tallies, one for each run.

    `approved` are runs that somebody accepted for what is new in them. Where three others agree, what only these runs
    showed belongs to a set as well.
    """
    relations = plugins.load("traincheck.relations")
    journal = Journal()
    levels = {hierarchy for tally in tallies for hierarchy in tally.levels}
    classes = Classes(tallies, levels)
    kept: list[Invariant] = []
    seen: dict[str, frozenset[Facts]] = {}
    sets: set[Key] = set()
    for key, prop in candidates(tallies):
        relation = relations.get(key[0])
        if relation is None:
            continue  # counted where another relation was installed; it cannot be described or checked here
        if traits_of(prop).element_of:
            sets.add(key)
            continue
        try:
            candidate = _Candidate(key, prop, relation, tallies, journal)
        except UNKNOWN:
            continue  # the installed relation does not know this candidate
        rules = list(candidate.settings() if relation.is_setting(prop) else candidate.rules(classes))
        seen.update((rule.id, candidate.bearing_out(rule)) for rule in rules)
        kept.extend(rules)
    for key in sorted(sets):
        with contextlib.suppress(*UNKNOWN):
            kept.extend(_element_sets(key, relations[key[0]], tallies, journal, approved))
    remaining, implied = suppress(kept, levels, relations, seen)
    for implication in implied:
        journal.add(_entry(implication.rule, DROPPED, f"implied by {implication.by.id}: {implication.reason}"))
    for rule in remaining:
        level = "an error" if rule.severity == ERROR else "a notice"
        journal.add(_entry(rule, KEPT, f"confidence {rule.confidence:.3f}, so breaking it is {level}"))
    runs = tuple(LearnedRun(tally.script, tally.digest, tally.steps, tally.program) for tally in tallies)
    return Book(tuple(remaining), runs), journal


class _Candidate:
    """A subject with a property, and how often it held and failed in each context of each run."""

    def __init__(self, key: Key, prop: Property, relation: Any, tallies: Sequence[Tally], journal: Journal) -> None:
        self.relation, self.subject = key
        self.prop = prop
        self.type_of_relation = relation
        self.habit = relation.is_optional_practice(prop)
        self.argument = relation.argument_of(self.subject, prop)
        self.sentence = relation.describe(self.subject, prop)
        self.tallies = tallies
        self.journal = journal
        self.evidence = [
            Evidence(context, run, count.held, count.failed, count.windows, count.seen, count.missed)
            for run, tally in enumerate(tallies)
            for context, count in tally.evidence(key, prop)
        ]

    def rules(self, classes: Classes) -> Iterator[Invariant]:
        """The rule that the evidence supports, if any."""
        if not any(row.held for row in self.evidence):
            self._drop("it never held")
            return
        reason = reason_to_skip(self.prop, self.argument, self.tallies)
        if reason is not None:
            self._drop(reason)
            return
        precondition = learn_precondition(self.evidence)
        if not isinstance(precondition, Precondition):
            self._drop(str(precondition))
            return
        selected = [row for row in self.evidence if precondition.true_in(row.context)]
        support = self._support(selected)
        if support.steps < MIN_STEPS:
            self._drop("seen in a single training step", str(precondition))
            return
        pipeline = scope_of(support) == PIPELINE
        certainty = round(of_support(support, pipeline=pipeline), 4)
        circumstances = experience(selected, precondition, pipeline=pipeline)
        general_circumstances = experience(selected, precondition).clauses
        rule = Invariant(
            relation=self.relation,
            subject=self.subject,
            property=self.prop,
            precondition=precondition,
            support=support,
            confidence=certainty,
            severity=severity(certainty, habit=self.habit),
            scope=scope_of(support),
            sentence=self.sentence,
            origin=self._origin(selected),
            experience=circumstances,
            elsewhere=elsewhere_of(
                self.type_of_relation,
                self.subject,
                self.prop,
                support,
                self._mains(selected),
                Precondition(tuple(clause for clause in general_circumstances if clause not in circumstances.clauses)),
            ),
        )
        doubt = None if pipeline else classes.doubt(rule)
        if doubt is None:
            yield rule
        else:
            self._drop(doubt, str(precondition))

    def settings(self) -> Iterator[Invariant]:
        """A rule for each program whose runs all had this setting."""
        by_script: dict[str, list[Evidence]] = {}
        for row in self.evidence:
            by_script.setdefault(self.tallies[row.run].script, []).append(row)
        for script, rows in sorted(by_script.items()):
            if not any(row.held for row in rows):
                continue  # another program's setting
            if any(row.failed for row in rows):
                self._drop(f"it varied in {script}")
                continue
            support = self._support(rows)
            if support.runs < MIN_RUNS_OF_A_SETTING:
                self._drop(f"seen in one run of {script} only: it may be meant to vary")
                continue
            certainty = round(of_support(support, pipeline=True), 4)
            yield Invariant(
                relation=self.relation,
                subject=self.subject,
                property=self.prop,
                precondition=Precondition(),
                support=support,
                confidence=certainty,
                severity=severity(certainty, habit=self.habit),
                scope=PIPELINE,
                sentence=self.sentence,
                origin=(script,),
                program=script,
            )

    def bearing_out(self, rule: Invariant) -> frozenset[Facts]:
        """The contexts in which `rule` held."""
        return frozenset(row.context for row in self.evidence if row.held and rule.precondition.true_in(row.context))

    def _support(self, selected: Sequence[Evidence]) -> Support:
        return Support(
            occasions=sum(row.held for row in selected),
            steps=_steps(selected),
            runs=len({row.run for row in selected}),
            scripts=len(self._origin(selected)),
        )

    def _origin(self, selected: Sequence[Evidence]) -> tuple[str, ...]:
        return tuple(sorted({self.tallies[row.run].script for row in selected}))

    def _mains(self, selected: Sequence[Evidence]) -> frozenset[str]:
        """The names of the entry modules of the programs."""
        runs = [self.tallies[run] for run in {row.run for row in selected}]
        return frozenset(ProgramIdentity.parse(run.program).main or main_of_name(run.script) for run in runs)

    def _drop(self, reason: str, condition: str = "always") -> None:
        held, failed = sum(row.held for row in self.evidence), sum(row.failed for row in self.evidence)
        runs, steps = len({row.run for row in self.evidence}), _steps(self.evidence)
        self.journal.add(Entry(self.relation, self.sentence, condition, DROPPED, reason, runs, steps, held, failed))


MAX_NEW_SHARE = 0.2
"""The share of elements that may be seen in one run only, where a rule says which ones have to be there."""

MIN_RUNS = 3
"""Runs that have to agree before one that was approved may add to what they showed."""


def _element_sets(
    key: Key, relation: Any, tallies: Sequence[Tally], journal: Journal, approved: Set[str]
) -> Iterator[Invariant]:
    """A rule for each program: it has no elements but those that its runs had, and those that they always had.

    A new run may always show something new. So the runs have to have shown everything: leave one out, and the others
    know all that it had.
    """
    relation_name, subject = key
    by_script: dict[str, dict[int, set[Property]]] = {}
    required: dict[str, set[Property]] = {}
    occasions: dict[str, int] = {}
    bounded: set[str] = set()  # the programs with occasions on which an element may be new
    for run, tally in enumerate(tallies):
        cells = tally.cells.get(key)
        if cells:
            counts = [(prop, count, cell) for cell in cells.values() for prop, count in cell.properties.items()]
            by_script.setdefault(tally.script, {})[run] = {prop for prop, count, _ in counts if count.held}
            always = {prop for prop, count, cell in counts if count.closed - count.sometimes == cell.closed}
            if any(count.held > count.closed for _, count, _ in counts):
                bounded.add(tally.script)
            required[tally.script] = required.get(tally.script, always) & always
            occasions[tally.script] = occasions.get(tally.script, 0) + sum(cell.closed for cell in cells.values())
    for script, runs in sorted(by_script.items()):
        if script not in bounded:
            if not required[script] or _is_left_to_chance(runs.values()):
                continue
            runs = {run: props & required[script] for run, props in runs.items()}
        others = [props for run, props in runs.items() if tallies[run].run not in approved]
        judged = others if len(others) >= MIN_RUNS else list(runs.values())
        if traits_of(min(chain.from_iterable(judged))).least_margin:
            prop, reason = _band(list(runs.values()), judged, script)
        else:
            prop, reason = _set(list(runs.values()), judged, required[script], script)
        sentence = relation.describe(subject, prop)
        if reason:
            journal.add(Entry(relation_name, sentence, "always", DROPPED, reason, len(runs), 0, occasions[script], 0))
            continue
        certainty = round(of_support(Support(0, 0, len(runs), 1), pipeline=True), 4)
        yield Invariant(
            relation=relation_name,
            subject=subject,
            property=prop,
            precondition=Precondition(),
            support=Support(occasions[script], max(tallies[run].steps for run in runs), len(runs), 1),
            confidence=certainty,
            severity=severity(certainty, habit=relation.is_optional_practice(prop)),
            scope=PIPELINE,
            sentence=sentence,
            origin=(script,),
            program=script,
        )


def _set(
    runs: Sequence[set[Property]], judged: Sequence[set[Property]], required: set[Property], script: str
) -> tuple[Property, str]:
    """The set that runs of a program showed, and why it makes no rule, if so. Those in `judged` have to agree."""
    known = frozenset().union(*runs)
    prop, most = set_of(ElementSet(known, frozenset(required))), traits_of(min(known)).most_elements
    if most and len(known) > most:
        return prop, f"it had {len(known)} values in {script}: they follow the progress of a run"
    new = _shown_by_one(judged)
    shown = f"{len(new)} of {len(known)} were seen in one run of {script} only: another may show more"
    return prop, shown if new else ""


MAX_OCTAVES = 12
"""Good runs with a wider range say nothing about a number."""


def _band(runs: Sequence[set[Property]], judged: Sequence[set[Property]], script: str) -> tuple[Property, str]:
    """The band of a number, and why it makes no rule, if so. See Note [How often a good run leaves a band]."""
    element = min(chain.from_iterable(runs))
    traits = traits_of(element)
    octaves = _octaves(judged)
    if len(octaves) < MIN_RUNS:
        prop = Property(traits.element_of, element.object, element.detail)
        return prop, f"seen in {len(octaves)} runs of {script} only: a range takes {MIN_RUNS}"
    band = band_of_runs(_octaves(runs), octaves, traits.least_margin)
    prop = Property(traits.element_of, element.object, str(band))
    wide = band.highest - band.lowest > MAX_OCTAVES
    return prop, f"good runs of {script} show {band.shown}, which is too wide to say anything" if wide else ""


def _octaves(runs: Iterable[set[Property]]) -> list[list[int]]:
    several = ([octave_of(prop.detail) for prop in props] for props in runs)
    return [octaves for some in several if (octaves := [octave for octave in some if octave is not None])]


def _is_left_to_chance(runs: Collection[set[Property]]) -> bool:
    """Whether much of what runs showed was seen in one of them only. Then what all of them showed may be chance."""
    return len(_shown_by_one(runs)) > MAX_NEW_SHARE * len(set().union(*runs))


def _shown_by_one(runs: Iterable[set[Property]]) -> set[Property]:
    """What only one of the runs had."""
    times = Counter(chain.from_iterable(runs))
    return {prop for prop, count in times.items() if count == 1}


def _steps(selected: Sequence[Evidence]) -> int:
    """Distinct windows of the evidence, at the least: contexts of one window must not count twice.

    Sketches show this for each run up to `SKETCH` windows. Beyond that, or without sketches, it is unknown which
    windows two contexts share, so the context with the most windows counts.
    """
    sketches: dict[int, int] = {}
    most: dict[int, int] = {}
    for row in selected:
        sketches[row.run] = sketches.get(row.run, 0) | row.seen
        most[row.run] = max(most.get(row.run, 0), row.windows)
    return sum(max(windows, sketches[run].bit_count()) for run, windows in most.items())


def _entry(rule: Invariant, outcome: str, reason: str) -> Entry:
    return Entry(
        relation=rule.relation,
        sentence=rule.sentence,
        precondition=str(rule.precondition),
        outcome=outcome,
        reason=reason,
        runs=rule.support.runs,
        steps=rule.support.steps,
        held=rule.support.occasions,
        failed=0,
        id=rule.id,
    )
