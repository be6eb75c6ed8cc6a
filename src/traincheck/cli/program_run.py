"""Recording: start the user's program with a run folder, and say how it ended. Shared by `collect` and `run`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from traincheck.cli.console import remark
from traincheck.config import Config
from traincheck.errors import TrainCheckError
from traincheck.runtime.launching.command_target import Target

if TYPE_CHECKING:
    from traincheck.invariants.book import Book
    from traincheck.runtime.launching.launch import ExitStatus
    from traincheck.trace.folder import RunFolder


@dataclass(frozen=True, slots=True)
class Recording:
    """A program that has ended and the folder that holds what was seen of it."""

    folder: RunFolder
    status: ExitStatus

    @property
    def path(self) -> Path:
        return self.folder.path


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
    from traincheck.runtime.launching.launch import launch
    from traincheck.runtime.launching.run_setup import begin, now_in_words
    from traincheck.trace.folder import RunFolder

    target.check(environ)
    folder, told = begin(target, config, path, book)
    begun = folder.manifest
    status = launch(target, told, environ, lambda: beside(folder))
    try:
        if deleted := not folder.path.exists():  # somebody tidied up
            folder = RunFolder.create(folder.path, begun)
            remark(f"run folder {folder.path} was deleted while the program ran; what was seen of it is lost")
        folder.update(deleted=deleted, ended=now_in_words(), exit_code=status.code)
    except TrainCheckError as error:
        remark(str(error))
    return Recording(folder, status)


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
