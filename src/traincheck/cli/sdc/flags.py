"""Flags of `traincheck sdc`, and what their values have to be."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Optional

from traincheck.cli.flags import flag
from traincheck.errors import BadOption

Workload = Annotated[Optional[str], flag("workload")]  # noqa: UP045
Framework = Annotated[str, flag("framework")]
Steps = Annotated[Optional[int], flag("steps")]  # noqa: UP045
Seed = Annotated[int, flag("seed")]
Device = Annotated[Optional[str], flag("device")]  # noqa: UP045
Threads = Annotated[int, flag("threads")]
Faults = Annotated[Optional[list[str]], flag("faults")]  # noqa: UP045
Levels = Annotated[Optional[list[str]], flag("levels")]  # noqa: UP045
TensorParallel = Annotated[int, flag("tensor_parallel")]
StudyPage = Annotated[Optional[Path], flag("study_page")]  # noqa: UP045
FromStudy = Annotated[Optional[Path], flag("from_study")]  # noqa: UP045
StudyFile = Annotated[Optional[Path], flag("study_file")]  # noqa: UP045
Seconds = Annotated[int, flag("seconds")]
Save = Annotated[Optional[Path], flag("save")]  # noqa: UP045
Against = Annotated[Optional[Path], flag("against")]  # noqa: UP045

BUILT_IN = "decoder-tiny"


def at_least(flag_: str, value: int | float, least: int) -> None:
    """Raises BadOption for a number that is too small."""
    if value < least:
        raise BadOption(flag_, value, f"a number, {least} or more")
