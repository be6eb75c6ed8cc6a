"""Summarizes each rank of a job for the report: how far it came, and whether it agrees with the others."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from traincheck.checking.rank_engine import RankComparison
from traincheck.diagnoses.catalogue import diagnose
from traincheck.relations.base import short
from traincheck.trace.folder import Job, RunFolder
from traincheck.trace.run_notes import ProcessNote
from traincheck.vocab.collectives import COLLECTIVE
from traincheck.vocab.finding import ELSEWHERE, ENDED, GOING, KILLED, MISSING, STOPPED, Divergence, RankState, Violation
from traincheck.vocab.invariant import ERROR
from traincheck.vocab.properties import MESSAGES, expects_difference

WRITING = "trace:"
"""The prefix of the reason in a note if the recording stopped early."""

QUANTITIES = {
    "parameter.used_grad": "gradients",
    "parameter.grad": "gradients",
    "parameter.used_data": "parameters",
    "parameter.first_data": "parameters",
    "parameter.data": "parameters",
    "parameter.replica": "gradients",
    "module.batch": "batches",
}
"""The quantity that ranks hold, by subject."""
_KINDS = {"hyperparameter": "settings of the optimizer", "optimizer_state": "state of the optimizer"}


def recorded_ranks(run: RunFolder, notes: Iterable[ProcessNote]) -> tuple[RankState, ...]:
    """The state of each rank without comparisons, by job, then by rank. Raises TraceOutOfReach."""
    by_owner = {(note.rank, note.process): note for note in notes}
    jobs = run.jobs()
    over = bool(jobs) and bool(run.manifest.ended)
    return tuple(_recorded(job, rank, by_owner, over) for job in jobs for rank in range(job.size))


def _recorded(job: Job, rank: int, notes: dict[tuple[int, int], ProcessNote], over: bool) -> RankState:
    file = job.files.get(rank)
    if file is None:
        return RankState(rank, job.name, ELSEWHERE if job.exchange else MISSING, 0, 0, 0)
    note = notes.get((rank, _process(file)))
    stopped_early = note is not None and any(reason.startswith(WRITING) for reason in note.not_observed)
    if note is not None and note.ended and not stopped_early:
        return RankState(rank, job.name, ENDED, note.steps, note.windows, note.steps)
    from traincheck.trace.reader import count_windows, last_step  # slow to import, and few runs need it

    recorded = last_step(file)
    if note is not None and note.ended:
        return RankState(rank, job.name, STOPPED, note.steps, note.windows, recorded)
    end, windows = KILLED if over and note is not None else GOING, count_windows(file)
    if note is not None and note.left_out:  # a partial recording: the note has the last step
        recorded, windows = max(recorded, note.steps), max(windows, note.windows)
    return RankState(rank, job.name, end, recorded, windows, recorded)


def _process(file: Path) -> int:
    return int(file.stem.rsplit("-", 1)[1])


def with_comparisons(ranks: Iterable[RankState], comparisons: Iterable[RankComparison]) -> tuple[RankState, ...]:
    """The states, with the results of comparing the ranks."""
    by_job = {
        comparison.job: comparison
        for comparison in comparisons
        if any(counts.triggered for counts in comparison.outcome.tried.values())
    }
    return tuple(_with_comparison(state, by_job[state.job]) if state.job in by_job else state for state in ranks)


def _with_comparison(state: RankState, comparison: RankComparison) -> RankState:
    if state.end == MISSING:
        return state
    outcome = comparison.outcome
    own = [violation for violation in outcome.violations if state.rank in violation.differing.ranks]
    if not own:
        return replace(state, compared=outcome.steps)
    first = min(own, key=_order)
    return replace(state, compared=outcome.steps, apart=first.step, what=difference_text(first))


def divergences(comparisons: Sequence[RankComparison]) -> tuple[Divergence, ...]:
    """The first divergence of each job whose ranks diverged."""
    first_of_jobs = []
    for comparison in comparisons:
        between = [violation for violation in comparison.outcome.violations if violation.differing.ranks]
        if between:
            first = min(between, key=_order)
            first_of_jobs.append(Divergence(comparison.job, first.step, difference_text(first), *first.differing))
    return tuple(first_of_jobs)


def _order(violation: Violation) -> tuple[object, ...]:
    """Errors first, then the earliest step, then the diagnosis with the lowest priority number."""
    rule = violation.invariant
    return rule.severity != ERROR, violation.step, diagnose(violation).priority, rule.id


def difference_text(violation: Violation) -> str:
    """The difference between ranks in a few words, such as `gradients differ`."""
    subject, prop = violation.invariant.subject, violation.invariant.property
    if prop.verb == MESSAGES:
        return "messages do not fit"
    kind = subject.api.partition(".")[0]
    other = "collectives" if subject.api.startswith(COLLECTIVE) else f"calls of {short(subject.api)}"
    relation = "are the same" if expects_difference(prop) else "differ"
    return f"{QUANTITIES.get(subject.api) or _KINDS.get(kind, other)} {relation}"
