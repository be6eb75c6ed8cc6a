"""Gathering: run folders and tally files, each run once, whatever the order and the number of processes."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from recorded_runs import training, write_run
from traincheck.errors import RunFolderEmpty, RunFolderNotFound, TallyUnreadable
from traincheck.inference.learn import learn
from traincheck.inference.tally import Tally
from traincheck.inference.tally_files import write_tallies
from traincheck.inference.tally_runs import Gathered, gather, suitable_jobs, tally_folder
from traincheck.invariants.book import write_book
from traincheck.vocab.events import Window
from traincheck.vocab.occasion import Occasion, Property, Subject


@pytest.fixture
def sources(folder: Path) -> list[Path]:
    """Three runs of two programs, one of them on two ranks."""
    ranks = {(0, 1): training(8), (1, 1): training(8, rank=1)}
    return [
        write_run(folder / "a", "a.py", ranks),
        write_run(folder / "b", "b.py", training(5, "Adam")),
        write_run(folder / "again", "b.py", training(5, "Adam"), started="2026-01-02T03:04:06+00:00"),
    ]


def in_bytes(gathered: Gathered) -> bytes:
    write_tallies(gathered.tallies, "gathered")
    return Path("gathered").read_bytes()


def test_order_and_jobs_do_not_matter(sources: list[Path]) -> None:
    expected = in_bytes(gather(sources))
    assert in_bytes(gather(sources[::-1], jobs=2)) == expected
    assert [tally.script for tally in gather(sources).tallies] == ["a.py", "b.py", "b.py"]


def test_tally_files_take_the_place_of_runs(sources: list[Path]) -> None:
    """Single runs, merged runs, and folders mixed with tallies give the same bytes of book and journal."""
    for source in sources:
        write_tallies([tally_folder(source)], f"{source.name}.tally")
    write_tallies(gather(sources[:2]).tallies, "two.tally")
    names = [path.name for path in sources]
    choices = [
        sources,
        [Path(f"{name}.tally") for name in names],
        [Path("again.tally"), Path("two.tally")],
        [sources[1], Path("again.tally"), sources[0]],
    ]
    books = set()
    for choice in choices:
        learned = learn(choice)
        write_book(learned.book, "book")
        learned.journal.write(Path("journal"))
        books.add((Path("book").read_bytes(), Path("journal").read_bytes()))
        assert learned.remarks == ()
    assert len(books) == 1


def test_a_run_that_is_named_twice_counts_once(sources: list[Path], folder: Path) -> None:
    shutil.copytree(sources[0], folder / "elsewhere" / "copy")
    write_tallies(gather(sources[:2]).tallies, "two.tally")
    results = gather([*sources, folder / "elsewhere" / "copy", Path("two.tally"), sources[1]])
    assert in_bytes(results) == in_bytes(gather(sources))
    assert {remark.split(" holds")[0].rsplit("/")[-1] for remark in results.remarks} == {"b", "copy", "two.tally"}
    assert all("counts once" in remark for remark in results.remarks)


def test_a_repetition_of_the_same_program_is_another_run(sources: list[Path]) -> None:
    assert len(gather(sources[1:]).tallies) == 2


def test_an_error_in_one_source_is_raised_at_once(sources: list[Path], folder: Path) -> None:
    read: list[str] = []
    with pytest.raises(RunFolderNotFound):
        gather([*sources, Path("absent")], lambda activity, done, total: read.append(activity))
    (folder / "train.py").write_text("print()\n")
    with pytest.raises(TallyUnreadable):
        gather([*sources, Path("train.py")], lambda activity, done, total: read.append(activity))
    assert read == []


def test_a_run_without_windows_is_no_run(folder: Path) -> None:
    write_run(folder / "empty", "a.py", {(0, 1): []})
    with pytest.raises(RunFolderEmpty, match="no window"):
        gather([folder / "empty"])


def test_progress_goes_from_nothing_to_all(sources: list[Path]) -> None:
    reports: list[tuple[str, int, int]] = []
    gather(sources, lambda *report: reports.append(report))
    whole = reports[0][2]
    assert [done for _, done, _ in reports] == list(range(whole + 1)) and {total for _, _, total in reports} == {whole}
    assert whole in (4, 5)  # four processes, and the ranks of one run where a relation compares them
    assert {activity for activity, _, _ in reports} == {f"reading {source}" for source in sources}


def test_counts_of_missing_relations_are_skipped_and_reported(folder: Path) -> None:
    tally = Tally("a.py", "", "r")
    tally.add_occasions("Elsewhere", [Occasion(Subject("f"), (), {Property("holds", "x")}, None, 0)] * 2, 0)
    tally.windows = 1
    write_tallies([tally], "x.tally")
    learned = learn([Path("x.tally")])
    assert learned.book.invariants == ()
    assert learned.remarks == ("counts of the relation Elsewhere, which is not installed here, are left out",)


class Counting:
    """A relation that says of ranks whether they took the same number of calls."""

    name = "Counting"
    compares_ranks = True
    same = Property("same", "number of calls")

    def __init__(self, interest: object = None) -> None: ...

    def occasions(self, window: Window) -> list[Occasion]:
        return []

    def across(self, windows: Sequence[Window]) -> list[Occasion]:
        agree = len({len(window.calls) for window in windows}) == 1
        held = {self.same} if agree else set()
        return [Occasion(Subject("calls", "ranks"), (), held, {self.same} - held, 0)]


@pytest.mark.parametrize("jobs", [1, 2])
def test_ranks_are_compared_where_a_relation_does(folder: Path, monkeypatch: pytest.MonkeyPatch, jobs: int) -> None:
    monkeypatch.setattr("traincheck.inference.tally_runs.plugins.load", lambda group: {"Counting": Counting})
    monkeypatch.setattr(
        "traincheck.inference.tally_runs.run_in_workers", lambda work, inputs, jobs: enumerate(map(work, inputs))
    )
    other = training(8, rank=1)
    other[5] = replace(other[5], calls=other[5].calls[:2], changes=())
    write_run(folder / "two", "a.py", {(0, 1): training(8), (1, 1): other, (0, 0): training(1)})
    tally = gather([folder / "two"], jobs=jobs).tallies[0]
    ((_, count),) = tally.evidence(("Counting", Subject("calls", "ranks")), Counting.same)
    assert (count.held, count.failed, count.windows, tally.windows) == (7, 1, 8, 17)
    write_run(folder / "one", "a.py", {(0, 1): training(8), (0, 0): training(1)})
    assert tally_folder(folder / "one").cells == {}


def test_small_recordings_are_worth_no_second_process(sources: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    assert suitable_jobs(sources) == suitable_jobs([]) == suitable_jobs([Path("absent")]) == 1
    monkeypatch.setattr("traincheck.inference.tally_runs.WORTH_A_WORKER", 10)
    monkeypatch.setattr("traincheck.inference.tally_runs.available_cores", lambda: 3)
    assert suitable_jobs(sources) == 3
    assert suitable_jobs(sources[1:2]) == 1
