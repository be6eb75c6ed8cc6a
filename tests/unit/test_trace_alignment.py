"""Alignment: windows of ranks are paired by step, stage and occurrence, whatever some of the ranks miss."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from traincheck.testing.readable_traces import from_text
from traincheck.trace.alignment import aligned
from traincheck.trace.folder import RunFolder
from traincheck.trace.reader import read_windows
from traincheck.trace.run_notes import Manifest
from traincheck.trace.writer import TraceWriter
from traincheck.vocab.events import LIFECYCLE, NO_CALL, Call, Window


def rank(lines: str, number: int = 0) -> list[Window]:
    """Windows written as `train 1, eval 1, ...`; `-` is a dropped window."""
    entries = [line.split() for line in lines.split(",")]
    return [
        Window(index, int(words[1]), words[0], rank=number) for index, words in enumerate(entries) if words != ["-"]
    ]


def pairs(*ranks: str) -> list[tuple[str, ...]]:
    """The indices of the windows that were found to belong together, with stage and step."""
    groups = aligned([rank(lines, number) for number, lines in enumerate(ranks)])
    return [(f"{windows[0].stage} {windows[0].step}", *(str(window.index) for window in windows)) for windows in groups]


def test_windows_of_the_same_part_of_the_run_go_together() -> None:
    lines = "setup 0, train 1, eval 1, eval 1, train 2, end 2"
    assert pairs(lines, lines, lines) == [
        ("setup 0", "0", "0", "0"),
        ("train 1", "1", "1", "1"),
        ("eval 1", "2", "2", "2"),
        ("eval 1", "3", "3", "3"),
        ("train 2", "4", "4", "4"),
        ("end 2", "5", "5", "5"),
    ]


def test_windows_of_a_single_rank_are_skipped() -> None:
    assert pairs("setup 0, train 1, eval 1, train 2, eval 2, eval 2, end 2", "setup 0, train 1, train 2, eval 2") == [
        ("setup 0", "0", "0"),
        ("train 1", "1", "1"),
        ("train 2", "3", "2"),
        ("eval 2", "4", "3"),
    ]


def test_a_step_that_a_rank_dropped_is_left_out() -> None:
    assert pairs("setup 0, -, train 2, train 3", "setup 0, train 1, -, train 3", "-, train 1, train 2, train 3") == [
        ("train 3", "3", "3", "3")
    ]


def test_an_evaluation_behind_dropped_windows_is_not_taken_for_another() -> None:
    whole = "train 1, eval 1, eval 1, train 2, eval 2"
    assert pairs(whole, "train 1, -, eval 1, train 2, eval 2") == [
        ("train 1", "0", "0"),
        ("train 2", "3", "3"),
        ("eval 2", "4", "4"),
    ]
    assert pairs(whole, "train 1, eval 1, -, train 2, eval 2") == [
        ("train 1", "0", "0"),
        ("eval 1", "1", "1"),
        ("train 2", "3", "3"),
        ("eval 2", "4", "4"),
    ]
    assert pairs(whole, "train 1, eval 1, eval 1, -, eval 2") == [
        ("train 1", "0", "0"),
        ("eval 1", "1", "1"),
        ("eval 1", "2", "2"),
    ]


def test_one_rank_is_aligned_with_itself_and_none_with_nothing() -> None:
    lines = "setup 0, train 1, train 2"
    assert pairs(lines) == [("setup 0", "0"), ("train 1", "1"), ("train 2", "2")]
    assert pairs() == []
    assert pairs(lines, "train 9") == []


def test_streams_are_read_lazily() -> None:
    read = [0, 0]

    def stream(number: int, every: int) -> Iterator[Window]:
        for step in range(1, 10**9, every):
            read[number] += 1
            yield Window(step, step, "train", rank=number)

    groups = aligned([stream(0, 1), stream(1, 100)])
    assert [next(groups)[0].step for _ in range(5)] == [1, 101, 201, 301, 401]
    assert read == [401, 5]


def test_a_run_folder_gives_the_streams_to_align(tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path / "run", Manifest())
    steps = from_text("window setup\nwindow train step=1\nwindow end step=1")
    for number, process, windows in ((0, 1, steps[:1]), (0, 5, steps), (1, 6, steps)):
        with TraceWriter(run.path, number, process) as writer:
            for window in windows:
                writer.write(window)
    (job,) = run.jobs()
    groups = list(aligned([read_windows(file) for file in job.files.values()]))
    assert [[(window.rank, window.process) for window in windows] for windows in groups] == [[(0, 5), (1, 6)]] * 3


def together(*steps: str) -> Iterator[Window]:
    """Windows written as `train 1 *3`, with three calls that all ranks make together."""
    call = Call(0, 1, NO_CALL, LIFECYCLE, ("torch.distributed.all_reduce",))
    for index, entry in enumerate(steps):
        stage, step, *count = entry.split()
        yield Window(index, int(step), stage, (call,) * int(count[0][1:]) if count else ())


def watched(windows: Iterable[Window], *steps: int) -> list[Window]:
    """Those of these steps, and what comes right before them, as they are where others are not watched."""
    return [
        window
        for window in windows
        if (window.step if window.stage in ("setup", "train") else window.step + 1) in steps
    ]


def steps_of(*ranks: Iterable[Window]) -> list[tuple[int, ...]]:
    return [tuple(window.step for window in windows) for windows in aligned(ranks)]


def test_the_steps_of_a_rank_that_trains_alone_are_left_out() -> None:
    alone = together("setup 0", *(f"train {step}" for step in range(1, 5)), "train 5 *7", "train 6 *2", "train 7 *2")
    others = together("setup 0 *5", "train 1 *2", "train 2 *2", "train 3 *2")
    assert steps_of(alone, others) == [(6, 2), (7, 3)]
    ends = together("setup 0", *(f"train {step}" for step in range(1, 4)), "train 4 *5", "train 5 *2", "train 6 *2")
    others = together("setup 0 *5", "train 1 *2", "train 2 *2", "train 3 *2")
    assert steps_of(ends, others) == [(5, 1), (6, 2)]


def test_a_call_that_falls_into_the_next_window_of_one_rank_shifts_nothing() -> None:
    evaluates = together("train 1 *1", "train 2", "eval 2", "train 3 *2", "train 4 *1", "train 5 *1")
    waits = together("train 1 *1", "train 2 *1", "train 3 *1", "train 4 *1", "train 5 *1")
    assert steps_of(evaluates, waits) == [(1, 1), (4, 4), (5, 5)]


def test_ranks_that_make_other_calls_in_each_step_are_compared() -> None:
    assert steps_of(together("train 1 *3", "train 2 *3"), together("train 1 *2", "train 2 *2")) == [(1, 1), (2, 2)]


# -- steps that are not watched ----------------------------------------------------------------------------------------


def test_ranks_that_watch_other_steps_are_compared_in_those_that_they_share() -> None:
    run = [f"train {step} *2" for step in range(1, 20)]
    often, seldom = watched(together(*run), 1, 2, 5, 6, 9, 10, 15, 16), watched(together(*run), 1, 2, 9, 10)
    assert steps_of(often, seldom) == [(1, 1), (2, 2), (9, 9), (10, 10)]
    assert steps_of(seldom, often) == [(1, 1), (2, 2), (9, 9), (10, 10)]
    assert steps_of(together(*run), seldom) == [(1, 1), (2, 2), (9, 9), (10, 10)]


def test_counts_that_differ_are_believed_where_the_step_is_known_as_a_whole() -> None:
    three_in_step_6 = [f"train {step} *{3 if step == 6 else 2}" for step in range(1, 20)]
    other = [f"train {step} *2" for step in range(1, 20)]
    assert (6, 6) in steps_of(together(*three_in_step_6), together(*other))
    assert (6, 6) in steps_of(
        watched(together(*three_in_step_6), 1, 2, 6, 7, 12), watched(together(*other), 1, 2, 6, 7, 12)
    )
    # What comes after the second step of a burst is not known: the third call may have been made there.
    assert (6, 6) not in steps_of(
        watched(together(*three_in_step_6), 1, 2, 5, 6, 12), watched(together(*other), 1, 2, 5, 6, 12)
    )


def test_a_call_behind_an_evaluation_that_is_not_watched_is_not_missed() -> None:
    evaluates = ["train 1 *2", "train 2 *2", "train 3 *1", "eval 3 *1", "train 4 *2", "train 5 *2", "train 6 *2"]
    waits = ["train 1 *2", "train 2 *2", "train 3 *2", "train 4 *2", "train 5 *2", "train 6 *2"]
    assert (3, 3) not in steps_of(together(*evaluates), together(*waits))
    for steps in ((2, 3), (3, 4), (3, 4, 5), (3, 6)):
        step_pairs = steps_of(watched(together(*evaluates), *steps), watched(together(*waits), *steps))
        assert (3, 3) not in step_pairs and all(left == right for left, right in step_pairs)


def test_a_call_in_an_evaluation_before_the_first_watched_step_counts() -> None:
    evaluates = ["train 1 *2", "train 2 *2", "train 3 *2", "eval 3 *1", "train 4 *2", "train 5 *2", "train 6 *2"]
    goes_on = ["train 1 *2", "train 2 *2", "train 3 *2", "train 4 *3", "train 5 *2", "train 6 *2"]
    first, second = watched(together(*evaluates), 4, 5), watched(together(*goes_on), 4, 5)
    assert [window.stage for window in first] == ["eval", "train", "train"]
    assert steps_of(first, second) == [(5, 5)]


def test_a_rank_that_joins_the_others_out_of_sight_is_not_compared_any_more() -> None:
    alone = ["setup 0", *(f"train {step}" for step in range(1, 31)), *(f"train {step} *2" for step in range(31, 50))]
    others = ["setup 0 *1", *(f"train {step} *2" for step in range(1, 20))]
    assert steps_of(together(*alone), together(*others))[0] == (32, 2)
    steps = (*range(11), 25, 26, 34, 35)
    assert steps_of(watched(together(*alone), *steps), watched(together(*others), *steps)) == []
