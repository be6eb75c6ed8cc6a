"""Files that are written whole or not at all."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import TypeAlias

from traincheck.errors import OutputError

PathLike: TypeAlias = str | os.PathLike[str]


def write_whole(path: PathLike, data: bytes) -> None:
    """Writes `data` beside `path` and moves it into place; makes the folder. A device or a pipe is written to directly.

    Raises OutputError, and leaves what was at `path` before as it was.
    """
    target = Path(os.path.realpath(path))
    beside = target.with_name(f".{target.name}.{os.getpid()}.partial")
    try:
        if target.exists() and not target.is_file():
            target.write_bytes(data)
            return
        target.parent.mkdir(parents=True, exist_ok=True)
        beside.write_bytes(data)
        beside.replace(target)
    except OSError as error:
        with contextlib.suppress(OSError):
            beside.unlink(missing_ok=True)
        raise OutputError(path, error.strerror or str(error)) from None
    except BaseException:  # Ctrl-C leaves nothing behind
        with contextlib.suppress(OSError):
            beside.unlink(missing_ok=True)
        raise
