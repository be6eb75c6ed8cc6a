"""Rank states: how each rank of a job fared, by itself and beside the others, for the report to show side by side."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from traincheck.checking.rank_engine import Compared
from traincheck.diagnoses.catalogue import diagnose
from traincheck.relations.base import short
from traincheck.trace.folder import Job, RunFolder
from traincheck.trace.run_notes import ProcessNote
from traincheck.vocab.collectives import COLLECTIVE
from traincheck.vocab.finding import ELSEWHERE, ENDED, GOING, KILLED, MISSING, STOPPED, Divergence, RankState, Violation
from traincheck.vocab.invariant import ERROR

WRITING = "trace:"
"""How what a process could not observe begins, where its recording was given up."""

THINGS = {
    "parameter.used_grad": "gradients",
    "parameter.grad": "gradients",
    "parameter.used_data": "parameters",
    "parameter.first_data": "parameters",
    "parameter.data": "parameters",
    "module.batch": "batches",
}
"""What ranks hold of a subject, in a word."""
_KINDS = {"hyperparameter": "settings of the optimizer", "optimizer_state": "state of the optimizer"}


def recorded_ranks(run: RunFolder, notes: Iterable[ProcessNote]) -> tuple[RankState, ...]:
    """How each rank of the jobs of a run fared by itself, by job, then by rank. Raises TraceOutOfReach."""
    by_owner = {(note.rank, note.process): note for note in notes}
    jobs = run.jobs()
    over = bool(jobs) and bool(run.manifest.ended)
    return tuple(_recorded(job, rank, by_owner, over) for job in jobs for rank in range(job.size))


def _recorded(job: Job, rank: int, notes: dict[tuple[int, int], ProcessNote], over: bool) -> RankState:
    file = job.files.get(rank)
    if file is None:
        return RankState(rank, job.name, ELSEWHERE if job.exchange else MISSING, 0, 0, 0)
    note = notes.get((rank, _process(file)))
    given_up = note is not None and any(reason.startswith(WRITING) for reason in note.not_observed)
    if note is not None and note.ended and not given_up:
        return RankState(rank, job.name, ENDED, note.steps, note.windows, note.steps)
    from traincheck.trace.reader import count_windows, last_step  # it takes a while, and few runs need it

    recorded = last_step(file)
    if note is not None and note.ended:
        return RankState(rank, job.name, STOPPED, note.steps, note.windows, recorded)
    end, windows = KILLED if over and note is not None else GOING, count_windows(file)
    if note is not None and note.left_out:  # the recording is in part: how far it came, the note knows better
        recorded, windows = max(recorded, note.steps), max(windows, note.windows)
    return RankState(rank, job.name, end, recorded, windows, recorded)


def _process(file: Path) -> int:
    return int(file.stem.rsplit("-", 1)[1])


def with_comparisons(ranks: Iterable[RankState], compared: Iterable[Compared]) -> tuple[RankState, ...]:
    """The states, with what was found of the ranks side by side."""
    by_job = {one.job: one for one in compared if any(tried.triggered for tried in one.outcome.tried.values())}
    return tuple(_beside_others(state, by_job[state.job]) if state.job in by_job else state for state in ranks)


def _beside_others(state: RankState, compared: Compared) -> RankState:
    if state.end == MISSING:
        return state
    own = [violation for violation in compared.outcome.violations if state.rank in violation.differing.ranks]
    if not own:
        return replace(state, compared=compared.outcome.steps)
    first = min(own, key=_place)
    return replace(state, compared=compared.outcome.steps, apart=first.step, what=what_of(first))


def partings(compared: Sequence[Compared]) -> tuple[Divergence, ...]:
    """Where the ranks of each job first went apart, of those in which they did."""
    found = []
    for one in compared:
        between = [violation for violation in one.outcome.violations if violation.differing.ranks]
        if between:
            first = min(between, key=_place)
            found.append(Divergence(one.job, first.step, what_of(first), *first.differing))
    return tuple(found)


def _place(violation: Violation) -> tuple[object, ...]:
    """What is told first: errors, then the earliest step, then the cause that is nearest to the root."""
    rule = violation.invariant
    return rule.severity != ERROR, violation.step, diagnose(violation).priority, rule.id


def what_of(violation: Violation) -> str:
    """What is not as it should be on several ranks, in a few words."""
    subject, prop = violation.invariant.subject, violation.invariant.property
    if prop.verb == "messages":
        return "messages do not fit"
    kind = subject.api.partition(".")[0]
    other = "collectives" if subject.api.startswith(COLLECTIVE) else f"calls of {short(subject.api)}"
    to_differ = prop.verb == "differs on ranks" or prop.detail == "all distinct"
    return f"{THINGS.get(subject.api) or _KINDS.get(kind, other)} {'are the same' if to_differ else 'differ'}"
