"""Passes settings from a command to the processes of a run, as RUN/session.json."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

import msgspec

from traincheck import plugins
from traincheck.errors import SessionUnreadable
from traincheck.files import read_bounded, write_whole

FILE_NAME = "session.json"


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=False):
    """The settings of every observed process of one run.

    `run_folder` is absolute. The file does not store it, because it is the file's own folder. `project` has absolute
    folders of your own code, and `packages` the names of further observed packages. `live_terminal` shows findings on
    stderr during the run. `record` selects the recorded windows: all, or those that `Retention` selects; with
    `operations`, the operations of watched steps are sketched (sources/operations/), and all elements are kept of
    the module and the step that `whole_values` names.
    `records_settings` observes the program's settings even without a rule about them.

    `keep_recording` is the limit in bytes for a process, 0 for no limit. One step in `verify_every` is verified
    (sources/verification/), 0 for none. A process ends before the update after `last_step`; with 0 it ends by itself.
    `budget` (a share from 0 to 1, 0 for no limit), `sample_every` and `warm_up` are those of `Sampling`.
    `initial_state` is the folder of a run with whose weights and random states the training begins.
    `installed_sources` makes a process search installed packages for sources. You may add fields: an older process
    ignores them.
    """

    run_folder: str
    mode: Literal["collect", "run"]
    books: tuple[str, ...] = ()
    on_violation: Literal["warn", "stop", "callback"] = "warn"
    callback: str = ""
    record_after_finding: int = 5
    snapshot: bool = False
    record: Literal["found", "all", "operations"] = "all"
    whole_values: str = ""
    keep_recording: int = 0
    compare_ranks: str = "auto"
    sample_every: int = 1
    warm_up: int = 20
    budget: float = 0.0
    verify_every: int = 0
    last_step: int = 0
    initial_state: str = ""
    fail_on: Literal["error", "notice", "never"] = "error"
    project: tuple[str, ...] = ()
    packages: tuple[str, ...] = ()
    script: str = ""
    records_settings: bool = False
    live_terminal: bool = True
    installed_sources: bool = True

    @property
    def file(self) -> Path:
        """Path of these settings, for the processes of the run."""
        return Path(self.run_folder) / FILE_NAME

    @property
    def acts_on_findings(self) -> bool:
        """Whether a finding has an effect before the next update."""
        return self.on_violation != "warn" or self.snapshot

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Settings:
        """The settings in `path`. Raises SessionUnreadable."""
        try:
            settings = msgspec.json.decode(read_bounded(path), type=cls)
        except (OSError, msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
            raise SessionUnreadable(path, str(error)) from error
        folder = Path(path).absolute().parent
        books = tuple(str(folder / book) for book in settings.books)
        return msgspec.structs.replace(settings, run_folder=str(folder), books=books)

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write the settings to `path`, whole or not at all. Raises OutputError."""
        folder = Path(path).absolute().parent
        books = tuple(
            str(Path(book).relative_to(folder)) if folder in Path(book).parents else book for book in self.books
        )
        adds_sources = bool(plugins.added(plugins.SOURCE_GROUP))  # a slow search, so it is done here once
        portable = msgspec.structs.replace(self, run_folder="", books=books, installed_sources=adds_sources)
        write_whole(path, msgspec.json.format(msgspec.json.encode(portable), indent=2))
