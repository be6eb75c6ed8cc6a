"""Start the child processes of a command and collect their progress, output and errors.

A child is `python -m traincheck.sdc.worker JOB`, where JOB is a JSON file. Lines of its stdout that begin with
`MESSAGE_PREFIX` are messages; all other lines are output of the workload and are passed on. Imports no torch.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from traincheck import errors
from traincheck.errors import TrainCheckError, WorkerFailed
from traincheck.sdc.environment import deterministic

MESSAGE_PREFIX = "@traincheck "
PROGRESS, FAILED, DONE = "progress", "failed", "done"

STDERR_LINES = 5
"""Lines of stderr to report for a child that failed without an error message."""
GRACE_SECONDS = 60.0
"""Seconds that children have to end after one has failed or was asked to stop: a step may take long."""


class Job(NamedTuple):
    """The name of a child, for messages, and its settings."""

    name: str
    settings: Mapping[str, Any]


class _Child:
    def __init__(self, job: Job, folder: Path, lines: queue.SimpleQueue[tuple[_Child, str, str]]) -> None:
        self.name, self.done = job.name, False
        self.error: TrainCheckError | None = None
        self.messages = 0
        """How many messages it has sent; none while it imports torch, when it cannot be asked to stop."""
        self.stderr_lines: list[str] = []
        file = folder / f"{job.name}.json"
        file.write_text(json.dumps(job.settings), encoding="utf-8")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "traincheck.sdc.worker", str(file)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            env=deterministic(os.environ),
            # Of its own, so that Ctrl-C comes to us alone, and we say who stops when.
            start_new_session=True,
        )
        self.threads = [
            threading.Thread(target=self._read, args=(name, lines), daemon=True) for name in ("stdout", "stderr")
        ]
        for thread in self.threads:
            thread.start()

    def _read(self, name: str, lines: queue.SimpleQueue[tuple[_Child, str, str]]) -> None:
        for line in getattr(self.process, name):
            lines.put((self, name, line.rstrip("\n")))

    @property
    def over(self) -> bool:
        return self.process.poll() is not None and not any(thread.is_alive() for thread in self.threads)

    def signal(self, number: int) -> None:
        if self.process.poll() is None:
            self.process.send_signal(number)


def run_children(
    jobs: Sequence[Job],
    folder: Path,
    progress: Callable[[str, int, int], object],
    on_output: Callable[[str], object],
    stoppable: bool = False,
) -> None:
    """Start a child for each job and wait for all of them; `on_output` receives the output of the workload.

    Raises the error of the first child that failed, or WorkerFailed if it ended without one; the other children are
    then killed. On Ctrl-C, `stoppable` children that are at work are stopped through the first one, after its step. A
    second Ctrl-C kills all children and raises KeyboardInterrupt.
    """
    lines: queue.SimpleQueue[tuple[_Child, str, str]] = queue.SimpleQueue()
    children: list[_Child] = []
    stop_requested = False
    try:
        with _interrupt_deferred():
            children.extend(_Child(job, folder, lines) for job in jobs)
        while True:
            try:
                _listen(children, lines, progress, on_output)
                return
            except KeyboardInterrupt:
                if stop_requested or not (stoppable and children[0].messages):
                    raise
                stop_requested = True
                on_output("stopping after this step; press Ctrl-C again to end at once")
                children[0].signal(signal.SIGINT)
    finally:
        for child in children:
            child.signal(signal.SIGKILL)
            child.process.wait()


@contextmanager
def _interrupt_deferred() -> Iterator[None]:
    """Delay Ctrl-C until the block ends, so that no process that is being started is left running."""
    if threading.current_thread() is not threading.main_thread():  # it never comes there
        yield
        return
    came: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _frame: came.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if came:
        raise KeyboardInterrupt


def _listen(
    children: Sequence[_Child],
    lines: queue.SimpleQueue[tuple[_Child, str, str]],
    progress: Callable[[str, int, int], object],
    on_output: Callable[[str], object],
) -> None:
    """Handle messages until all children have ended, or until one has failed and its error is known."""
    failed_at = 0.0
    failures: list[_Child] = []
    """Those that said that they failed, the first one first."""
    while True:
        try:
            child, stream, line = lines.get(timeout=0.1)
        except queue.Empty:
            ended = [child for child in children if child.over]
            if not lines.empty():  # what they said last
                continue
            failed = [child for child in ended if not child.done]
            failed_at = failed_at or (time.monotonic() if failed else 0.0)
            # Who was killed first: what others raise is that it is gone.
            reported = [child for child in failed if child.error is None] or failures
            late = failed_at and time.monotonic() - failed_at > GRACE_SECONDS
            if failures or late or (failed and len(ended) == len(children)):
                _raise(reported[0])
            if len(ended) == len(children):
                return
            continue
        if stream == "stdout" and line.startswith(MESSAGE_PREFIX):
            _handle_message(child, json.loads(line.removeprefix(MESSAGE_PREFIX)), progress)
            failures += [child] if child.error is not None else []
        elif stream == "stdout":
            on_output(line)
        elif line.strip():
            child.stderr_lines = [*child.stderr_lines, line][-STDERR_LINES:]


def _handle_message(child: _Child, message: Mapping[str, Any], progress: Callable[[str, int, int], object]) -> None:
    child.messages += 1
    if PROGRESS in message:
        phase, done, total = message[PROGRESS]
        progress(phase, done, total)
    elif FAILED in message:
        name, text = message[FAILED]
        kind = getattr(errors, name, TrainCheckError)
        child.error = kind.__new__(kind, text)  # from its message, as errors travel between processes
    else:
        child.done = True


def _raise(child: _Child) -> None:
    if child.error is not None:
        raise child.error
    raise WorkerFailed(child.name, child.process.returncode, " / ".join(child.stderr_lines))
