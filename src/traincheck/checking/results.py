"""Puts the result of a check together: a report, a verdict for each rule, and the outcomes behind both.

A check of a recording (offline.py) ends in `combine`, a check during the training in `result_of_live_run`. `traincheck
report` asks `verdicts_of_run` for the verdicts of a run that was checked earlier.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from traincheck import plugins, redaction
from traincheck.checking.engine import Outcome, demand_of
from traincheck.checking.findings import group
from traincheck.checking.outcome_files import (
    FOLLOWED_FILES,
    PROCESS_FILES,
    RANK_FILES,
    SavedComparison,
    read_comparison,
    read_outcome,
)
from traincheck.checking.rank_engine import RankComparison
from traincheck.checking.rank_states import divergences, recorded_ranks, with_comparisons
from traincheck.checking.verification_tally import merged
from traincheck.errors import InputError, TrainCheckError
from traincheck.invariants import builtin_rules
from traincheck.invariants.book import Book, read_book
from traincheck.invariants.selection import deployable
from traincheck.relations.base import needed
from traincheck.trace.folder import RunFolder
from traincheck.trace.format import BOOK_FILE
from traincheck.trace.run_notes import ProcessNote, recorded_of, untrained_in
from traincheck.vocab.demand import COMPUTATION, EVERYTHING, NOTHING, Demand
from traincheck.vocab.events import MISSING
from traincheck.vocab.finding import (
    NOT_OBSERVED,
    NOT_TRIGGERED,
    PASSED,
    VIOLATED,
    Cost,
    Counts,
    Finding,
    RankState,
    Report,
    Violation,
)
from traincheck.vocab.invariant import ERROR, NOTICE, Invariant
from traincheck.vocab.verification import VerifiedComputation

INSIDE, REPLAYS, OWN_CALLS = "compiled", "replays", "own calls"
"""Notes that begin with these concern only some rules. A compiled region reports its calls as a whole and nothing
inside; a step that cannot be replayed, or a model whose calls cannot be seen, reports everything else as usual."""

FROM_OUTSIDE = frozenset(
    (
        "torch.nn.Module.forward",
        "torch.optim.Optimizer.step",
        "torch.optim.Optimizer.zero_grad",
        "torch.optim.Optimizer.load_state_dict",
        "torch.optim.lr_scheduler.LRScheduler.step",
        "torch.autograd.backward",
    )
)
"""Calls that are recorded even if the model, the optimizer or both are compiled. Rules about these calls are judged."""

Verdicts = tuple[tuple[Invariant, str], ...]
"""Each invariant that was deployed on a run, with its verdict."""


@dataclass(frozen=True)
class CheckResult:
    """A report, the verdict on each invariant, and the outcomes behind both."""

    report: Report
    verdicts: Verdicts
    outcomes: tuple[Outcome, ...]


def combine(
    book: Book,
    rules: Sequence[Invariant],
    outcomes: Sequence[Outcome],
    *,
    unobserved: Mapping[str, str],
    not_observed: Iterable[str] = (),
    dropped: int = 0,
    run: Mapping[str, object] | None = None,
    comparisons: Sequence[RankComparison] = (),
    ranks: Sequence[RankState] = (),
    cost: Cost | None = None,
    verification: tuple[VerifiedComputation, ...] = (),
) -> CheckResult:
    """The result from the outcomes of processes and the comparisons of ranks.

    `rules` are the rules of `book` that were deployed on this program; `unobserved` maps the id of a rule that could
    not be judged to the reason. `ranks` holds the state of each rank of a job, `cost` the overhead of watching,
    `verification` the results of experiments.
    """
    outcomes = [*outcomes, *(comparison.outcome for comparison in comparisons)]
    findings = findings_of(outcomes)
    listed = {rule.id for rule in rules if not builtin_rules.is_always_deployed(rule)}
    judged = [(rule, _verdict(rule, outcomes, unobserved)) for rule in rules]
    verdicts = tuple((rule, verdict) for rule, verdict in judged if verdict == VIOLATED or rule.id in listed)
    counts = _counts(book, verdicts, findings, outcomes, dropped)
    reasons = {
        *not_observed,
        *(reason for comparison in comparisons for reason in comparison.not_compared),
        *(str(absence) for outcome in outcomes for absence in outcome.absences if absence.why != MISSING),
        *(reason for outcome in outcomes for reason in outcome.suspended.values()),
        *(reason for name, reason in unobserved.items() if name in listed),
    }
    untrained = str(run["untrained"]) if run and run.get("untrained") else ""
    report = Report(
        findings,
        replace(counts, steps=0) if untrained else counts,
        # Without findings, the headline says that nothing was trained.
        (*sorted(reasons), *([untrained] if untrained and findings else [])),
        dict(run or {}),
        ranks=with_comparisons(ranks, comparisons),
        divergences=divergences(comparisons),
        cost=cost,
        verification=verification,
    )
    return CheckResult(report, verdicts, tuple(outcomes))


def findings_of(outcomes: Sequence[Outcome]) -> tuple[Finding, ...]:
    """The findings of several outcomes together, the leading one first."""
    violations = [violation for outcome in outcomes for violation in outcome.violations]
    violations.sort(key=_order)
    failed = {
        (violation.invariant.id, violation.process): outcome.failed[violation.invariant.id]
        for outcome in outcomes
        for violation in outcome.violations
        if violation.invariant.id in outcome.failed
    }
    return group(violations, _judged_ranks(outcomes), failed)


# -- runs that were checked while they trained -----------------------------------------------------------------------


def result_of_live_run(folder: Path, book: Book, comparisons: Sequence[RankComparison] = ()) -> CheckResult:
    """The result of a live run from the files of its processes, and the comparisons of its ranks.

    A process without a file (killed before its first finding) counts as not observed. Raises RunFolderError.
    """
    run = RunFolder.open(folder)
    outcomes = [read_outcome(path, book) for path in sorted(run.path.glob(PROCESS_FILES))]
    saved = [read_comparison(path, book) for path in sorted(run.path.glob(RANK_FILES))]
    return combine_live(run, book, outcomes, saved, comparisons)


def combine_live(
    run: RunFolder,
    book: Book,
    outcomes: Sequence[Outcome],
    saved: Sequence[SavedComparison],
    comparisons: Sequence[RankComparison] = (),
    ranks: Sequence[RankState] | None = None,
) -> CheckResult:
    """The result of a live run. Raises RunFolderError.

    `outcomes` come from its processes, `saved` from a rank that compared all ranks, `comparisons` from the command that
    started them. The states of the ranks are read from their recordings unless `ranks` has them.
    """
    notes = run.notes()
    reasons = [reason for note in notes for reason in note.not_observed]
    killed = {note.process for note in notes if not note.ended}
    if any(comparison.process in killed for comparison in saved):
        reasons.append("the rank that compares the others was killed: the last steps may be missing")
    if any(note.exchange for note in notes) and not saved:
        where = "look for findings about several ranks in the run folder of that rank"
        reasons.append(f"rank 0, or a rank that took over from it, compares the ranks of this job: {where}")
    if run.manifest.deleted:
        reasons.append("the run folder was deleted while the program ran: its contents are lost")
    elif not outcomes:
        reasons.append("no training was observed: the program did not import torch, or ended before its first step")
    rules = deployable(book.invariants, run.manifest.script)
    return combine(
        book,
        rules,
        outcomes,
        unobserved=unobserved(rules, recorded_demand(run), notes),
        not_observed=reasons,
        dropped=sum(note.dropped for note in notes),
        run=run_facts(run, notes),
        comparisons=[*comparisons, *(comparison.comparison for comparison in saved)],
        ranks=recorded_ranks(run, notes) if ranks is None else ranks,
        cost=cost_of(notes),
        verification=verification_of(notes),
    )


def verdicts_of_run(folder: Path) -> Verdicts:
    """The verdicts of a run that was checked earlier; none if its folder does not hold them any more."""
    with suppress(TrainCheckError):
        run = RunFolder.open(folder)
        if (run.path / BOOK_FILE).is_file():
            book = read_book(run.path / BOOK_FILE)
            outcomes = _readable(run.path, PROCESS_FILES, book, read_outcome)
            saved = _readable(run.path, RANK_FILES, book, read_comparison)
            followed = _readable(run.path, FOLLOWED_FILES, book, read_comparison)
            trained = [outcome for outcome in outcomes if outcome.windows]
            return combine_live(
                run, book, trained, saved, [saved_comparison.comparison for saved_comparison in followed], ranks=()
            ).verdicts
    return ()


_Saved = TypeVar("_Saved")


def _readable(folder: Path, pattern: str, book: Book, read: Callable[[Path, Book], _Saved]) -> list[_Saved]:
    results = []
    for path in sorted(folder.glob(pattern)):
        with suppress(InputError):
            results.append(read(path, book))
    return results


# -- facts about the run ---------------------------------------------------------------------------------------------


def recorded_demand(run: RunFolder) -> Demand:
    """The demand under which the run was recorded."""
    if run.manifest.mode == "collect":
        return EVERYTHING
    book = run.path / BOOK_FILE
    try:
        return demand_of(deployable(read_book(book).invariants, run.manifest.script)) if book.is_file() else EVERYTHING
    except InputError:
        return EVERYTHING  # recorded by hand or by an older version: nothing says that less was recorded


def unobserved(rules: Sequence[Invariant], recorded: Demand, notes: Sequence[ProcessNote]) -> dict[str, str]:
    """The invariants (by id) that this run could not judge, with the reason."""
    missing = {reason.split(":", 1)[0] for note in notes for reason in note.not_observed}
    faulty = sorted(missing - {INSIDE, REPLAYS, OWN_CALLS})
    reasons: dict[str, str] = {}
    if recorded.everything and not missing:
        return reasons
    relations = plugins.load("traincheck.relations", {rule.relation for rule in rules})
    for rule in rules:
        relation = relations.get(rule.relation)
        demand = NOTHING if relation is None else needed(relation, rule.subject, rule.property)
        if not recorded.covers(demand):
            reasons[rule.id] = "recorded selectively, for other invariants"
        elif faulty:
            reasons[rule.id] = f"a source did not observe: {', '.join(faulty)}"
        elif INSIDE in missing and not demand.calls <= FROM_OUTSIDE:
            reasons[rule.id] = "compiled code is not observed inside"
        elif REPLAYS in missing and demand.takes_readings(COMPUTATION):
            reasons[rule.id] = "models or optimizers could not be replayed"
    return reasons


def cost_of(notes: Sequence[ProcessNote]) -> Cost | None:
    """The overhead of watching in the processes that trained, None if no note has it."""
    trained = [note for note in notes if note.steps and note.seconds]
    if not trained:
        return None
    longest = max(trained, key=lambda note: note.steps)
    sources: Counter[str] = Counter()
    background: Counter[str] = Counter()
    for note in trained:
        sources.update(note.cost)
        background.update(note.background)
    seconds = sum(note.seconds for note in trained)
    return Cost(longest.steps, longest.watched, seconds, dict(sources), dict(background))


def verification_of(notes: Sequence[ProcessNote]) -> tuple[VerifiedComputation, ...]:
    """The results of experiments in all processes. Ranks with a model of the same name share a row."""
    return merged(row for note in notes for row in note.verified)


def run_facts(run: RunFolder, notes: Sequence[ProcessNote]) -> Mapping[str, object]:
    """The facts about the run itself in a report."""
    manifest = run.manifest
    recorded, untrained = recorded_of(notes), untrained_in(notes)
    return {
        "folder": redaction.text(str(run.path)),
        "script": manifest.script,
        "mode": manifest.mode,
        "started": manifest.started,
        "ended": manifest.ended,
        "exit_code": manifest.exit_code,
        "traincheck": manifest.traincheck,
        "python": manifest.python,
        "torch": next((note.torch for note in notes if note.torch), manifest.torch),
        "processes": len(notes),
        **({"full": full} if (full := sorted({span for note in notes for span in note.full})) else {}),
        **({"recorded": recorded} if recorded else {}),
        **({"untrained": untrained} if untrained else {}),
        "crashed": [f"rank {note.rank}, process {note.process}" for note in notes if not note.ended],
    }


# -- verdicts and counts ---------------------------------------------------------------------------------------------


def _judged_ranks(outcomes: Iterable[Outcome]) -> dict[str, frozenset[int]]:
    """By the id of a rule: the ranks on which it was judged at all."""
    judged: dict[str, set[int]] = {}
    for outcome in outcomes:
        for name, tried in outcome.tried.items():
            if tried.triggered:
                judged.setdefault(name, set()).add(outcome.rank)
    return {name: frozenset(ranks) for name, ranks in judged.items()}


def _order(violation: Violation) -> tuple[object, ...]:
    return (violation.window, violation.rank, violation.process, violation.seq, violation.invariant.id)


def _verdict(rule: Invariant, outcomes: Iterable[Outcome], unobserved: Mapping[str, str]) -> str:
    trials = [
        (outcome.tried[rule.id], rule.id in outcome.suspended) for outcome in outcomes if rule.id in outcome.tried
    ]
    if any(tried.failed for tried, _ in trials):
        return VIOLATED
    if any(tried.triggered and not suspended for tried, suspended in trials):
        return PASSED
    return NOT_OBSERVED if rule.id in unobserved or any(suspended for _, suspended in trials) else NOT_TRIGGERED


def _counts(
    book: Book, verdicts: Verdicts, findings: Sequence[Finding], outcomes: Sequence[Outcome], dropped: int
) -> Counts:
    by_verdict = Counter(verdict for _, verdict in verdicts)
    return Counts(
        invariants=len(verdicts),
        passed=by_verdict[PASSED],
        violated=by_verdict[VIOLATED],
        not_triggered=by_verdict[NOT_TRIGGERED],
        not_observed=by_verdict[NOT_OBSERVED],
        muted=len(book.invariants) - len(book.active),
        errors=sum(finding.severity == ERROR for finding in findings),
        notices=sum(finding.severity == NOTICE for finding in findings),
        steps=max((outcome.steps for outcome in outcomes), default=0),
        windows=sum(outcome.windows for outcome in outcomes),
        windows_dropped=dropped,
        processes=sum(outcome.windows > 0 for outcome in outcomes),
    )
