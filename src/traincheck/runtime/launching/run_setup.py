"""Prepares a run: makes its folder, its manifest and the settings for its processes."""

from __future__ import annotations

import os
import platform
import time
from datetime import datetime, timezone
from pathlib import Path
from typing import Literal

import msgspec

from traincheck import plugins, redaction
from traincheck.config import Budget, Config
from traincheck.errors import NoInitialState
from traincheck.invariants.book import Book, write_book
from traincheck.options import AROUND_FINDINGS, OPERATIONS
from traincheck.runtime.launching.code_version import commit_of
from traincheck.runtime.launching.command_target import Target
from traincheck.runtime.launching.program_identity import CheckedProgram, digests_of, identity_of
from traincheck.runtime.launching.run_settings import Settings
from traincheck.trace.folder import RunFolder
from traincheck.trace.format import BOOK_FILE
from traincheck.trace.run_notes import Manifest
from traincheck.vocab.program import ProgramIdentity


def begin(
    target: Target,
    config: Config,
    path: Path | None,
    book: Book | None,
    last_step: int = 0,
    initial_state: Path | None = None,
) -> tuple[RunFolder, Settings]:
    """Create a run folder, at `path` or in the folder of runs, and return it with the settings of the run.

    The run is checked against `book`, or recorded in full without a book. It ends after `last_step`, unless that is 0.
    It begins with the initial state of the run `initial_state`. Raises RunFolderError (NoInitialState among them) or
    OutputError, and PluginError for a package with an unusable source.
    """
    plugins.check(plugins.SOURCE_GROUP)
    if initial_state is not None and not RunFolder.open(initial_state).initial_states():
        raise NoInitialState(initial_state)
    mode: Literal["collect", "run"] = "run" if book is not None else "collect"
    folder = RunFolder.create(path or default_folder(config.runs, target), manifest(target, config, mode))
    books: tuple[str, ...] = ()
    if book is not None:  # a copy, so that later changes have no effect
        write_book(book, folder.path / BOOK_FILE)
        books = (str((folder.path / BOOK_FILE).absolute()),)
    run_settings = settings(target, config, folder.path.absolute(), mode, books)
    learned = book is not None and any(rule.support.runs for rule in book.invariants)
    # You may accept this run as a good one later, and then its settings must be recorded.
    records_settings = learned and not config.books
    run_settings = msgspec.structs.replace(
        run_settings,
        records_settings=records_settings,
        last_step=last_step,
        initial_state=str(initial_state.absolute()) if initial_state is not None else "",
    )
    return folder, run_settings


def default_folder(runs: str, target: Target, now: time.struct_time | None = None) -> Path:
    """`RUNS/NAME-YYYYmmdd-HHMMSS`, with a number appended if that exists."""
    stamp = time.strftime("%Y%m%d-%H%M%S", now or time.localtime())
    path = first = Path(runs) / f"{target.name}-{stamp}"
    number = 1
    while path.exists():
        number += 1
        path = first.with_name(f"{first.name}-{number}")
    return path


def manifest(target: Target, config: Config, mode: Literal["collect", "run"]) -> Manifest:
    """The facts about the run before it begins."""
    program = checked_program(target, config)
    return Manifest(
        mode=mode,
        argv=target.words,
        script=program.script,
        script_digest=target.digest,
        files=digests_of(target, Path.cwd()),
        commit=commit_of(_folder_of(target)),
        program=str(program.identity),
        python=platform.python_version(),
        started=now_in_words(),
        books=config.books if mode == "run" else (),
    )


def _folder_of(target: Target) -> Path:
    """The folder of the program's main file, or the working directory."""
    file = target.file
    return file.parent if file is not None else Path()


def checked_program(target: Target, config: Config) -> CheckedProgram:
    """The program that the target starts, under the name of `--as`, or else with its own identity."""
    identity = identity_of(target, Path.cwd())
    if config.as_program:
        name = redaction.text(config.as_program)
        return CheckedProgram(name, name, ProgramIdentity(identity.main))
    script = redaction.text(target.script)
    return CheckedProgram(script, script, identity)


def settings(
    target: Target, config: Config, folder: Path, mode: Literal["collect", "run"], books: tuple[str, ...]
) -> Settings:
    """The settings for the processes of the run."""
    watched = config.watched if mode == "run" else Budget()
    return Settings(
        run_folder=str(folder),
        mode=mode,
        books=books,
        on_violation=_literal(config.on_violation),
        callback=config.callback,
        record_after_finding=config.record_after_finding,
        snapshot=config.snapshot,
        record=_record(mode, config),
        whole_values=config.whole_values,
        keep_recording=config.keep_recording,
        compare_ranks=config.compare_ranks,
        budget=watched.share,
        sample_every=watched.every,
        warm_up=watched.first,
        verify_every=config.verify_every,
        fail_on="notice" if config.fail_on == "notice" else "never" if config.fail_on == "never" else "error",
        project=target.project(Path.cwd(), os.environ.get("PYTHONPATH", "")),
        packages=config.packages,
        script=checked_program(target, config).script,
    )


def _record(mode: Literal["collect", "run"], config: Config) -> Literal["found", "all", "operations"]:
    if config.record == OPERATIONS:
        return "operations"
    return "found" if mode == "run" and config.record == AROUND_FINDINGS else "all"


def _literal(on_violation: str) -> Literal["warn", "stop", "callback"]:
    return "stop" if on_violation == "stop" else "callback" if on_violation == "callback" else "warn"


def now_in_words() -> str:
    """The time in ISO 8601 and in UTC, as run folders are copied between machines."""
    return datetime.now(timezone.utc).isoformat(timespec="seconds")
