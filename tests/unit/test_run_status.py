"""The status of a run: findings once each, progress, silent ranks; and missing or deleted folders."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from traincheck.checking import run_status
from traincheck.checking.deployed_rules import RuleCounts
from traincheck.checking.engine import Outcome
from traincheck.checking.notifier import Notifier
from traincheck.checking.outcome_files import save_comparison, save_followed, save_outcome
from traincheck.checking.rank_engine import RankComparison
from traincheck.checking.run_status import Look, Watcher
from traincheck.errors import BookUnreadable, RunFolderEmpty, RunFolderNotFound
from traincheck.invariants.book import Book, write_book
from traincheck.trace.folder import RunFolder
from traincheck.trace.run_notes import Manifest, ProcessNote
from traincheck.vocab.finding import Finding, Violation
from traincheck.vocab.invariant import Invariant
from traincheck.vocab.occasion import Property, Subject
from traincheck.vocab.ranks import DifferingRanks
from traincheck.vocab.run_status import DELETED, ENDED, GOING, KILLED, RESTING, SILENT, STARTING, TRAINING, WAITING

NewInvariant = Callable[..., Invariant]


@dataclass
class Clock:
    now: float = 1000.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Scene:
    """A run folder and a watcher whose clock the test turns."""

    run: RunFolder
    watcher: Watcher
    clock: Clock
    rules: tuple[Invariant, ...] = ()
    outcomes: dict[int, Outcome] = field(default_factory=dict)

    def beat(self, rank: int = 0, steps: int = 1, process: int = 0, size: int = 1, **others: object) -> None:
        note_fields = {
            "windows": steps,
            "seconds": float(steps),
            "cost": {"trace": steps / 100},
            "job": "job",
            **others,
        }
        note = ProcessNote(rank=rank, process=process or 100 + rank, world_size=size, steps=steps, **note_fields)  # type: ignore[arg-type]
        self.run.write_note(note)

    def fails(self, rule: Invariant, rank: int = 0, step: int = 5) -> None:
        outcome = self.outcomes.setdefault(rank, Outcome(rank, 100 + rank, windows=1))
        outcome.tried[rule.id] = RuleCounts(1, 1)
        outcome.violations.append(violation(rule, rank, step))
        save_outcome(self.run.path, outcome)

    def look(self) -> Look:
        return self.watcher.look()

    def states(self) -> list[str]:
        return [rank.state for rank in self.look().status.ranks]


def violation(rule: Invariant, rank: int = 0, step: int = 5, deviating: tuple[int, ...] = ()) -> Violation:
    differing = DifferingRanks(deviating, 2) if deviating else DifferingRanks()
    return Violation(rule, step, rank, 100 + rank, step, "train", 1, None, "", ("w",), 1, (), "", differing)


@pytest.fixture
def scene(tmp_path: Path, new_invariant: NewInvariant) -> Scene:
    rules = (
        new_invariant(),
        new_invariant(
            Property("changes", "parameter.grad"), subject=Subject("torch.autograd.backward"), severity="notice"
        ),
    )
    run = RunFolder.create(tmp_path / "run", Manifest(mode="run", script="train.py"))
    write_book(Book(rules), run.path / "book.jsonl")
    clock = Clock()
    return Scene(run, Watcher(run.path, 60.0, clock), clock, rules)


def test_a_run_is_seen_from_its_beginning_to_its_end(scene: Scene) -> None:
    assert (scene.look().status.state, scene.look().status.ranks) == (GOING, ())
    scene.beat(steps=0, seconds=0.5, windows=0)
    assert scene.states() == [STARTING]
    scene.beat(steps=10, seconds=10.0)
    scene.beat(steps=20, seconds=12.0)
    status = scene.look().status
    (rank,) = status.ranks
    assert (rank.state, rank.steps, status.steps, status.rules, status.checked) == (TRAINING, 20, 20, 2, 0)
    scene.beat(steps=40, seconds=16.0)
    (rank,) = scene.look().status.ranks
    assert rank.steps_per_second == 5.0 and rank.cost == pytest.approx(0.4 / 16.0)
    scene.beat(steps=40, seconds=16.5, ended=True)
    scene.run.update(ended="now", exit_code=0)
    status = scene.look().status
    assert (status.state, status.over, status.exit_code, scene.states()) == (ENDED, True, 0, [ENDED])


def test_each_finding_is_reported_once_across_processes(scene: Scene) -> None:
    error, notice = scene.rules
    scene.beat(0, size=2)
    scene.beat(1, size=2)
    scene.fails(error, rank=1)
    (finding,) = scene.look().findings
    assert (finding.severity, finding.rank, finding.step) == ("error", 1, 5)
    scene.fails(error, rank=0, step=9)
    scene.fails(error, rank=1, step=10)
    assert scene.look().findings == ()
    scene.fails(notice, rank=0, step=90)
    (finding,) = scene.look().findings
    assert finding.severity == "notice"
    status = scene.look().status
    assert (status.errors, status.notices, status.checked) == (1, 1, 2)
    checked = scene.watcher.report()
    assert checked is not None and checked.report.verdict == "errors" and len(checked.report.findings) == 2


def test_findings_about_several_ranks_are_seen(scene: Scene) -> None:
    error, notice = scene.rules
    scene.beat(0, size=2)
    scene.beat(1, size=2)
    of_ranks = Outcome(tried={error.id: RuleCounts(1, 1)}, violations=[violation(error, deviating=(1,))])
    save_followed(scene.run.path, 0, RankComparison(of_ranks, (), "job"))
    (finding,) = scene.look().findings
    assert (finding.ranks, finding.compared) == ((1,), 2)
    of_ranks.violations.append(violation(notice, step=50, deviating=(1,)))
    save_comparison(scene.run.path, 100, RankComparison(of_ranks, (), "job"))  # by rank 0
    assert [finding.severity for finding in scene.look().findings] == ["notice"]
    checked = scene.watcher.report()
    assert checked is not None and len(checked.report.findings) == 2


def test_an_error_right_after_a_notice_is_reported(new_invariant: NewInvariant) -> None:
    """The two are one finding, of which only the notice was reported before."""
    notified: list[Finding] = []
    notifier = Notifier(notified.append)
    notice, error = new_invariant(severity="notice"), new_invariant(Property("changes", "parameter.data"))
    so_far = [violation(notice, step=5)]
    assert notifier.feed(so_far, so_far)
    so_far.append(violation(error, step=6))
    assert notifier.feed(so_far[-1:], so_far)
    assert [(finding.severity, len(finding.invariants)) for finding in notified] == [("notice", 1), ("error", 2)]
    so_far.append(violation(error, step=7))
    assert not notifier.feed(so_far[-1:], so_far) and len(notified) == 2


def test_only_files_that_have_changed_are_read(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    for rank in range(8):
        scene.beat(rank, size=8)
    scene.fails(scene.rules[0])
    read: list[str] = []

    def counted(function: Callable[..., object]) -> Callable[..., object]:
        def reading(path: Path, *others: object) -> object:
            read.append(path.name)
            return function(path, *others)

        return reading

    for name in ("from_json", "read_outcome", "read_comparison", "read_book"):
        monkeypatch.setattr(run_status, name, counted(getattr(run_status, name)))
    scene.look()
    assert len(read) == 11
    read.clear()
    scene.look()
    assert read == []
    scene.beat(3, size=8)  # the same bytes, another file
    scene.look()
    assert read == ["process-3-103.json"]


def test_silence_and_recovery_are_reported(scene: Scene) -> None:
    for rank in (0, 1):
        scene.beat(rank, size=2)
    scene.look()
    scene.clock.now += 50
    scene.beat(0, steps=2, size=2)
    assert scene.states() == [TRAINING, TRAINING]
    scene.clock.now += 20
    scene.beat(0, steps=2, size=2, seconds=70.0)  # it lives, and no window came
    status = scene.look().status
    assert [rank.state for rank in status.ranks] == [TRAINING, SILENT]
    assert [rank.rank for rank in status.silent] == [1] and status.silent[0].silent == pytest.approx(70, abs=5)
    scene.clock.now += 50
    scene.beat(0, steps=2, size=2, seconds=120.0)
    scene.beat(1, steps=2, size=2)
    assert scene.states() == [RESTING, TRAINING]


def test_a_run_that_gave_no_sign_for_very_long_is_taken_for_killed(scene: Scene) -> None:
    scene.beat(0, size=2)
    scene.beat(1, size=2, ended=True)
    scene.look()
    scene.clock.now += 599
    assert scene.look().status.state == GOING
    scene.clock.now += 10
    status = scene.look().status
    assert (status.state, [rank.state for rank in status.ranks]) == (KILLED, [KILLED, ENDED])


def test_the_age_of_an_old_heartbeat_is_kept(scene: Scene) -> None:
    scene.beat()
    (note,) = scene.run.path.glob("process-*")
    os.utime(note, (10**9, 10**9))
    assert scene.look().status.state == GOING  # it may be the clock of another host
    scene.clock.now += 31
    assert scene.look().status.state == KILLED


def test_a_clock_that_is_behind_does_not_matter(scene: Scene) -> None:
    scene.beat()
    (note,) = scene.run.path.glob("process-*")
    os.utime(note, (10**9, 10**9))
    assert scene.states() == [TRAINING]
    scene.clock.now += 25
    scene.beat(steps=2)
    os.utime(note, (10**9, 10**9))
    scene.look()
    scene.clock.now += 25
    assert scene.states() == [TRAINING]


def test_a_report_under_way_reads_no_recording(scene: Scene) -> None:
    scene.beat(0, steps=9, size=3, ended=True)
    scene.beat(2, steps=8, size=3)
    scene.look()
    (scene.run.path / "events-0-100.arrows").write_text("as large as it may be")
    checked = scene.watcher.report()
    assert checked is not None
    states = [(rank.rank, rank.end, rank.steps) for rank in checked.report.ranks]
    assert states == [(0, "ended", 9), (1, "left no recording", 0), (2, "not ended", 8)]


def test_a_clock_that_is_ahead_does_not_matter(scene: Scene) -> None:
    scene.beat()
    (note,) = scene.run.path.glob("process-*")
    os.utime(note, (2**33, 2**33))
    (rank,) = scene.look().status.ranks
    assert (rank.state, rank.silent) == (TRAINING, 0.0)


def test_launchers_and_workers_are_no_ranks(scene: Scene) -> None:
    scene.beat(0, steps=0, process=50, size=1, job="")  # the launcher
    scene.beat(0, size=2)
    scene.beat(1, size=2)
    scene.beat(1, steps=0, process=60, size=2)  # a worker of its data loader
    assert [rank.process for rank in scene.look().status.ranks] == [100, 101]
    scene.clock.now += 70
    scene.beat(0, size=2)
    scene.beat(1, size=2)
    assert scene.look().status.silent == ()


def test_a_rank_that_was_started_again_is_not_silent(scene: Scene) -> None:
    scene.beat(0, process=10, job="job-0")
    scene.look()
    scene.clock.now += 70
    assert scene.states() == [SILENT]
    scene.beat(0, process=20, job="job-1", steps=0, windows=0)
    assert [(rank.process, rank.state) for rank in scene.look().status.ranks] == [(20, STARTING)]


def test_a_note_that_is_taken_back_is_of_no_rank(scene: Scene) -> None:
    scene.beat(0, steps=0, process=7)
    scene.look()
    scene.run.withdraw_note(0, 7)
    scene.beat(3, process=7, size=4)
    assert [rank.rank for rank in scene.look().status.ranks] == [3]


@pytest.mark.parametrize("garbage", [b"", b"\x00\xff", b"{", b"[1]", b'{"format": 999}', b'{"format": 1, "rank": "x"}'])
def test_a_garbled_note_is_reported_and_its_last_state_stays(scene: Scene, garbage: bytes) -> None:
    scene.beat(0, size=2)
    scene.beat(1, size=2)
    scene.look()
    (scene.run.path / "process-1-101.json").write_bytes(garbage)
    status = scene.look().status
    assert [rank.rank for rank in status.ranks] == [0, 1]
    assert len(status.unread) == 1 and "process-1-101.json" in status.unread[0]
    assert scene.look().status.unread == status.unread
    scene.beat(1, steps=7, size=2)
    status = scene.look().status
    assert status.unread == () and status.ranks[1].steps == 7


@pytest.mark.parametrize("garbage", [b"", b"{}", b"null", b'{"rank": 0}'])
def test_garbled_outcomes_are_named_and_harm_nothing(scene: Scene, garbage: bytes) -> None:
    scene.beat()
    scene.fails(scene.rules[0])
    (scene.run.path / "live-9-9.json").write_bytes(garbage)
    (scene.run.path / "ranks-9.json").write_bytes(garbage)
    look = scene.look()
    assert len(look.findings) == 1 and len(look.status.unread) == 2
    text = (scene.run.path / "live-0-100.json").read_text().replace('"site":""', '"site":"a:b:c"')
    (scene.run.path / "live-0-100.json").write_text(text)
    assert len(scene.look().status.unread) == 3


def test_a_garbled_run_json_is_named(scene: Scene) -> None:
    (scene.run.path / "run.json").write_text("{")
    scene.beat()
    status = scene.look().status
    assert status.state == GOING and "run.json" in status.unread[0]


def test_a_garbled_book_is_an_error(scene: Scene) -> None:
    with (scene.run.path / "book.jsonl").open("a") as book:
        book.write("{garbled\n")
    with pytest.raises(BookUnreadable):
        scene.look()


def test_the_book_may_come_later_than_the_first_outcome(scene: Scene, tmp_path: Path) -> None:
    aside = tmp_path / "aside.jsonl"
    shutil.move(scene.run.path / "book.jsonl", aside)
    scene.beat()
    scene.fails(scene.rules[0])
    assert scene.look().findings == ()
    shutil.move(aside, scene.run.path / "book.jsonl")
    assert len(scene.look().findings) == 1


def test_a_folder_is_waited_for(tmp_path: Path) -> None:
    watcher = Watcher(tmp_path / "later")
    assert watcher.look().status.state == WAITING
    (tmp_path / "later").mkdir()
    assert watcher.look().status.state == WAITING
    assert watcher.report() is None
    RunFolder.create(tmp_path / "later", Manifest(script="a.py"))
    assert watcher.look().status.state == GOING


def test_a_folder_without_a_run_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RunFolderNotFound):
        Watcher(tmp_path / "file").look()
    with pytest.raises(RunFolderEmpty, match=r"neither run\.json"):
        Watcher(tmp_path).look()


def test_a_deleted_folder_ends_the_status_and_keeps_findings(scene: Scene) -> None:
    scene.beat()
    scene.fails(scene.rules[0])
    scene.look()
    (scene.run.path / "run.json").unlink()  # one file after the other
    assert scene.look().status.state == DELETED
    shutil.rmtree(scene.run.path)
    assert scene.look().status.state == DELETED
    checked = scene.watcher.report()
    assert checked is not None and checked.report.counts.errors == 1
    assert any("no run folder" in reason for reason in checked.report.not_observed)


def test_a_recorded_run_has_a_status_only(tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path / "run", Manifest(mode="collect", script="train.py"))
    run.write_note(ProcessNote(rank=0, process=1, steps=3, windows=3))
    watcher = Watcher(run.path)
    status = watcher.look().status
    assert (status.mode, status.steps, status.rules) == ("collect", 3, 0)
    assert status.ranks[0].cost is None and watcher.report() is None
