"""Name the files of a run folder, and number its format.

Imports no pyarrow, which takes longer to import than everything else that a command does before the program starts.
"""

FORMAT = 2
"""Format of a run folder (event files, run.json, process notes); every change that an older reader would misread takes
the next number.

1 (0.1.0): `events-<rank>-<process>.arrows`, an Arrow IPC stream with the columns of schema.py and one record batch to a
window; run.json with `Manifest`; `process-<rank>-<process>.json` with `ProcessNote`.

2 (0.1.0): readings and the tensors of calls, as rows of their own below the changes; the columns of `SINCE` are new. A
file of format 1 has neither, and reads as such. A recording may go on in `events-<rank>-<process>.<number>.arrows`, see
segments.py; the metadata of these say which steps were removed before.
"""

MANIFEST = "run.json"

BOOK_FILE = "book.jsonl"
"""The book against which a run was checked live. The run folder keeps it, because it decided what was observed."""

EVENTS, DIGESTS, OPERATIONS, MARKS, WHOLE_VALUES = "events", "told", "operations", "marks", "values"
INITIAL_STATE = "initial-state"
"""Prefixes of the files of a process: its events, the digests that it publishes to other ranks (see
checking/digests.py), its operations, its marks and whole values (see operation_files.py), and the state with which it
began. The prefix of digests on disk stays `told`."""
