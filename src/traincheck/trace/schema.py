"""The schema: the columns of an event file."""

from __future__ import annotations

import os
from collections.abc import Iterable

import pyarrow as pa

from traincheck.errors import TraceTooNew, TraceUnreadable
from traincheck.trace.format import FORMAT
from traincheck.version import __version__

WINDOW, CALL, CHANGE, READING, TENSOR = "window", "call", "change", "reading", "tensor"
EVENTS = (WINDOW, CALL, CHANGE, READING, TENSOR)
"""What a row is. Each batch is one window: a row for the window itself (so that an empty one survives), then its calls,
its changes and its readings, each in the order in which the window holds them, then the tensors of the first call that
has any, of the second, and so on. Rows of two kinds are not interleaved by `seq`: whoever wants them so sorts them when
reading, which costs training nothing.

Note [A row for a tensor]: role, type and storage of a tensor have small dictionaries each. Told in one text for each
call they would have as many entries as there are combinations of them: with batches of varying length, new ones for
each call of each step. Numbers that differ in each step (fingerprint, norm) have number columns, so that the rest of
the facts repeats. All ways were tried on a step of 1,464 calls with 3,816 tensors, with and without values, with
fixed and with varying lengths: a text for each call took 1.05 to 3 times the bytes, nested columns 1.01 to 1.09 times.

Note [Other tools]: `pyarrow.ipc.open_stream(file).read_all()` is the table; DuckDB queries that object by its name,
`polars.from_arrow` takes it over. Polars' own reader of streams knows no growing dictionaries, which we need: rewritten
whenever one grows, they would outweigh the events in a job that meets new values all the time."""

TEXT = pa.dictionary(pa.int32(), pa.utf8())
EVENT = pa.dictionary(pa.int8(), pa.utf8())

COLUMNS: tuple[tuple[str, pa.DataType, str], ...] = (
    ("window", pa.int32(), "number of the window in its process; a gap means that windows were dropped"),
    ("step", pa.int64(), "training step, 0 before the first"),
    ("stage", TEXT, "setup, train, eval or end"),
    ("event", EVENT, "window (opens one), call, change, reading or tensor; null in a column: it has no such thing"),
    ("seq", pa.int64(), "position among the events of the process"),
    ("end", pa.int64(), "call: position of its end, -1 when it raised or was still open"),
    ("parent", pa.int64(), "seq of the call around this one, or that a change, reading or tensor is of; -1 for none"),
    ("kind", TEXT, "call: lifecycle, module ...; change and reading: what the variable is: parameter, buffer ..."),
    ("name", TEXT, "call: name of the API; change and reading: name of the variable"),
    ("levels", TEXT, "call: its names along the classes, most specific first, joined by ' < '"),
    ("receiver", TEXT, "call: the object it was made on; change: the optimizer that holds the variable"),
    ("site", TEXT, "call: file:line:function in the user's code"),
    ("context", TEXT, "facts of the circumstances (tensor: of its values), a JSON object sorted by name"),
    ("args", TEXT, "call: facts of its arguments, likewise"),
    ("result", TEXT, "call: facts of its result, likewise"),
    ("thread", pa.int32(), "call: number of its thread in order of appearance"),
    ("attribute", TEXT, "change: data or grad; reading: what of the variable was read"),
    ("before", TEXT, "change: none, zero or some"),
    ("after", TEXT, "change: none, zero or some"),
    ("changed", pa.bool_(), "change: whether the value itself differs"),
    ("fingerprint", pa.uint64(), "change: xxh3-64 of the value after the call; tensor and reading of data: likewise"),
    ("tensors", pa.int32(), "call: how many tensors it has rows of"),
    ("role", TEXT, "tensor: the parameter it was passed for, or result; reading: live, saved, loaded or announced"),
    ("type", TEXT, "tensor: dtype and shape, as bfloat16[4,8], with ' requires_grad' where it does"),
    ("storage", TEXT, "tensor: the variable whose memory it is over, or ~n for other memory"),
    ("number", pa.float64(), "tensor: norm of its values; reading: its value where that is a float"),
    ("integer", pa.uint64(), "reading: its value where that is a whole number (not of data, and not negative)"),
    ("value", TEXT, "reading: its value where it is in no other column, as JSON"),
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
