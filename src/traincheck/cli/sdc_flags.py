"""Flags of `traincheck sdc`, and what their values have to be."""

from __future__ import annotations

from typing import Annotated, Optional

from traincheck.cli.flags import flag
from traincheck.errors import BadOption

Workload = Annotated[str, flag("workload")]
Steps = Annotated[Optional[int], flag("steps")]  # noqa: UP045
Seed = Annotated[int, flag("seed")]
Device = Annotated[Optional[str], flag("device")]  # noqa: UP045
Threads = Annotated[int, flag("threads")]

BUILT_IN = "decoder-tiny"


def at_least(flag_: str, value: int | float, least: int) -> None:
    """Raises BadOption for a number that is too small."""
    if value < least:
        raise BadOption(flag_, value, f"a number, {least} or more")
