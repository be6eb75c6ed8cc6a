"""Learning: run folders in, a book of invariants and a journal out."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from traincheck import plugins
from traincheck.errors import RunFolderEmpty
from traincheck.inference.confidence import LEAST_STEPS, of_support, severity
from traincheck.inference.journal import DROPPED, KEPT, Entry, Journal
from traincheck.inference.preconditions import Evidence, Inseparable, experience
from traincheck.inference.preconditions import learn as learn_precondition
from traincheck.inference.suppression import suppress
from traincheck.inference.tally import Key, Tally
from traincheck.invariants.book import Book, LearnedRun
from traincheck.trace.folder import RunFolder
from traincheck.vocab.events import Window
from traincheck.vocab.invariant import ERROR, GENERAL, PIPELINE, Invariant, Precondition, Support
from traincheck.vocab.occasion import Property

Progress = Callable[[str, int, int], None]
"""Called with what is being done, how much of it is done and how much there is."""

LIBRARIES = ("torch", "transformers", "accelerate", "lightning", "deepspeed", "parameter", "buffer", "optimizer_state")
"""First parts of names that mean the same in every program; any other is of the user's own code."""


@dataclass(frozen=True)
class Learned:
    """The outcome of one inference."""

    book: Book
    journal: Journal
    seconds: float


def learn(folders: Sequence[Path], progress: Progress | None = None) -> Learned:
    """Learn a book from recorded good runs, in one streaming pass over each.

    The order of `folders` does not matter. Raises RunFolderError for a folder that cannot be read.
    """
    began = time.perf_counter()
    tallies = []
    for number, folder in enumerate(folders):
        if progress:
            progress(f"reading {folder}", number, len(folders))
        tallies.append(tally_folder(folder))
    if progress:
        progress("weighing candidates", len(folders), len(folders))
    tallies.sort(key=lambda tally: (tally.script, tally.digest, tally.steps))
    book, journal = weigh(tallies)
    return Learned(book, journal, time.perf_counter() - began)


def tally_folder(folder: Path) -> Tally:
    """The tally of one run folder (all its processes)."""
    run = RunFolder.open(folder)
    tally = Tally(run.manifest.script, run.manifest.script_digest)
    seen = False
    for _, windows in run.windows():
        seen = tally_windows(windows, tally) or seen
    if not seen:
        raise RunFolderEmpty(folder, "no window was recorded")
    return tally


def tally_windows(windows: Iterable[Window], tally: Tally) -> bool:
    """Add the windows of one process to `tally`; whether there were any."""
    relations = [relation() for relation in plugins.load("traincheck.relations").values()]
    before = tally.windows
    for window in windows:
        tally.add_window(window)
        for relation in relations:
            tally.add_occasions(relation.name, relation.occasions(window), window.index)
    return tally.windows > before


def weigh(tallies: Sequence[Tally]) -> tuple[Book, Journal]:
    """Judge every candidate that the tallies hold."""
    relations = plugins.load("traincheck.relations")
    journal = Journal()
    kept: list[Invariant] = []
    for key, prop in _candidates(tallies):
        sentence = relations[key[0]].describe(key[1], prop)
        habit = relations[key[0]].is_habit(prop)
        rule = _judge(key, prop, sentence, tallies, journal)
        if rule is not None and habit:
            rule = replace(rule, severity=severity(rule.confidence, habit=True))
        if rule is not None:
            kept.append(rule)
    levels = set().union(*(tally.levels for tally in tallies)) if tallies else set()
    rules, implied = suppress(kept, levels)
    for each in implied:
        journal.add(_entry(each.rule, DROPPED, f"implied by {each.by.id}: {each.why}"))
    for rule in rules:
        journal.add(_entry(rule, KEPT, f"confidence {rule.confidence:.3f}, so breaking it is {_named(rule)}"))
    runs = tuple(LearnedRun(tally.script, tally.digest, tally.steps) for tally in tallies)
    return Book(tuple(rules), runs), journal


def _candidates(tallies: Sequence[Tally]) -> Iterator[tuple[Key, Property]]:
    """Every subject with every property that was told of it, in a fixed order."""
    found: set[tuple[Key, Property]] = set()
    for tally in tallies:
        for key, cells in tally.cells.items():
            for cell in cells.values():
                found.update((key, prop) for prop in cell.properties)
    return iter(sorted(found))


def _judge(key: Key, prop: Property, sentence: str, tallies: Sequence[Tally], journal: Journal) -> Invariant | None:
    relation, _ = key
    evidence = [
        Evidence(context, run, count.held, count.failed, count.windows)
        for run, tally in enumerate(tallies)
        for context, count in tally.evidence(key, prop)
    ]
    held, failed = sum(row.held for row in evidence), sum(row.failed for row in evidence)
    runs, steps = len({row.run for row in evidence}), sum(row.windows for row in evidence)

    def drop(why: str, condition: str = "always") -> None:
        journal.add(Entry(relation, sentence, condition, DROPPED, why, runs, steps, held, failed))

    if not held:
        drop("it never held")
        return None
    if all(tally.dull(prop.object) for tally in tallies if prop.object in tally.reach) and any(
        prop.object in tally.reach for tally in tallies
    ):
        drop(f"{prop.object} is dull: it was never seen to return a tensor or to change a state")
        return None
    if _is_taste(prop, tallies):
        drop("this argument never had another value: a matter of configuration")
        return None
    precondition = learn_precondition(evidence)
    if isinstance(precondition, Inseparable):
        drop(str(precondition))
        return None
    selected = [row for row in evidence if precondition.true_in(row.context)]
    support = Support(
        occasions=sum(row.held for row in selected),
        steps=_steps(selected),
        runs=len({row.run for row in selected}),
        scripts=len({_program(tallies[row.run]) for row in selected}),
    )
    if support.steps < LEAST_STEPS:
        drop("seen in a single training step", str(precondition))
        return None
    origin = tuple(sorted({tallies[row.run].script for row in selected}))
    return _rule(key, prop, precondition, experience(selected, precondition), support, sentence, origin)


def _is_taste(prop: Property, tallies: Sequence[Tally]) -> bool:
    """Whether a property is about an argument that had the same value in every call of every run."""
    name, given, _ = prop.detail.partition("=")
    if not given:
        return False
    values: set[object] = set().union(*(tally.arguments.get((prop.object, name), ()) for tally in tallies))
    return len(values) < 2


def _steps(selected: Sequence[Evidence]) -> int:
    """Distinct windows behind the evidence, at the least: contexts of one window must not count twice.

    Which windows two contexts share is not kept, so of each run the context with the most windows counts.
    """
    by_run: dict[int, int] = {}
    for row in selected:
        by_run[row.run] = max(row.windows, by_run.get(row.run, 0))
    return sum(by_run.values())


def _program(tally: Tally) -> tuple[str, str]:
    return (tally.script, tally.digest)


def _rule(
    key: Key,
    prop: Property,
    precondition: Precondition,
    seen: Precondition,
    support: Support,
    sentence: str,
    origin: tuple[str, ...],
) -> Invariant:
    relation, subject = key
    pipeline = not all(name.split(".", 1)[0] in LIBRARIES for name in (subject.api, prop.object))
    certainty = round(of_support(support, pipeline=pipeline), 4)
    return Invariant(
        relation=relation,
        subject=subject,
        property=prop,
        precondition=precondition,
        support=support,
        confidence=certainty,
        severity=severity(certainty),
        scope=PIPELINE if pipeline else GENERAL,
        sentence=sentence,
        origin=origin,
        experience=seen,
    )


def _named(rule: Invariant) -> str:
    return "an error" if rule.severity == ERROR else "a notice"


def _entry(rule: Invariant, fate: str, why: str) -> Entry:
    return Entry(
        relation=rule.relation,
        sentence=rule.sentence,
        precondition=str(rule.precondition),
        fate=fate,
        why=why,
        runs=rule.support.runs,
        steps=rule.support.steps,
        held=rule.support.occasions,
        failed=0,
        id=rule.id,
    )
