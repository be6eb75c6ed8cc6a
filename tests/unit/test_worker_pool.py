"""Workers: the results of one process from several, and clear words where one of them fails."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from traincheck.errors import NoBook, TraceUnreadable, WorkerLost
from traincheck.inference.worker_pool import available_cores, run_in_workers


def double(number: int) -> int:
    """Top-level functions: a worker imports them by name."""
    return 2 * number


def refuse(number: int) -> int:
    if number == 3:
        raise TraceUnreadable("runs/x/events", f"number {number}")
    return number


def stumble(number: int) -> int:
    return 1 // number


def die(number: int) -> int:
    if number == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    return number


def wait_long(number: int) -> int:
    time.sleep(600 * number)
    return number


@pytest.mark.parametrize("jobs", [1, 2, 9])
def test_results_have_their_indices(jobs: int) -> None:
    assert sorted(run_in_workers(double, range(5), jobs)) == [(index, 2 * index) for index in range(5)]
    assert list(run_in_workers(double, [], jobs)) == []


@pytest.mark.parametrize("jobs", [1, 2])
def test_our_errors_travel_as_they_are(jobs: int) -> None:
    with pytest.raises(TraceUnreadable, match="number 3") as raised:
        list(run_in_workers(refuse, [1, 2, 3, 4], jobs))
    assert raised.value.slug == "trace-unreadable" and raised.value.exit_code == 2
    assert str(raised.value) == str(TraceUnreadable("runs/x/events", "number 3"))
    assert not multiprocessing.active_children()


def test_an_internal_fault_names_its_location() -> None:
    with pytest.raises(RuntimeError, match=r"over 0:\n(.|\n)*ZeroDivisionError"):
        list(run_in_workers(stumble, [1, 0, 2], 2))


def test_a_worker_that_is_killed_is_named() -> None:
    with pytest.raises(WorkerLost, match=r"was reading '2' ended by signal 9.*--jobs 1"):
        list(run_in_workers(die, [1, 2, 3, 4], 2))
    assert not multiprocessing.active_children()


def test_closing_the_results_stops_the_workers() -> None:
    results = run_in_workers(wait_long, [0, 1, 1], 2)
    assert next(results) == (0, 0)
    assert len(multiprocessing.active_children()) == 2
    results.close()  # as an exception or Ctrl-C in the loop over them does
    assert not multiprocessing.active_children()


def test_ctrl_c_reaches_the_main_process_only() -> None:
    results = run_in_workers(wait_long, [0, 1], 2)
    next(results)
    for child in multiprocessing.active_children():
        assert child.pid is not None
        os.kill(child.pid, signal.SIGINT)
    time.sleep(0.1)
    assert len(multiprocessing.active_children()) == 2
    with pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(5)
    results.close()
    assert not multiprocessing.active_children()


FIRST = """
import signal
from traincheck.inference.worker_pool import run_in_workers

def held(number):
    return signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, ())

if __name__ == "__main__":
    print(held(0), sorted(run_in_workers(held, [1, 2], 2)), held(0))
"""


def test_the_first_workers_of_a_program_do_not_hear_ctrl_c_either(tmp_path: Path) -> None:
    script = tmp_path / "first.py"
    script.write_text(FIRST)
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=True)
    assert done.stdout == "False [(0, True), (1, True)] False\n"


def test_errors_without_arguments_travel_too() -> None:
    import pickle

    again = pickle.loads(pickle.dumps(NoBook()))
    assert type(again) is NoBook and str(again) == str(NoBook())


def test_there_is_a_core() -> None:
    assert available_cores() >= 1
