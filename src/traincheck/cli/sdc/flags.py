"""Flags of `traincheck sdc`, and the check of their numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Optional

from traincheck.cli.flags import flag
from traincheck.errors import BadOption

Workload = Annotated[Optional[str], flag("workload")]  # noqa: UP045
Framework = Annotated[str, flag("framework")]
Steps = Annotated[
    Optional[int],  # noqa: UP045
    flag("steps", "Training steps to execute. (default: 3, for each level of a study 10)"),
]
Seed = Annotated[int, flag("seed")]
Device = Annotated[Optional[str], flag("device")]  # noqa: UP045
Threads = Annotated[int, flag("threads")]
Faults = Annotated[Optional[list[str]], flag("faults")]  # noqa: UP045
Levels = Annotated[Optional[list[str]], flag("levels")]  # noqa: UP045
TensorParallel = Annotated[int, flag("tensor_parallel")]
StudyFiles = Annotated[
    Optional[list[Path]],  # noqa: UP045
    flag(
        "out", "File to write: FILE.html is a page with tables and plots, any other JSON. Repeatable.", metavar="FILE"
    ),
]
FingerprintFile = Annotated[
    Optional[Path],  # noqa: UP045
    flag("out", "File to write the fingerprints of a clean device to, to compare others with.", metavar="FILE"),
]
FromStudy = Annotated[
    Optional[Path],  # noqa: UP045
    flag(
        "from_earlier",
        "Show the results of an earlier study, which -o wrote, and execute nothing.",
        metavar="FILE",
    ),
]
Seconds = Annotated[int, flag("seconds")]
Against = Annotated[
    Optional[Path],  # noqa: UP045
    flag(
        "against",
        "Known fingerprints to compare with, which screen -o wrote on a clean device of the same kind.",
        metavar="FILE",
    ),
]

BUILT_IN = "decoder-tiny"


def at_least(flag_: str, value: int | float, least: int) -> None:
    """Raises BadOption for a number below `least`."""
    if value < least:
        raise BadOption(flag_, value, f"a number, {least} or more")
