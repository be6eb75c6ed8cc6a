"""control.json: written whole, one change after the other, read when it was replaced, and obeyed between windows."""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import msgspec
import pytest

from traincheck.errors import OutputError, TraceTooNew, TraceUnreadable
from traincheck.runtime.control import ControlFollower, State
from traincheck.runtime.ranks.rank_info import RankInfo
from traincheck.trace import control_file as protocol
from traincheck.trace.control_file import Control, ControlFile, change_control, read_answers, read_control, stopped
from traincheck.trace.folder import RunFolder
from traincheck.trace.run_notes import Manifest, StopRequest
from traincheck.vocab.finding import Finding


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    return RunFolder.create(tmp_path / "run", Manifest())


def without(source: str) -> Callable[[Control], Control]:
    return lambda control: msgspec.structs.replace(control, off=tuple(sorted({*control.off, source})))


# -- the file --------------------------------------------------------------------------------------------------------


def test_the_serial_grows_with_each_change_and_with_nothing_else(run: RunFolder) -> None:
    assert read_control(run.path) == Control()
    assert change_control(run.path, without("functions")).serial == 1
    assert change_control(run.path, without("functions")).serial == 1
    assert change_control(run.path, without("project")) == read_control(run.path)
    assert read_control(run.path).off == ("functions", "project") and read_control(run.path).serial == 2


def test_changes_at_one_moment_are_all_kept(run: RunFolder) -> None:
    threads = [threading.Thread(target=change_control, args=(run.path, without(f"source{n}"))) for n in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(read_control(run.path).off) == read_control(run.path).serial == 20


def test_a_lock_held_for_long_is_reported(run: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    fcntl = pytest.importorskip("fcntl")
    monkeypatch.setattr(protocol, "PATIENCE", 0.1)
    with (run.path / protocol.LOCK).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(OutputError, match="another process has held it"):
            change_control(run.path, without("functions"))
    assert read_control(run.path).serial == 0


def test_the_first_reason_to_stop_stays(run: RunFolder) -> None:
    first, second = StopRequest(title="first"), StopRequest(title="second", step=4)
    assert stopped(stopped(Control(), first), second).stop == first


def test_it_is_read_again_only_when_it_was_replaced(run: RunFolder) -> None:
    file = ControlFile(run.path)
    assert file.news() is None
    change_control(run.path, without("functions"))
    control = file.news()
    assert control is not None and control.off == ("functions",)
    assert file.news() is None


@pytest.mark.parametrize("text", ["", "{", "[]", '{"format": 1, "sample": 0}', '{"format": 1, "budget": 1}', "\x00"])
def test_a_garbled_file_is_reported_once(text: str, run: RunFolder) -> None:
    (run.path / "control.json").write_text(text)
    file = ControlFile(run.path)
    with pytest.raises(TraceUnreadable, match=r"control\.json"):
        file.news()
    assert file.news() is None


def test_a_file_of_a_later_version_is_reported(run: RunFolder) -> None:
    (run.path / "control.json").write_text('{"format": 99}')
    with pytest.raises(TraceTooNew):
        read_control(run.path)


# -- a process -------------------------------------------------------------------------------------------------------


class Obeying:
    """Records its requests."""

    def __init__(self) -> None:
        self.done: list[tuple[object, ...]] = []

    def report_finding(self, finding: Finding) -> None:
        self.done.append(("found", finding.title))

    def mute(self, muted: Mapping[str, str]) -> None:
        self.done.append(("mute", dict(muted)))

    def sample(self, interval: int | None, budget: float | None) -> str:
        self.done.append(("sample", interval, budget))
        return "not here" if budget else ""

    def switch(self, source: str, *, off: bool) -> None:
        self.done.append(("switch", source, off))

    def look(self, steps: int) -> str:
        self.done.append(("look", steps))
        return ""

    def snapshot(self) -> None:
        self.done.append(("snapshot",))

    def stop(self, because: StopRequest) -> None:
        self.done.append(("stop", because.title, because.at))


ALONE = RankInfo(0, 1, "")


class Process:
    """A process that is controlled, with the thread that trains in our hands."""

    def __init__(self, run: RunFolder, info: RankInfo = ALONE) -> None:
        self.orders, self.state, self.info = Obeying(), State(), info
        self.controlled = ControlFollower(run, os.getpid(), lambda: self.info, self.orders, self.state)
        self.run = run
        self.controlled.start()
        self.until(lambda: self.answered() is not None)

    def answered(self) -> protocol.Answer | None:
        return next((answer for answer in read_answers(self.run.path) if answer.rank == self.info.rank), None)

    def until(self, condition: Callable[[], object]) -> None:
        deadline = time.monotonic() + 20
        while not condition():
            assert time.monotonic() < deadline, "it did not come about in time"
            time.sleep(0.02)

    def step(self) -> None:
        self.state.step += 1
        self.state.training = True
        self.controlled.at_border()

    def serial(self) -> int:
        answer = self.answered()
        return -1 if answer is None else answer.serial


@pytest.fixture
def process(run: RunFolder) -> Iterator[Process]:
    instance = Process(run)
    yield instance
    instance.controlled.close()


def test_sources_wait_for_the_end_of_a_window_and_the_rest_does_not(run: RunFolder, process: Process) -> None:
    process.step()
    change_control(run.path, without("functions"))
    change_control(run.path, lambda control: msgspec.structs.replace(control, muted={"ab": "so"}, sample=7))
    process.until(lambda: len(process.orders.done) == 2)
    assert process.orders.done == [("mute", {"ab": "so"}), ("sample", 7, None)]
    process.until(lambda: (answer := process.answered()) is not None and answer.waiting)
    assert process.serial() == 0
    process.step()
    assert process.orders.done[-1] == ("switch", "functions", True)
    process.until(lambda: process.serial() == 2)
    answer = process.answered()
    assert answer is not None and answer.step == 3 and not answer.waiting


def test_a_process_that_does_not_train_answers_at_once(run: RunFolder, process: Process) -> None:
    change_control(run.path, without("functions"))
    process.until(lambda: process.serial() == 1)
    assert process.orders.done == []
    process.step()
    assert process.orders.done == [("switch", "functions", True)]


def test_a_late_process_applies_the_state_but_no_single_requests(run: RunFolder) -> None:
    change_control(run.path, without("functions"))
    change_control(
        run.path,
        lambda control: msgspec.structs.replace(
            control, look=protocol.Request(number=3, steps=5), snapshot=protocol.Request(number=1)
        ),
    )
    late = Process(run)
    late.step()
    assert late.orders.done == [("switch", "functions", True)]
    change_control(run.path, lambda control: msgspec.structs.replace(control, look=protocol.Request(number=4, steps=2)))
    late.until(lambda: ("look", 2) in late.orders.done)
    late.controlled.close()


def test_findings_about_several_ranks_reach_each_rank(run: RunFolder, process: Process) -> None:
    finding = Finding("error", 4, 0, "Gradients differ", "", None, (), "", "", (), ("ab",), 4, 1, (1,), 4)
    change_control(run.path, lambda control: protocol.add_finding(control, finding))
    process.until(lambda: process.orders.done)
    change_control(run.path, lambda control: protocol.add_finding(control, finding))
    process.until(lambda: len(process.orders.done) == 2)
    assert process.orders.done == [("found", "Gradients differ")] * 2
    assert read_control(run.path).findings[0] == finding


def test_impossible_requests_are_answered(run: RunFolder, process: Process) -> None:
    (run.path / "control.json").write_text(
        '{"format": 1, "serial": 9, "off": ["modules", "spoons"], "budget": 0.03}',
    )
    process.until(lambda: process.serial() == 9)
    answer = process.answered()
    assert answer is not None
    assert answer.declined == (
        "not here",
        "source modules cannot be switched off: all others rest on it",
        "there is no source spoons",
    )


def test_alone_a_process_stops_before_its_next_update(run: RunFolder, process: Process) -> None:
    process.step()
    change_control(run.path, lambda control: stopped(control, StopRequest(title="enough")))
    process.until(lambda: process.orders.done)
    assert process.orders.done == [("stop", "enough", None)]


def test_the_first_rank_decides_the_stop_step(run: RunFolder) -> None:
    ranks = [Process(run, RankInfo(rank, 2, "job")) for rank in (0, 1)]
    for rank in ranks:
        rank.state.step, rank.state.training = 40, True
    change_control(run.path, lambda control: stopped(control, StopRequest(title="enough")))
    for rank in ranks:
        rank.until(lambda rank=rank: rank.orders.done)
    (first,), (second,) = ranks[0].orders.done, ranks[1].orders.done
    assert first == second and isinstance(first[2], int) and first[2] > 40
    for rank in ranks:
        rank.controlled.close()


def test_a_rank_without_a_stop_step_stops_alone(run: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("traincheck.runtime.control.PATIENCE", 0.1)
    second = Process(run, RankInfo(1, 2, "job"))
    second.state.training = True
    change_control(run.path, lambda control: stopped(control, StopRequest(title="enough")))
    second.until(lambda: second.orders.done)
    assert second.orders.done == [("stop", "enough", None)]
    second.controlled.close()


def test_an_answer_follows_the_rank_and_reports_its_end(run: RunFolder, process: Process) -> None:
    process.info = RankInfo(3, 4, "job")
    process.until(lambda: process.answered() is not None)
    assert [answer.rank for answer in read_answers(run.path)] == [3]
    process.controlled.close()
    answer = process.answered()
    assert answer is not None and answer.ended


def test_a_deleted_folder_does_no_harm(run: RunFolder, process: Process, capfd: pytest.CaptureFixture[str]) -> None:
    shutil.rmtree(run.path)
    process.step()
    process.state.full.append((1, 2))
    process.controlled.close()
    assert "Traceback" not in capfd.readouterr().err
