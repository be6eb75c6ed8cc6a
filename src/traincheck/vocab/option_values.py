"""The words that options take as values."""

from __future__ import annotations

AUTO, FILES, EXCHANGE, OFF = "auto", "files", "exchange", "off"
"""How ranks are compared: as the run folders allow, by files, by an exchange between the ranks, or not at all."""

AROUND_FINDINGS, ALL, OPERATIONS = "found", "all", "operations"
"""Which steps of a checked run are recorded: those around findings, the first and last ones and a few others; or every
watched step."""

SHIPPED_PACKS, NO_PACKS = "shipped", "none"
"""In place of a folder: the packs that come with TrainCheck, or none."""

RECORDED_WHOLE = (
    "nothing here: what is learned from is recorded whole; it is a check (`traincheck run`) that can leave out steps"
)
"""The end of a message: why a recording does not take the options about unwatched steps."""
