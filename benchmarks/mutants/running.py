"""Runs a clean program and its mutants, and judges what TrainCheck reports of them.

Note [Three settings]
`packs`: the packs alone, as a new user has them. `packs and experiments`: with them, steps are verified
(`--verify-every`). `own`: the packs, and a book of three earlier good runs of the clean
program with other seeds, one of them longer. Both judge the same recordings. Where a program is mutated, the own book
also judges a clean run of it with another batch size.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.corpus.running import TIMEOUT, CorpusProgram, PlainRun, record
from benchmarks.detection import warm
from benchmarks.detection.judging import WITHIN, violated
from benchmarks.detection.recordings import Program, ProgramFailed
from benchmarks.mutants.effects import Effect, first_difference, is_plausible, read_effects, watch
from benchmarks.mutants.operator import Operator
from benchmarks.mutants.places import Tree, edited_classes, judge_place, read_trees, watch_modules
from benchmarks.mutants.script import Script
from traincheck.checking.offline import check_folder_against
from traincheck.inference.candidate_selection import select_rules
from traincheck.inference.contradictions import with_contradictions
from traincheck.inference.learn import tally_folder
from traincheck.invariants.book import Book, merge_books
from traincheck.invariants.builtin_rules import of_training
from traincheck.invariants.packs import book_of_packs, read_packs
from traincheck.relations.consistent.builtin_rules import of_verification
from traincheck.vocab.finding import Report
from traincheck.vocab.invariant import ERROR

PACKS, EXPERIMENTS, OWN = "packs", "packs and experiments", "own"
OWN_OTHER_BATCH = "own, other batch size"

REFERENCE_RUNS: tuple[tuple[int, float], ...] = ((1000, 1.0), (2000, 1.0), (3000, 1.5))
"""What is added to the seed and multiplies the epochs of the three good runs that the own book is learned from."""

VERIFY_EVERY = 5
"""Steps from one that is verified to the next."""

CRASHED, IMPLAUSIBLE, EQUIVALENT, COUNTED = "crashed", "implausible", "equivalent", "counted"


@dataclass(frozen=True)
class Verdict:
    """What a setting says of a mutant. `late`: steps between the first effect and the first new error. `module`:
    whether it names the module that was edited, see places.py."""

    detected: bool
    late: int | None
    diagnosis: str
    notices: int
    module: str = ""


@dataclass(frozen=True)
class MutantResult:
    """What became of a mutant; `verdicts` by setting, where it counts."""

    operator: str
    variant: int
    outcome: str
    first_effect: int | None = None
    verdicts: Mapping[str, Verdict] = field(default_factory=dict)


@dataclass(frozen=True)
class ProgramResult:
    """A clean program: false alarms by setting (slugs of errors, number of notices), and the results of its mutants.

    With a `problem` there is no result: the program does not run, or, if `untrained`, it learns nothing.
    """

    name: str
    parts: Mapping[str, str]
    problem: str
    seconds: float
    errors: Mapping[str, Sequence[str]] = field(default_factory=dict)
    notices: Mapping[str, int] = field(default_factory=dict)
    mutants: Sequence[MutantResult] = ()
    untrained: bool = False

    def as_data(self) -> dict[str, Any]:
        """As JSON has it."""
        return asdict(self)


@dataclass(frozen=True)
class Options:
    """Where recordings go, the packs to use, whether own books are made, and whether steps are verified."""

    folder: Path
    packs: Path
    own: bool
    verify: bool

    @property
    def verify_every(self) -> int:
        """Steps from one that is verified to the next, 0 for none."""
        return VERIFY_EVERY if self.verify else 0


def run_program(clean: CorpusProgram, mutants: Sequence[tuple[Operator, int]], options: Options) -> ProgramResult:
    """Judge a clean program and the given mutants of it (each an operator and the number of its variant)."""
    began = time.perf_counter()
    program = clean.program
    work = options.folder / program.name
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    try:
        effects, output = read_plain(program, work / "clean")
        if effects is None:
            raise ProgramFailed(program.script, output)
        problem = PlainRun(0, 0.0, output).problem
        if problem:
            return ProgramResult(program.name, clean.parts, problem, time.perf_counter() - began, untrained=True)
        books = _books(clean, options, work)
        run = work / "clean.run"
        code, output = record(program, run, verify_every=options.verify_every)
        if code:
            raise ProgramFailed(f"{program.script}, recorded,", output)
        reports = _reports(run, books)
        failing = {setting: violated(report) for setting, report in reports.items()}
        shutil.rmtree(run, ignore_errors=True)
        if options.own and mutants:
            reports |= _with_other_batch_size(clean, books, run)
        results = [
            _run_mutant(clean, operator, variant, effects, books, failing, work, options)
            for operator, variant in mutants
        ]
        return ProgramResult(
            program.name,
            clean.parts,
            "",
            time.perf_counter() - began,
            {s: [f.identity for f in report.findings if f.severity == ERROR] for s, report in reports.items()},
            {s: sum(f.severity != ERROR for f in report.findings) for s, report in reports.items()},
            results,
        )
    except ProgramFailed as error:
        return ProgramResult(program.name, clean.parts, str(error), time.perf_counter() - began)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _with_other_batch_size(clean: CorpusProgram, books: Mapping[str, Book], run: Path) -> dict[str, Report]:
    """The report on a clean run with another batch size; none where the program does not run or learn with it."""
    size = max(2, clean.batch_size * 5 // 8)
    code, output = record(clean.program, run, ("--batch-size", str(size), "--seed", str(clean.seed % 100 + 4000)))
    reports = (
        {} if code or PlainRun(0, 0.0, output).problem else {OWN_OTHER_BATCH: _reports(run, {OWN: books[OWN]})[OWN]}
    )
    shutil.rmtree(run, ignore_errors=True)
    return reports


def read_plain(program: Program, out: Path) -> tuple[dict[int, list[Effect]] | None, str]:
    """What a plain run computes, by rank, None where it fails; and what it printed."""
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    code, output = warm.run_forked(
        program.script, program.args, program.home, program.ranks, dict(program.env), partial(_watch_all, out), TIMEOUT
    )
    return (None if code else read_effects(out)), output


def _watch_all(out: Path) -> None:
    watch(out)
    watch_modules(out)


def _books(clean: CorpusProgram, options: Options, work: Path) -> dict[str, Book]:
    """The book of each setting. Raises ProgramFailed where a reference run fails."""
    program = clean.program
    packs = merge_books(  # as `traincheck run` deploys them
        [(work / "packs", book_of_packs([read_packs(options.packs)])), (work / "training", Book(of_training()))]
    )
    books = {PACKS: packs}
    if options.verify:
        books[EXPERIMENTS] = merge_books([(work / "packs", packs), (work / "verified", Book(of_verification()))])
    if not options.own:
        return books
    tallies = []
    for added, factor in REFERENCE_RUNS:
        run = work / f"reference-{added}.run"
        seed = clean.seed % 100 + added
        code, output = record(program, run, ("--seed", str(seed), "--epochs", str(round(clean.epochs * factor))))
        if code:
            raise ProgramFailed(f"{program.script} --seed {seed}", output)
        tallies.append(tally_folder(run))
        shutil.rmtree(run, ignore_errors=True)
    own = with_contradictions(select_rules(tallies)[0], packs.active, tallies)  # as `traincheck accept` learns it
    books[OWN] = merge_books([(work / "packs", packs), (work / "own", own)])
    return books


def _reports(run: Path, books: Mapping[str, Book]) -> dict[str, Report]:
    checks = check_folder_against(run, list(books.values()))
    return {setting: check.report for setting, check in zip(books, checks, strict=True)}


def _run_mutant(
    clean: CorpusProgram,
    operator: Operator,
    variant: int,
    effects: Mapping[int, list[Effect]],
    books: Mapping[str, Book],
    failing: Mapping[str, frozenset[str]],
    work: Path,
    options: Options,
) -> MutantResult:
    """Run a mutant plain, and if it counts, recorded; judge it."""
    text = nth_mutant(operator, Script(clean.text), variant)
    home = work / f"{operator.name}.program"
    shutil.copytree(clean.program.home, home, dirs_exist_ok=True)
    (home / clean.program.script).write_text(text)
    program = replace(clean.program, home=home)
    changed, _ = read_plain(program, work / "mutant")
    if changed is None:
        return MutantResult(operator.name, variant, CRASHED)
    steps = [first_difference(effects.get(rank, ()), changed.get(rank, ())) for rank in effects]
    differing = [step for step in steps if step is not None]
    if not differing:
        return MutantResult(operator.name, variant, EQUIVALENT)
    if not all(is_plausible(effects[rank], changed.get(rank, ())) for rank in effects):
        return MutantResult(operator.name, variant, IMPLAUSIBLE)
    run = work / "mutant.run"
    code, _ = record(program, run, verify_every=options.verify_every)
    if code:
        return MutantResult(operator.name, variant, CRASHED)
    first = min(differing)
    place = Place(read_trees(work / "mutant"), edited_classes(clean.text, text), text)
    verdicts = {
        setting: judge(report, failing[setting], first, place) for setting, report in _reports(run, books).items()
    }
    shutil.rmtree(run, ignore_errors=True)
    return MutantResult(operator.name, variant, COUNTED, first, verdicts)


class Place(NamedTuple):
    """Where the error of a mutant is: the trees of its models, the classes that were edited, and its text."""

    trees: list[Tree]
    classes: set[str]
    text: str


def judge(
    report: Report,
    failing: frozenset[str],
    first_effect: int,
    place: Place | None = None,
) -> Verdict:
    """Judge the report on a mutant: errors that the clean run does not have, and when they came.

    `failing` are the rules that the clean run violates. An error before the first effect is in time.
    """
    new = [finding for finding in report.findings if not set(finding.invariants) <= failing]
    errors = [finding for finding in new if finding.severity == ERROR]
    late = min((finding.step - first_effect for finding in errors), default=None)
    return Verdict(
        detected=late is not None and late <= WITHIN,
        late=late,
        diagnosis=errors[0].identity if errors else "",
        notices=len(new) - len(errors),
        module=judge_place(errors[0], *place) if errors and place is not None else "",
    )


def nth_mutant(operator: Operator, script: Script, number: int) -> str:
    """The text of the mutant with this number. Raises ValueError where there are fewer."""
    for index, mutant in enumerate(operator.mutants(script)):
        if index == number:
            return mutant.text
    raise ValueError(f"{operator.name} makes no mutant {number} of this script")
