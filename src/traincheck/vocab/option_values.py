"""Words that options take as values."""

from __future__ import annotations

AUTO, FILES, EXCHANGE, OFF = "auto", "files", "exchange", "off"
"""How ranks are compared: as the run folders allow, by their files, by what they tell each other, or not at all."""

AROUND_FINDINGS, ALL = "found", "all"
"""What of a checked run is recorded: the steps around what was found, the first and the last ones and a few others; or
each step that is watched."""

SHIPPED_PACKS, NO_PACKS = "shipped", "none"
"""In place of a folder: the packs that come with TrainCheck, or none."""

RECORDED_WHOLE = (
    "nothing here: what is learned from is recorded whole; it is a check (`traincheck run`) that can leave out steps"
)
"""Why a recording does not take the options about steps that are not watched, as the end of a message."""
