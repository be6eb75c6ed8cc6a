"""Live comparison of ranks finds the same as an offline one, and reports uncompared steps."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from fake_ranks import learned, wait_for
from traincheck.checking.digests import lean
from traincheck.checking.rank_comparison import Follower, compare_recorded
from traincheck.checking.rank_engine import RankComparison
from traincheck.errors import TraceOutOfReach
from traincheck.runtime.ranks.rank_info import RankInfo, rank_info_of, with_distinct_job
from traincheck.testing.readable_traces import from_text
from traincheck.trace.folder import RunFolder, digest_file
from traincheck.trace.format import DIGESTS
from traincheck.trace.reader import follow_windows
from traincheck.trace.rotation import RotatingWriter
from traincheck.trace.run_notes import Manifest, ProcessNote
from traincheck.trace.segments import segments
from traincheck.trace.writer import TraceWriter
from traincheck.vocab.demand import EVERYTHING
from traincheck.vocab.events import Window
from traincheck.vocab.finding import Finding
from traincheck.vocab.invariant import Invariant

STEPS = 30


def rank_windows(rank: int, steps: int = STEPS, *, since: int = 0) -> list[Window]:
    """A rank that scales its loss by the common factor until it diverges at a step."""
    lines = [f"window setup rank={rank}"]
    for step in range(1, steps + 1):
        factor = 3 if since and step >= since else 2
        lines.append(f"window train step={step} rank={rank}")
        lines.append(f'  project train.scale site=train.py:7:main result={{"value":{factor}}}')
    return from_text("\n".join(lines))


@pytest.fixture(scope="module")
def rules() -> list[Invariant]:
    """Return the rules of good runs in which all ranks scale equally."""
    return list(learned(rank_windows).invariants)


class Job:
    """A run folder with ranks that write on request."""

    def __init__(self, home: Path, size: int = 2, most: int = 0) -> None:
        self.run = RunFolder.create(home / "run", Manifest(script="train.py"))
        self.writers = [RotatingWriter(self.run.path, rank, 100 + rank, most * (1 + rank)) for rank in range(size)]
        self.tellers = [RotatingWriter(self.run.path, rank, 100 + rank, most, DIGESTS) for rank in range(size)]
        for rank in range(size):
            self.run.write_note(ProcessNote(rank=rank, process=100 + rank, world_size=size, job="job"))

    def write(self, ranks: Mapping[int, Sequence[Window]], begin: int = 0, end: int | None = None) -> None:
        for rank, windows in ranks.items():
            for window in windows[begin:end]:
                self.writers[rank].write(window)
                self.tellers[rank].write(lean(window, EVERYTHING))


def seen(compared: Sequence[RankComparison]) -> list[tuple[int, str, int]]:
    return [
        (violation.step, violation.invariant.id, violation.occasions)
        for comparison in compared
        for violation in comparison.outcome.violations
    ]


def test_live_and_offline_findings_agree(tmp_path: Path, rules: list[Invariant]) -> None:
    job, findings = Job(tmp_path), list[Finding]()
    ranks = {0: rank_windows(0), 1: rank_windows(1, since=10)}
    with Follower(job.run, rules, findings.append, pause=0.01) as follower:
        job.write(ranks, 0, 9)
        job.write({0: ranks[0]}, 9, 20)
        time.sleep(0.1)
        assert findings == [], "rank 1 has not come to step 10 yet"
        job.write({1: ranks[1]}, 9, 20)
        wait_for(lambda: findings)
        job.write(ranks, 20)
    assert [finding.step for finding in findings] == [10]
    (recorded,) = compare_recorded(job.run, [rules])
    assert seen(follower.comparisons) == seen(recorded) and len(seen(recorded)) >= STEPS - 9
    assert [comparison.outcome.tried for comparison in follower.comparisons] == [
        comparison.outcome.tried for comparison in recorded
    ]
    assert [comparison.not_compared for comparison in follower.comparisons] == [()]


@pytest.mark.parametrize("since", [0, 280])
def test_recordings_with_gaps_are_compared_outside_the_gaps(tmp_path: Path, rules: list[Invariant], since: int) -> None:
    job, findings = Job(tmp_path, most=160_000), list[Finding]()
    ranks = {0: rank_windows(0, 300), 1: rank_windows(1, 300, since=since)}
    with Follower(job.run, rules, findings.append, pause=0.01):
        for begin in range(0, 301, 50):
            job.write(ranks, begin, begin + 50)
    assert [finding.step for finding in findings] == ([since] if since else [])
    with Follower(job.run, rules, lambda _: None, pause=0.01) as late:  # of the middle it sees nothing
        pass
    (recorded,) = compare_recorded(job.run, [rules])
    for (comparison,) in (late.comparisons, recorded):
        assert {step for step, _, _ in seen([comparison])} <= set(range(since, 301)) and bool(
            seen([comparison])
        ) == bool(since)
        assert comparison.outcome.steps == 300 and not any("only" in reason for reason in comparison.not_compared)
    files = job.run.event_files()
    assert all(1 < len(segments(file)) < 17 for file in files) and len(job.run.removed()) == len(files)
    assert all(len(segments(digest_file(file))) > 1 for file in files)


def test_a_dead_rank_reports_its_last_compared_step(tmp_path: Path, rules: list[Invariant]) -> None:
    job = Job(tmp_path)
    with Follower(job.run, rules, lambda _: None, pause=0.01) as follower:
        job.write({0: rank_windows(0), 1: rank_windows(1, steps=5)})
        with (job.run.path / "events-1-101.arrows").open("ab") as torn:
            torn.write(b"\xff\xff\xff\xff\x10")
    (comparison,) = follower.comparisons
    assert comparison.outcome.steps == 5
    assert comparison.not_compared == (
        "ranks of job job were compared up to step 5: rank 1 recorded no more, others went on",
    )
    (recorded,) = compare_recorded(job.run, [rules])
    assert [comparison.not_compared for comparison in recorded] == [comparison.not_compared]


def test_a_rank_without_a_recording_is_reported(tmp_path: Path, rules: list[Invariant]) -> None:
    job = Job(tmp_path, size=3)
    with Follower(job.run, rules, lambda _: None, pause=0.01) as follower:
        job.write({0: rank_windows(0), 2: rank_windows(2)})
    (comparison,) = follower.comparisons
    assert comparison.not_compared == ("rank 1 of job job left no recording",) and comparison.outcome.steps == STEPS


def test_a_deleted_folder_ends_the_comparison_with_a_message(tmp_path: Path, rules: list[Invariant]) -> None:
    job = Job(tmp_path)
    with Follower(job.run, rules, lambda _: None, pause=0.01) as follower:
        for file in job.run.path.iterdir():
            file.unlink()
        job.run.path.rmdir()
        time.sleep(0.05)
    (comparison,) = follower.comparisons
    assert "ranks were not compared" in comparison.not_compared[0]


def test_a_job_of_one_needs_no_comparison(tmp_path: Path, rules: list[Invariant]) -> None:
    job = Job(tmp_path, size=1)
    with Follower(job.run, rules, lambda _: None, pause=0.01) as follower:
        job.write({0: rank_windows(0)})
    assert follower.comparisons == []


def test_rules_about_one_rank_start_no_thread(tmp_path: Path) -> None:
    before = threading.active_count()
    with Follower(Job(tmp_path).run, [], lambda _: None):
        assert threading.active_count() == before


def test_windows_are_read_while_they_are_written(tmp_path: Path) -> None:
    windows, over, windows_read = rank_windows(0), threading.Event(), list[Window]()
    writer = TraceWriter(tmp_path, 0, 1)
    writer.write(windows[0])
    thread = threading.Thread(target=lambda: windows_read.extend(follow_windows(writer.path, over.is_set, 0.001)))
    thread.start()
    for number, window in enumerate(windows[1:-1], start=2):
        writer.write(window)
        if number % 10 == 0:
            wait_for(lambda number=number: len(windows_read) == number)
    over.set()
    writer.write(windows[-1])
    thread.join(30)
    assert [window.step for window in windows_read][: STEPS - 1] == [window.step for window in windows][: STEPS - 1]
    with pytest.raises(TraceOutOfReach):
        next(follow_windows(tmp_path / "events-1-1.arrows", over.is_set))


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, (0, 1, "")),
        (
            {"RANK": "3", "WORLD_SIZE": "8", "MASTER_PORT": "29500", "TORCHELASTIC_RESTART_COUNT": "1"},
            (3, 8, "29500-1"),
        ),
        ({"RANK": "", "WORLD_SIZE": "many"}, (0, 1, "")),
    ],
    ids=["no launcher", "torchrun", "garbled"],
)
def test_the_launcher_gives_the_rank_of_a_process(environ: dict[str, str], expected: tuple[object, ...]) -> None:
    assert tuple(rank_info_of(environ)) == expected


def test_consecutive_jobs_of_one_name_are_distinguished() -> None:
    """The same port again, or a program that starts its ranks twice; a worker belongs to the process that trains."""

    def note(process: int, job: str, *, ended: bool) -> ProcessNote:
        return ProcessNote(rank=1, process=process, world_size=2, job=job, ended=ended)

    here, first, killed = RankInfo(1, 2, "port"), note(5, "port", ended=True), note(6, "port#2", ended=False)
    assert with_distinct_job(here, []) == here
    assert with_distinct_job(here, [first]).job == "port#2"
    assert with_distinct_job(here, [first, killed], runs=lambda process: False).job == "port#3"
    assert with_distinct_job(here, [first, killed], runs=lambda process: True).job == "port#2"


def test_only_processes_that_trained_are_an_earlier_job(tmp_path: Path) -> None:
    run = Job(tmp_path).run
    assert run.trained_as(1, 7) == (), "nothing is written yet"
    run.write_note(ProcessNote(rank=1, process=8, world_size=2, ended=True))
    run.write_note(ProcessNote(rank=1, process=9, world_size=2, steps=3, ended=True))
    assert [note.process for note in run.trained_as(1, 7)] == [9]
    assert run.trained_as(1, 9) == run.trained_as(0, 7) == ()
    run.write_note(ProcessNote(rank=1, process=10, world_size=1, steps=3, ended=True))
    assert [note.process for note in run.trained_as(1, 7)] == [9], "what is of no job trains as nobody"


def test_a_note_that_is_taken_back_at_this_moment_hides_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process takes its note back when it finds out its rank, perhaps while another looks who trained before it."""
    run = Job(tmp_path).run
    for process in (8, 9):
        run.write_note(ProcessNote(rank=1, process=process, world_size=2, steps=3, ended=True))
    listed = RunFolder._files

    def taken_back_behind(folder: RunFolder, pattern: re.Pattern[str]) -> dict[tuple[int, int], Path]:
        files = listed(folder, pattern)
        folder.withdraw_note(1, 8)
        return files

    monkeypatch.setattr(RunFolder, "_files", taken_back_behind)
    assert [note.process for note in run.trained_as(1, 7)] == [9]
