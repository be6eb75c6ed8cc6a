"""Write and read the operations and the marks of a process: a record for each step, and for each mark."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from traincheck.trace.format import MARKS, OPERATIONS
from traincheck.trace.growing_files import PAUSE
from traincheck.trace.record_files import RecordWriter, read_records
from traincheck.vocab.marks import Mark
from traincheck.vocab.operations import StepOperations

FORMAT = 1
MARKS_FORMAT = 1


def operation_writer(folder: Path, process: int) -> RecordWriter[StepOperations]:
    """Writes the operations of steps."""
    return RecordWriter(folder, process, OPERATIONS, FORMAT)


def mark_writer(folder: Path, process: int) -> RecordWriter[Mark]:
    """Writes marks."""
    return RecordWriter(folder, process, MARKS, MARKS_FORMAT)


def read_operations(
    path: Path, ended: Callable[[], bool] = lambda: True, pause: float = PAUSE
) -> Iterator[StepOperations]:
    """The sketched steps of a file, in their order. A file that is still being written is read until `ended`.

    Raises TraceUnreadable and TraceTooNew.
    """
    return read_records(path, FORMAT, StepOperations, ended, pause)


def read_marks(path: Path) -> Iterator[Mark]:
    """The marks of a file, in their order. Raises TraceUnreadable and TraceTooNew."""
    return read_records(path, MARKS_FORMAT, Mark)
