"""Settings: what a command asks of the processes that it starts, handed to them as RUN/session.json."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

import msgspec

from traincheck.errors import SessionUnreadable
from traincheck.files import read_bounded, write_whole

FILE_NAME = "session.json"


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=False):
    """What every observed process of one run must know; frozen, so that all of them do the same.

    `run_folder` is absolute; it is the folder that the file lies in, which is not said in it. `project` holds absolute
    folders of the user's own code, `packages` the names of further packages whose functions are observed.
    `live_terminal` says whether findings are shown on stderr as they are made.
    `record` says which windows are recorded: all, or those that `Stretches` chooses; a run that is not checked is
    recorded whole.
    `tells_settings` says whether the settings of the program are observed although no rule asks for them.
    `keep_recording` is how many bytes a process may record, 0 for no limit.
    `replay_every` says which steps are executed again, see sources/replay/replays.py; 0 is none.
    `sample_every`, `warm_up` and `budget` (a share of one; 0 is none) are those of `Sampling`.
    Fields may be added: a process that knows fewer of them reads the file all the same.
    """

    run_folder: str
    mode: Literal["collect", "run"]
    books: tuple[str, ...] = ()
    on_violation: Literal["warn", "stop", "callback"] = "warn"
    callback: str = ""
    look_closer: int = 5
    snapshot: bool = False
    record: Literal["found", "all"] = "all"
    keep_recording: int = 0
    compare_ranks: str = "auto"
    sample_every: int = 1
    warm_up: int = 20
    budget: float = 0.0
    replay_every: int = 0
    fail_on: Literal["error", "notice", "never"] = "error"
    project: tuple[str, ...] = ()
    packages: tuple[str, ...] = ()
    script: str = ""
    tells_settings: bool = False
    live_terminal: bool = True

    @property
    def file(self) -> Path:
        """Where these settings lie for the processes of the run."""
        return Path(self.run_folder) / FILE_NAME

    @property
    def heeds_findings(self) -> bool:
        """Whether something is to be done about what is found before the next update."""
        return self.on_violation != "warn" or self.snapshot

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Settings:
        """The settings in `path`. Raises SessionUnreadable."""
        try:
            found = msgspec.json.decode(read_bounded(path), type=cls)
        except (OSError, msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
            raise SessionUnreadable(path, str(error)) from error
        here = Path(path).absolute().parent
        books = tuple(str(here / book) for book in found.books)
        return msgspec.structs.replace(found, run_folder=str(here), books=books)

    def write(self, path: str | os.PathLike[str]) -> None:
        """Put the settings into `path` as a whole or not at all. Raises OutputError."""
        here = Path(path).absolute().parent
        books = tuple(str(Path(book).relative_to(here)) if here in Path(book).parents else book for book in self.books)
        told = msgspec.structs.replace(self, run_folder="", books=books)
        write_whole(path, msgspec.json.format(msgspec.json.encode(told), indent=2))
