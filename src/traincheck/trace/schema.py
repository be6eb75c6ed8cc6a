"""Define the columns of an event file."""

from __future__ import annotations

import os
from collections.abc import Iterable

import pyarrow as pa

from traincheck.errors import TraceTooNew, TraceUnreadable
from traincheck.trace.format import FORMAT
from traincheck.version import __version__

WINDOW, CALL, CHANGE, READING, TENSOR = "window", "call", "change", "reading", "tensor"
EVENTS = (WINDOW, CALL, CHANGE, READING, TENSOR)
"""The kinds of rows. Each batch is one window. Its first row is the window itself, so that an empty window survives.
Calls, changes and readings follow, in their order in the window; then the tensors of each call, in the order of the
calls. Kinds of rows are not interleaved by `seq`: a reader sorts them if necessary, which costs training nothing.

Note [A row for a tensor]: role, type and storage of a tensor have separate, small dictionaries. One text per call
would need an entry for each combination: with batches of varying length, new entries for each call of each step.
Numbers that differ in each step (fingerprint, norm) have number columns, so that the other facts repeat. All layouts
were measured on a step of 1,464 calls with 3,816 tensors, with and without values, with fixed and with varying
lengths. One text per call took 1.05 to 3 times the bytes, nested columns 1.01 to 1.09 times.

Note [Other tools]: `pyarrow.ipc.open_stream(file).read_all()` returns the table. DuckDB queries this object by its
name, and `polars.from_arrow` converts it. Polars' own stream reader does not support growing dictionaries, which event
files need: rewriting a dictionary whenever it grows would outweigh the events in a job with ever new values.
"""

TEXT = pa.dictionary(pa.int32(), pa.utf8())
EVENT = pa.dictionary(pa.int8(), pa.utf8())

COLUMNS: tuple[tuple[str, pa.DataType, str], ...] = (
    ("window", pa.int32(), "number of the window in its process; a gap means that windows were dropped"),
    ("step", pa.int64(), "training step, 0 before the first"),
    ("stage", TEXT, "setup, train, eval or end"),
    (
        "event",
        EVENT,
        "window (the first row of a window), call, change, reading or tensor; null in a column: not applicable",
    ),
    ("seq", pa.int64(), "position among the events of the process"),
    ("end", pa.int64(), "call: position of its end, -1 when it raised or was still open"),
    ("parent", pa.int64(), "seq of the enclosing call, or of the call of a change, reading or tensor; -1 for none"),
    ("kind", TEXT, "call: lifecycle, module ...; change and reading: kind of the variable: parameter, buffer ..."),
    ("name", TEXT, "call: name of the API; change and reading: name of the variable"),
    ("levels", TEXT, "call: its names along the classes, most specific first, joined by ' < '"),
    ("receiver", TEXT, "call: the object it was made on; change: the optimizer that holds the variable"),
    ("site", TEXT, "call: file:line:function in the user's code"),
    ("context", TEXT, "facts of the context (tensor: of its values), a JSON object sorted by name"),
    ("args", TEXT, "call: facts of its arguments, likewise"),
    ("result", TEXT, "call: facts of its result, likewise"),
    ("thread", pa.int32(), "call: number of its thread in order of appearance"),
    ("attribute", TEXT, "change: data or grad; reading: the attribute of the variable that was read"),
    ("before", TEXT, "change: none, zero or some"),
    ("after", TEXT, "change: none, zero or some"),
    ("changed", pa.bool_(), "change: whether the value itself differs"),
    ("fingerprint", pa.uint64(), "change: xxh3-64 of the value after the call; tensor and reading of data: likewise"),
    ("tensors", pa.int32(), "call: number of its tensor rows"),
    ("role", TEXT, "tensor: the parameter it was passed for, or result; reading: live, saved, loaded or announced"),
    ("type", TEXT, "tensor: dtype and shape, as bfloat16[4,8], with ' requires_grad' where it does"),
    ("storage", TEXT, "tensor: the variable that owns its memory, or ~n for other memory"),
    ("number", pa.float64(), "tensor: norm of its values; reading: its value if it is a float"),
    ("integer", pa.uint64(), "reading: its value if it is a whole number (not of data, and not negative)"),
    ("value", TEXT, "reading: its value as JSON if no other column holds it"),
)
"""Name, type and meaning of each column."""

SINCE: dict[str, int] = dict.fromkeys(("tensors", "role", "type", "storage", "number", "integer", "value"), 2)
"""The format in which a column was added; columns that are not listed exist since format 1."""

Steps = tuple[int, int]
"""A range of training steps: first and last."""

_FORMAT, _VERSION, _RANK, _PROCESS, _REMOVED = (
    b"traincheck.format",
    b"traincheck.version",
    b"traincheck.rank",
    b"traincheck.process",
    b"traincheck.removed",
)


def schema(rank: int, process: int, removed: Iterable[Steps] = ()) -> pa.Schema:
    """Return the schema of an event file of one process.

    Its metadata holds rank, process and the steps that were removed from the recording before this file was begun.
    """
    metadata = {_FORMAT: str(FORMAT), _VERSION: __version__, _RANK: str(rank), _PROCESS: str(process)}
    ranges = " ".join(f"{first}-{last}" for first, last in removed)
    metadata |= {_REMOVED: ranges} if ranges else {}
    return pa.schema([pa.field(name, kind) for name, kind, _ in COLUMNS], metadata=metadata)


def removed_before(arrow_schema: pa.Schema) -> tuple[Steps, ...]:
    """Return the training steps that were removed before the file with this schema was begun. Raises ValueError."""
    rows = [row.partition("-") for row in (arrow_schema.metadata or {}).get(_REMOVED, b"").decode().split()]
    return tuple((int(first), int(last)) for first, _, last in rows)


def owner(arrow_schema: pa.Schema, path: str | os.PathLike[str]) -> tuple[int, int]:
    """Return rank and process of the event file with this schema.

    Raises TraceUnreadable for another Arrow stream, TraceTooNew for a newer format.
    """
    metadata = arrow_schema.metadata or {}
    try:
        version = int(metadata[_FORMAT])
    except (KeyError, ValueError):
        raise TraceUnreadable(path, "it is an Arrow stream, but not of events") from None
    if version > FORMAT:
        raise TraceTooNew(path, version, FORMAT)
    expected = [(name, kind) for name, kind, _ in COLUMNS if SINCE.get(name, 1) <= version]
    wrong = [
        name
        for name, kind in expected
        if arrow_schema.get_field_index(name) < 0 or arrow_schema.field(name).type != kind
    ]
    if wrong:
        raise TraceUnreadable(path, f"it has no proper column '{wrong[0]}'")
    try:
        return int(metadata[_RANK]), int(metadata[_PROCESS])
    except (KeyError, ValueError):
        raise TraceUnreadable(path, "it does not say which process it is of") from None
