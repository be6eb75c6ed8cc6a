"""What the command tells the process of a tracker, and what comes back: JSON, a line each."""

from __future__ import annotations

import msgspec

from traincheck.vocab.finding import Finding
from traincheck.vocab.run_status import RunStatus

OPEN, SHOW, MEASURE, CLOSE = "open", "show", "measure", "close"


class Message(msgspec.Struct, omit_defaults=True):
    """One thing that is told: `kind` says which method of the tracker it is for, the rest what it is given."""

    kind: str
    run: dict[str, str] = {}
    finding: Finding | None = None
    status: RunStatus | None = None
    files: tuple[str, ...] = ()


class Answer(msgspec.Struct, omit_defaults=True):
    """What became of it: `where` the run can be looked at, or the `trouble` there was."""

    where: str = ""
    trouble: str = ""
