"""The views of a running program: content, time and receiver of their output."""

from __future__ import annotations

import io
import json
from dataclasses import replace

import pytest
from rich.console import Console

from traincheck.reporting import status_phrases
from traincheck.reporting.status_views import JSON_EVERY, PLAIN_EVERY, JsonLines, LiveView, PlainLines
from traincheck.vocab.finding import Report
from traincheck.vocab.run_status import (
    DELETED,
    ENDED,
    GOING,
    KILLED,
    RESTING,
    SILENT,
    STARTING,
    TRAINING,
    RankStatus,
    RunStatus,
)

RANK = RankStatus(0, 7, "", TRAINING, 1200, 1300, 0, 3.5, 0.008, 1.0, 1.0)
STATUS = RunStatus("runs/today", GOING, "train.py", "run", None, False, 412, 356, 0, 0, (RANK,))


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def plain() -> tuple[PlainLines, io.StringIO, Clock]:
    clock, text = Clock(), io.StringIO()
    return PlainLines(Console(file=text, width=100, highlight=False), clock), text, clock


def test_a_line_shows_the_status_of_the_run() -> None:
    assert status_phrases.line(RunStatus("runs/x")) == "runs/x is not there yet, or empty"
    assert status_phrases.line(replace(STATUS, ranks=())) == "no training was seen yet"
    assert status_phrases.line(STATUS) == (
        "step 1,200, 3.5 steps/s, nothing found, 356 of 412 rules checked, observing takes 0.8 %"
    )
    slow = replace(RANK, rank=1, steps_per_second=0.25, dropped=3, cost=None)
    line = status_phrases.line(replace(STATUS, ranks=(RANK, slow), errors=2, notices=1))
    assert "4.0 s/step, 2 ranks, 2 errors, 1 notice" in line and line.endswith("3 windows dropped")
    assert "recorded, not checked" in status_phrases.line(replace(STATUS, mode="collect", rules=0))


def test_ends_are_distinguished() -> None:
    def ending(**changes: object) -> str:
        return status_phrases.ending(replace(STATUS, **changes))  # type: ignore[arg-type]

    killed = replace(RANK, state=KILLED, silent=700.0)
    assert ending(state=ENDED, exit_code=1) == "the run ended with exit code 1"
    assert "rank 0 ended without a word" in ending(state=ENDED, exit_code=137, ranks=(killed,))
    assert "stopped by TrainCheck" in ending(state=ENDED, exit_code=1, stopped=True)
    assert ending(state=KILLED, ranks=(killed,)) == "no heartbeat for 12 min: the run counts as killed"
    assert "command that started them" in ending(state=KILLED, ranks=(replace(RANK, state=ENDED),))
    assert "deleted" in ending(state=DELETED)


def test_states_of_ranks_show_their_start() -> None:
    ranks = [replace(RANK, state=state, silent=61.0, resting=7300.0) for state in (SILENT, RESTING, STARTING, TRAINING)]
    assert [status_phrases.standing(rank) for rank in ranks] == [
        "silent for 61 s",
        "no window for 2 h",
        "no step yet",
        "training",
    ]


def test_plain_lines_follow_changes_or_intervals(some_report: Report) -> None:
    view, text, clock = plain()
    for _ in range(5):
        view.look([], STATUS)
    assert text.getvalue().count("\n") == 1
    view.look([some_report.findings[0]], STATUS)
    assert "TrainCheck ERROR at step 3 on rank 1" in text.getvalue()
    clock.now += PLAIN_EVERY
    view.look([], STATUS)
    view.look([], replace(STATUS, ranks=(replace(RANK, state=SILENT, silent=61.0),)))
    view.look([], replace(STATUS, unread=("process-0-7.json is garbled",)))
    view.look([], replace(STATUS, state=ENDED, exit_code=0))
    lines = text.getvalue().splitlines()
    assert sum(line.startswith("train.py: step 1,200") for line in lines) == 5
    assert "rank 0 has sent no heartbeat for 61 s: killed, or the host is gone or hangs" in lines
    assert "not read: process-0-7.json is garbled" in lines and lines[-1] == "the run ended with exit code 0"


def test_names_cannot_steer_the_terminal() -> None:
    view, text, _ = plain()
    view.look([], replace(STATUS, script="a\x1b[31m\nb.py"))
    assert "\x1b" not in text.getvalue() and text.getvalue().count("\n") == 1


def test_json_lines_are_one_object_each(some_report: Report) -> None:
    lines: list[str] = []
    clock = Clock()
    view = JsonLines(lines.append, clock)
    view.look([], RunStatus("runs/today"))
    view.look([some_report.findings[0]], STATUS)
    view.look([], STATUS)
    clock.now += JSON_EVERY
    view.look([], STATUS)
    view.look([], replace(STATUS, state=ENDED, exit_code=0))
    objects = [json.loads(line) for line in lines]
    assert [entry["kind"] for entry in objects] == ["status", "finding", "status", "status", "status"]
    assert objects[1]["finding"]["site"]["line"] == 42
    assert [objects[index]["state"] for index in (0, 2, 4)] == ["waiting", "going on", "ended"]
    assert objects[2]["ranks"][0]["steps"] == 1200 and all("\n" not in line for line in lines)


@pytest.mark.parametrize("ranks", [1, 1000])
def test_the_live_view_shows_ranks_and_gives_the_terminal_back(ranks: int, some_report: Report) -> None:
    text = io.StringIO()
    console = Console(file=text, force_terminal=True, width=120, height=50, highlight=False, color_system=None)
    view = LiveView(console)
    try:
        many = tuple(replace(RANK, rank=rank, state=SILENT if rank == 999 else TRAINING) for rank in range(ranks))
        view.look([some_report.findings[0]], replace(STATUS, ranks=many))
    finally:
        view.close()
    output = text.getvalue()
    assert "TrainCheck ERROR" in output and "3.5 steps/s" in output and "rank" in output
    assert ("and 980 more" in output) == ("silent for" in output) == (ranks == 1000)
    assert output.rstrip().endswith("\x1b[?25h") or "\x1b[?25h" in output  # the cursor is shown again
