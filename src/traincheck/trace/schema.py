"""The schema: the columns of an event file, and the number of its format."""

from __future__ import annotations

import os

import pyarrow as pa

from traincheck.errors import TraceTooNew, TraceUnreadable
from traincheck.version import __version__

FORMAT = 1
"""Format of a run folder (event files, run.json, process notes); every change that an older reader would misread takes
the next number.

1 (0.1.0): `events-<rank>-<process>.arrows`, an Arrow IPC stream with the columns of `COLUMNS` and one record batch to a
window; run.json with `Manifest`; `process-<rank>-<process>.json` with `ProcessNote`.
"""

WINDOW, CALL, CHANGE = "window", "call", "change"
EVENTS = (WINDOW, CALL, CHANGE)
"""What a row is. Each batch is one window: a row for the window itself (so that an empty one survives), then its calls,
then its changes, each in the order in which the window holds them. Rows of two kinds are not interleaved by `seq`:
whoever wants them so sorts them when reading, which costs training nothing.

Note [Other tools]: `pyarrow.ipc.open_stream(file).read_all()` is the table; DuckDB queries that object by its name,
`polars.from_arrow` takes it over. Polars' own reader of streams knows no growing dictionaries, which we need: written
anew whenever one grows, they would outweigh the events in a job that meets new values all the time."""

TEXT = pa.dictionary(pa.int32(), pa.utf8())
EVENT = pa.dictionary(pa.int8(), pa.utf8())

COLUMNS: tuple[tuple[str, pa.DataType, str], ...] = (
    ("window", pa.int32(), "number of the window in its process; a gap means that windows were dropped"),
    ("step", pa.int64(), "training step, 0 before the first"),
    ("stage", TEXT, "setup, train, eval or end"),
    ("event", EVENT, "window (opens a window), call or change; null in a column means that the row has no such thing"),
    ("seq", pa.int64(), "position among the events of the process"),
    ("end", pa.int64(), "call: position of its end, -1 when it raised or was still open"),
    ("parent", pa.int64(), "seq of the call around this one, or that a change was seen around; -1 for none"),
    ("kind", TEXT, "call: lifecycle, module, function or project; change: parameter, buffer or optimizer_state"),
    ("name", TEXT, "call: name of the API; change: name of the variable"),
    ("levels", TEXT, "call: its names along the classes, most specific first, joined by ' < '"),
    ("receiver", TEXT, "call: the object it was made on; change: the optimizer that holds the variable"),
    ("site", TEXT, "call: file:line:function in the user's code"),
    ("context", TEXT, "facts of the circumstances, a JSON object sorted by name"),
    ("args", TEXT, "call: facts of its arguments, likewise"),
    ("result", TEXT, "call: facts of its result, likewise"),
    ("thread", pa.int32(), "call: number of its thread in order of appearance"),
    ("attribute", TEXT, "change: data or grad"),
    ("before", TEXT, "change: none, zero or some"),
    ("after", TEXT, "change: none, zero or some"),
    ("changed", pa.bool_(), "change: whether the value itself differs"),
    ("fingerprint", pa.uint64(), "change: xxh3-64 of the value after the call, null where it was not taken"),
)
"""Name, type and meaning of each column."""

_FORMAT, _VERSION, _RANK, _PROCESS = (
    b"traincheck.format",
    b"traincheck.version",
    b"traincheck.rank",
    b"traincheck.process",
)


def schema(rank: int, process: int) -> pa.Schema:
    """The schema of the event file of one process; its metadata says whose it is."""
    metadata = {_FORMAT: str(FORMAT), _VERSION: __version__, _RANK: str(rank), _PROCESS: str(process)}
    return pa.schema([pa.field(name, kind) for name, kind, _ in COLUMNS], metadata=metadata)


def owner(found: pa.Schema, path: str | os.PathLike[str]) -> tuple[int, int]:
    """Rank and process of the event file with this schema.

    Raises TraceUnreadable when it is an Arrow stream of something else, TraceTooNew when its format is newer.
    """
    metadata = found.metadata or {}
    try:
        version = int(metadata[_FORMAT])
    except (KeyError, ValueError):
        raise TraceUnreadable(path, "it is an Arrow stream, but not of events") from None
    if version > FORMAT:
        raise TraceTooNew(path, version, FORMAT)
    wrong = [name for name, kind, _ in COLUMNS if found.get_field_index(name) < 0 or found.field(name).type != kind]
    if wrong:
        raise TraceUnreadable(path, f"it has no proper column '{wrong[0]}'")
    try:
        return int(metadata[_RANK]), int(metadata[_PROCESS])
    except (KeyError, ValueError):
        raise TraceUnreadable(path, "it does not say which process it is of") from None
