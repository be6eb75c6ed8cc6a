"""The messages between the command and the process of a tracker: one JSON object per line."""

from __future__ import annotations

import msgspec

from traincheck.vocab.finding import Finding
from traincheck.vocab.run_status import RunStatus

OPEN, SHOW, MEASURE, CLOSE = "open", "show", "measure", "close"


class Message(msgspec.Struct, omit_defaults=True):
    """A call of the tracker: `kind` selects the method, the other fields are its arguments."""

    kind: str
    run: dict[str, str] = {}
    finding: Finding | None = None
    status: RunStatus | None = None
    files: tuple[str, ...] = ()


class Answer(msgspec.Struct, omit_defaults=True):
    """The result of a call: `where` you can look at the run, or the `trouble` that occurred."""

    where: str = ""
    trouble: str = ""
