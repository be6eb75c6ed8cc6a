"""Read a file while another process is still writing it."""

from __future__ import annotations

import io
import os
import time
from collections.abc import Callable
from pathlib import Path

MOST = 1 << 24
"""Bytes to read at a time: memory is reserved for them in advance."""

PAUSE = 0.2
"""Seconds between two reads of a file without new data."""


class GrowingFile(io.RawIOBase):
    """A file that is read until `ended` returns True; until then, a read waits for more data.

    Data written before `ended` returns True is read. Raises OSError if the system refuses.
    """

    def __init__(self, path: str | os.PathLike[str], ended: Callable[[], bool], pause: float = PAUSE) -> None:
        self._file = Path(path).open("rb", buffering=0)  # noqa: SIM115  # closed with this one
        self._ended = ended
        self._pause = pause
        self._over = False
        self.end = 0
        """Where the file ended when a read came to its end."""

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._file.tell()

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        return self._file.seek(offset, whence)

    def read(self, size: int = -1) -> bytes:
        """Return `size` bytes, fewer only at the end of the file (all remaining bytes for a negative size)."""
        data = b""
        while size < 0 or len(data) < size:
            more = self._file.read(min(size - len(data), MOST) if size >= 0 else -1)
            if more:
                data += more
            elif self._over:
                self.end = self._file.tell()
                break
            else:
                self._over = self._ended()  # and once more: something may have been written just before
                if not self._over:
                    time.sleep(self._pause)
        return data

    def close(self) -> None:
        if hasattr(self, "_file"):  # not if the file could not be opened; then Python closes this object all the same
            self._file.close()
        super().close()
