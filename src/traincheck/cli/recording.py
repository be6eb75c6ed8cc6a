"""Recording: start the user's program with a run folder, and say how it ended. Shared by `collect` and `run`."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from traincheck import redaction
from traincheck.cli.console import remark
from traincheck.config import Config
from traincheck.errors import TrainCheckError
from traincheck.options import FOUND
from traincheck.runtime.target import Target

if TYPE_CHECKING:
    from traincheck.invariants.book import Book
    from traincheck.runtime.launch import ExitStatus
    from traincheck.runtime.settings import Settings
    from traincheck.trace.folder import RunFolder
    from traincheck.trace.notes import Manifest


@dataclass(frozen=True, slots=True)
class Recording:
    """A program that has ended and the folder that holds what was seen of it."""

    folder: RunFolder
    status: ExitStatus

    @property
    def path(self) -> Path:
        return self.folder.path


def default_folder(runs: str, target: Target, now: time.struct_time | None = None) -> Path:
    """`RUNS/NAME-YYYYmmdd-HHMMSS`, with a number behind it where that is taken."""
    stamp = time.strftime("%Y%m%d-%H%M%S", now or time.localtime())
    path = first = Path(runs) / f"{target.name}-{stamp}"
    number = 1
    while path.exists():
        number += 1
        path = first.with_name(f"{first.name}-{number}")
    return path


def record(
    target: Target,
    config: Config,
    path: Path | None,
    book: Book | None,
    environ: Mapping[str, str],
    beside: Callable[[RunFolder], AbstractContextManager[object]] = nullcontext,
) -> Recording:
    """Run `target` to its end: checked against `book` while it runs, or without one recorded in full.

    What `beside` makes of the run folder once it has started is open while it runs.

    Raises UsageError, RunFolderError or OutputError before the program is started, and nothing of ours afterwards.
    """
    from traincheck.invariants.book import write_book
    from traincheck.runtime.launch import launch
    from traincheck.trace.folder import RunFolder
    from traincheck.trace.format import BOOK_FILE

    target.check(environ)
    mode: Literal["collect", "run"] = "run" if book is not None else "collect"
    folder = RunFolder.create(path or default_folder(config.runs, target), manifest(target, config, mode))
    books: tuple[str, ...] = ()
    if book is not None:  # kept with the run, where no later change reaches it
        write_book(book, folder.path / BOOK_FILE)
        books = (str((folder.path / BOOK_FILE).absolute()),)
    begun = folder.manifest
    told = settings(target, config, folder.path.absolute(), mode, books)
    status = launch(target, told, environ, lambda: beside(folder))
    try:
        if deleted := not folder.path.exists():  # somebody tidied up
            folder = RunFolder.create(folder.path, begun)
            remark(f"run folder {folder.path} was deleted while the program ran; what was seen of it is lost")
        folder.update(deleted=deleted, ended=now_in_words(), exit_code=status.code)
    except TrainCheckError as error:
        remark(str(error))
    return Recording(folder, status)


def manifest(target: Target, config: Config, mode: Literal["collect", "run"]) -> Manifest:
    """What is known of the run before it begins."""
    from traincheck.trace.notes import Manifest

    return Manifest(
        mode=mode,
        argv=target.words,
        script=redaction.text(target.script),
        script_digest=target.digest,
        python=platform.python_version(),
        started=now_in_words(),
        books=config.books if mode == "run" else (),
    )


def settings(
    target: Target, config: Config, folder: Path, mode: Literal["collect", "run"], books: tuple[str, ...]
) -> Settings:
    """What the processes of the run must know."""
    from traincheck.runtime.settings import Settings

    return Settings(
        run_folder=str(folder),
        mode=mode,
        books=books,
        on_violation=_either(config.on_violation),
        callback=config.callback,
        look_closer=config.look_closer,
        snapshot=config.snapshot,
        record="found" if mode == "run" and config.record == FOUND else "all",
        keep_recording=config.keep_recording,
        compare_ranks=config.compare_ranks,
        sample_every=config.sample_every if mode == "run" else 1,
        warm_up=config.warm_up,
        budget=config.budget if mode == "run" else 0.0,
        fail_on="notice" if config.fail_on == "notice" else "never" if config.fail_on == "never" else "error",
        project=target.project(Path.cwd()),
        packages=config.packages,
        script=redaction.text(target.script),
    )


def _either(on_violation: str) -> Literal["warn", "stop", "callback"]:
    return "stop" if on_violation == "stop" else "callback" if on_violation == "callback" else "warn"


def now_in_words() -> str:
    """The time in ISO 8601, in UTC: run folders travel between machines."""
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def tell_end(status: ExitStatus) -> None:
    """A line about an end that the program's own output may not explain."""
    if status.signal:
        remark(f"the program was ended by {status.signal_name or status.signal}; what was recorded is kept")
    elif status.code:
        remark(f"the program ended with exit code {status.code}; what was recorded is kept")


def tell_removed(folder: RunFolder) -> None:
    """Which steps were removed from recordings that grew too large."""
    for words in folder.removed():
        remark(words)


def tell_nothing(folder: RunFolder) -> None:
    """Nothing was observed, and what that usually means."""
    if folder.manifest.deleted:
        return  # it was, and this was told
    remark("nothing was observed: no Python process of the program came to train (was torch imported at all?)")
    remark("`traincheck doctor` tells what can be observed here")
    remark(f"run folder: {folder.path}")
