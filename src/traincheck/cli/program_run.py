"""Runs the user's program with a run folder and reports how it ended, for `collect` and `run`."""

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
    """A program that has ended, and its run folder."""

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
    during: Callable[[RunFolder], AbstractContextManager[object]] = nullcontext,
    *,
    last_step: int = 0,
    initial_state: Path | None = None,
    output_to_stderr: bool = False,
) -> Recording:
    """Run `target` to its end, checked against `book`, or recorded in full without a book.

    The context that `during` makes for the run folder is open while the program runs. The program ends after
    `last_step` if that is not 0, and with `output_to_stderr` leaves stdout to this command. It begins with the initial
    state of the run folder `initial_state`.

    Raises UsageError, RunFolderError or OutputError before the program starts, and no TrainCheckError afterwards.
    """
    from traincheck.runtime.launching.launch import launch
    from traincheck.runtime.launching.run_setup import begin, now_in_words
    from traincheck.trace.folder import RunFolder

    target.check(environ)
    folder, settings = begin(target, config, path, book, last_step, initial_state)
    manifest = folder.manifest
    status = launch(target, settings, environ, lambda: during(folder), output_to_stderr=output_to_stderr)
    try:
        if deleted := not folder.path.exists():  # by somebody else
            folder = RunFolder.create(folder.path, manifest)
            remark(f"run folder {folder.path} was deleted while the program ran; its recording is lost")
        folder.update(deleted=deleted, ended=now_in_words(), exit_code=status.code)
    except TrainCheckError as error:
        remark(str(error))
    return Recording(folder, status)


def report_end(status: ExitStatus) -> None:
    """Print a line about a failure that the program's own output may not explain."""
    if status.signal:
        remark(f"the program was ended by {status.signal_name or status.signal}; its recording is kept")
    elif status.code:
        remark(f"the program ended with exit code {status.code}; its recording is kept")


def report_removed_steps(folder: RunFolder) -> None:
    """Print which steps were removed from recordings that grew too large."""
    for text in folder.removed():
        remark(text)


def report_nothing_observed(folder: RunFolder) -> None:
    """Say that nothing was observed, and the usual reason."""
    if folder.manifest.deleted:
        return  # this was reported
    remark("nothing was observed: no Python process of the program trained (did it import torch?)")
    remark("`traincheck doctor` lists what can be observed here")
    remark(f"run folder: {folder.path}")
