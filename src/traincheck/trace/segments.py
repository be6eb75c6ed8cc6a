"""Find the files of a long recording, its segments, and notice which of them were removed.

The first segment has the name of the recording (`events-0-4078.arrows`), later ones add their number
(`events-0-4078.2.arrows`). Each can be read separately. The next segment is created before the previous one ends. So if
no later segment exists at an end mark, the recording is complete.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

from traincheck.addresses import Address, as_path
from traincheck.errors import TraceOutOfReach

_NUMBERED = re.compile(r"(?P<stem>.+)\.(?P<number>\d{1,9})\.arrows")


def segment_of(recording: Path, number: int) -> Path:
    """Return the path of a segment, numbered from 1."""
    return recording if number == 1 else recording.with_suffix(f".{number}{recording.suffix}")


def number_of(segment: Path) -> int:
    """Return the number of a segment."""
    match = _NUMBERED.fullmatch(segment.name)
    return int(match["number"]) if match else 1


def segments(recording: str | os.PathLike[str]) -> tuple[Path, ...]:
    """Return the existing segments of a recording, in order. Raises TraceOutOfReach."""
    first = as_path(recording)
    return first, *(segment_of(first, number) for number in sorted(_numbers(first)))


def segments_in_turn(recording: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield the segments of a recording that may still grow; the next one is looked up when it is requested.

    Raises TraceOutOfReach.
    """
    first, number = as_path(recording), 1
    while True:
        yield segment_of(first, number)
        later = [following for following in _numbers(first) if following > number]
        if not later:
            return
        number = min(later)


def is_gone(segment: Path) -> bool:
    """Whether the writing process has removed a segment (it never removes the first)."""
    return number_of(segment) > 1 and not segment.exists()


def _numbers(first: Path) -> list[int]:
    """Return the numbers of the segments after the first."""
    try:
        # Of a folder with files of thousands of ranks: twice as fast as by paths, which addresses need.
        names = (
            [entry.name for entry in first.parent.iterdir()] if isinstance(first, Address) else os.listdir(first.parent)  # noqa: PTH208
        )
    except OSError as error:
        raise TraceOutOfReach(first.parent, error.strerror or str(error)) from error
    matches = (_NUMBERED.fullmatch(name) for name in names if name.startswith(first.stem))
    return [int(match["number"]) for match in matches if match and match["stem"] == first.stem]
