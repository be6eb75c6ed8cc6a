"""Run one function over many inputs in several worker processes.

Note [Ends of workers]
Only the main process receives Ctrl-C: it ends the workers, which have nothing to clean up. A worker that ends by itself
(mostly for lack of memory) is an error that names what it was reading. Exceptions of a worker are raised here.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, TypeVar

from traincheck.errors import TrainCheckError, WorkerLost

In = TypeVar("In")
Out = TypeVar("Out")


def available_cores() -> int:
    """Processor cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def run_in_workers(work: Callable[[In], Out], inputs: Sequence[In], jobs: int) -> Iterator[tuple[int, Out]]:
    """`work` of each of the inputs with its index, in the order in which they finish.

    With more than one job, `work`, inputs and results must be picklable; the inputs that take longest should come
    first. Errors name an input by its text. Raises WorkerLost, and what `work` raises.
    """
    if min(jobs, len(inputs)) <= 1:
        for index, item in enumerate(inputs):
            yield index, work(item)
        return
    crew = _Crew(work, inputs, min(jobs, len(inputs)))
    try:
        yield from crew.results()
    finally:
        crew.dismiss()


class _Crew:
    """Worker processes, each with the index of its current input."""

    def __init__(self, work: Callable[[Any], Any], inputs: Sequence[Any], size: int) -> None:
        self._inputs = inputs
        self._next = 0
        self._workers: dict[Connection, BaseProcess] = {}
        self._at: dict[Connection, int] = {}
        # A fresh interpreter for each: forking while a progress bar's thread holds a lock would hang.
        context = multiprocessing.get_context("spawn")
        with _interrupts_held():
            for _ in range(size):
                ours, theirs = context.Pipe()
                process = context.Process(target=_serve, args=(theirs, work), daemon=True)
                process.start()
                theirs.close()
                self._workers[ours] = process

    def results(self) -> Iterator[tuple[int, Any]]:
        for connection in self._workers:
            self._hand(connection)
        while self._at:
            for ready in wait(list(self._at)):
                assert isinstance(ready, Connection)
                index = self._at.pop(ready)
                answer = self._answer(ready, index)
                self._hand(ready)
                yield index, answer

    def _hand(self, connection: Connection) -> None:
        """Send the next input to the worker, if there is one."""
        if self._next == len(self._inputs):
            return
        self._at[connection] = self._next
        self._next += 1
        try:
            connection.send(self._inputs[self._at[connection]])
        except OSError:  # it has ended; so `wait` will say
            return

    def _answer(self, connection: Connection, index: int) -> Any:
        try:
            good, answer = connection.recv()
        except (EOFError, OSError):
            process = self._workers[connection]
            process.join()
            raise WorkerLost(str(self._inputs[index]), process.exitcode) from None
        if good:
            return answer
        if isinstance(answer, TrainCheckError):
            raise answer
        raise RuntimeError(f"in a worker process, over {self._inputs[index]}:\n{answer}")

    def dismiss(self) -> None:
        for process in self._workers.values():
            process.terminate()
        for connection, process in self._workers.items():
            process.join()
            connection.close()


def _serve(connection: Connection, work: Callable[[Any], Any]) -> None:
    """The loop of a worker, until the connection closes."""
    while True:
        try:
            given = connection.recv()
        except EOFError:
            return
        try:
            answer = (True, work(given))
        except TrainCheckError as error:
            answer = (False, error)
        except Exception:
            answer = (False, traceback.format_exc())
        connection.send(answer)


@contextmanager
def _interrupts_held() -> Iterator[None]:
    """Processes started in the block never receive Ctrl-C. An interrupt during the block is delivered here after it."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    # The first process of all starts multiprocessing's own helper on the way, and that lets interrupts through again.
    resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
