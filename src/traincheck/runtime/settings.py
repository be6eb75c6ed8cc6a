"""Settings: what a command asks of the processes that it starts, handed to them as RUN/session.json."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

import msgspec

from traincheck.errors import SessionUnreadable
from traincheck.files import write_whole

FILE_NAME = "session.json"


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=False):
    """What every observed process of one run must know; frozen, so that all of them do the same.

    `run_folder` is absolute. `project` holds absolute folders of the user's own code, `packages` the names of further
    packages whose functions are observed. `live_terminal` says whether findings are shown on stderr as they are made.
    Fields may be added: a process that knows fewer of them reads the file all the same.
    """

    run_folder: str
    mode: Literal["collect", "run"]
    books: tuple[str, ...] = ()
    on_violation: Literal["warn", "stop"] = "warn"
    compare_ranks: str = "auto"
    fail_on: Literal["error", "notice", "never"] = "error"
    project: tuple[str, ...] = ()
    packages: tuple[str, ...] = ()
    script: str = ""
    live_terminal: bool = True

    @property
    def file(self) -> Path:
        """Where these settings lie for the processes of the run."""
        return Path(self.run_folder) / FILE_NAME

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Settings:
        """The settings in `path`. Raises SessionUnreadable."""
        try:
            return msgspec.json.decode(Path(path).read_bytes(), type=cls)
        except (OSError, msgspec.MsgspecError) as error:
            raise SessionUnreadable(path, str(error)) from error

    def write(self, path: str | os.PathLike[str]) -> None:
        """Put the settings into `path` as a whole or not at all. Raises OutputError."""
        write_whole(path, msgspec.json.format(msgspec.json.encode(self), indent=2))
