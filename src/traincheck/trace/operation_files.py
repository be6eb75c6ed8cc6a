"""Write and read the operations and the marks of a process: a record for each step, and for each mark.

Most steps execute the operations of the step before. So operations are written only where they differ from it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from traincheck.trace.format import MARKS, OPERATIONS, WHOLE_VALUES
from traincheck.trace.growing_files import PAUSE
from traincheck.trace.record_files import RecordWriter, read_records
from traincheck.vocab.marks import Mark
from traincheck.vocab.operations import Operation, Sketch, StepOperations, WholeValue

FORMAT = 2
MARKS_FORMAT = 2
WHOLE_VALUES_FORMAT = 2


class _StoredStep(msgspec.Struct, frozen=True, array_like=True):
    """A `StepOperations` in a file. `operations` are None if they are those of the step before."""

    step: int
    values: tuple[Sketch, ...]
    operations: tuple[Operation, ...] | None
    incomplete: str = ""


class OperationWriter(RecordWriter[StepOperations]):
    """Writes the operations of steps."""

    def __init__(self, folder: Path, process: int) -> None:
        super().__init__(folder, process, OPERATIONS, FORMAT)
        self._last: tuple[Operation, ...] | None = None

    def stored(self, record: StepOperations) -> object:
        is_other = record.operations != self._last
        self._last = record.operations
        return _StoredStep(record.step, record.values, record.operations if is_other else None, record.incomplete)


def mark_writer(folder: Path, process: int) -> RecordWriter[Mark]:
    """Writes marks."""
    return RecordWriter(folder, process, MARKS, MARKS_FORMAT)


def whole_value_writer(folder: Path, process: int) -> RecordWriter[WholeValue]:
    """Writes whole values."""
    return RecordWriter(folder, process, WHOLE_VALUES, WHOLE_VALUES_FORMAT)


def read_operations(
    path: Path, ended: Callable[[], bool] = lambda: True, pause: float = PAUSE
) -> Iterator[StepOperations]:
    """The sketched steps of a file, in their order. A file that is still being written is read until `ended`.

    Raises TraceUnreadable and TraceTooNew.
    """
    operations: tuple[Operation, ...] = ()
    for stored in read_records(path, FORMAT, _StoredStep, ended, pause):
        operations = operations if stored.operations is None else stored.operations
        yield StepOperations(stored.step, stored.values, operations, stored.incomplete)


def read_marks(path: Path) -> Iterator[Mark]:
    """The marks of a file, in their order. Raises TraceUnreadable and TraceTooNew."""
    return read_records(path, MARKS_FORMAT, Mark)


def read_whole_values(path: Path) -> Iterator[WholeValue]:
    """The whole values of a file, in their order. Raises TraceUnreadable and TraceTooNew."""
    return read_records(path, WHOLE_VALUES_FORMAT, WholeValue)
