"""Observing from inside a program: `with traincheck.observe(...)`, `traincheck.step()` and `traincheck.stage(...)`."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from traincheck.checking.live import gather
from traincheck.checking.offline import BOOK_FILE
from traincheck.errors import BadOption
from traincheck.files import PathLike
from traincheck.invariants.book import Book, read_books, write_book
from traincheck.reporting.html.sink import render_html
from traincheck.reporting.json_report import write_json
from traincheck.runtime import session
from traincheck.runtime.settings import Settings
from traincheck.trace.folder import RunFolder
from traincheck.trace.notes import Manifest
from traincheck.vocab.events import EVAL, STAGES, TRAIN

if TYPE_CHECKING:
    from traincheck.vocab.finding import Report


class Observation:
    """A run that is observed from inside: `folder` is its run folder, `report` what was found (None when recording)."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.report: Report | None = None


@contextmanager
def observe(
    run_folder: PathLike,
    book: PathLike | Sequence[PathLike] = (),
    *,
    on_violation: Literal["warn", "stop"] = "warn",
    packages: Sequence[str] = (),
    name: str = "",
) -> Iterator[Observation]:
    """Observe the training inside the block, for a notebook or a library.

    Without a book the run is recorded in full into `run_folder`, as `traincheck collect` does. With one or more books
    it is checked while it trains, as `traincheck run` does: findings are shown on stderr as they are made, report.json
    and report.html are left in the folder, and `Observation.report` holds the report when the block is left. `name` is
    what the run is called (the running script by default).

    Raises TrainCheckError before the block is entered where the folder or a book cannot be used, and StopTraining
    inside it with `on_violation="stop"`. Inside a program that is observed already, the block only yields.
    Known limitations: torch functions are seen only in the thread that enters the block. In a process with several
    threads a model that exists already has its name from its first use on, unless global variables lead to it.
    """
    if on_violation not in ("warn", "stop"):
        raise BadOption("on_violation", on_violation, "'warn' or 'stop'")
    outer = session.current
    if outer is not None and outer.running:
        yield Observation(Path(outer.settings.run_folder))
        return
    paths = [book] if isinstance(book, (str, os.PathLike)) else list(book)
    rules = read_books(paths) if paths else None
    folder = _prepare(run_folder, rules, tuple(str(path) for path in paths), name)
    settings = Settings(
        run_folder=str(folder.path.absolute()),
        mode="collect" if rules is None else "run",
        books=() if rules is None else (str((folder.path / BOOK_FILE).absolute()),),
        on_violation=on_violation,
        project=(str(Path.cwd()),),
        packages=tuple(packages),
        script=folder.manifest.script,
    )
    observation = Observation(folder.path)
    running = session.start(settings)
    failed = True
    try:
        yield observation
        failed = False
    finally:
        running.stop()
        folder.update(ended=_now(), exit_code=int(failed))
        if rules is not None:
            observation.report = _report(folder.path, rules)


def _prepare(path: PathLike, book: Book | None, books: tuple[str, ...], name: str) -> RunFolder:
    script = name or Path(getattr(sys.modules["__main__"], "__file__", "") or "notebook").name
    folder = RunFolder.create(
        path,
        Manifest(
            mode="collect" if book is None else "run",
            argv=tuple(sys.argv),
            script=script,
            python=platform.python_version(),
            started=_now(),
            books=books,
        ),
    )
    if book is not None:
        write_book(book, folder.path / BOOK_FILE)
    return folder


def _report(folder: Path, book: Book) -> Report:
    checked = gather(folder, book)
    write_json(checked.report, folder / "report.json")
    render_html(checked.report, checked.verdicts, folder / "report.html")
    return checked.report


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def step() -> None:
    """Say that a training step ends here. From the first call on, only these calls end steps. No effect unobserved."""
    running = session.current
    if running is not None and running.running:
        recorder = running.recorder
        recorder.steps.explicit_step(recorder.next_seq())


@contextmanager
def stage(name: str) -> Iterator[None]:
    """Say that what happens in the block is of this stage: `train` or `eval`. No effect unobserved.

    Raises BadOption for another name.
    """
    if name not in (TRAIN, EVAL):
        raise BadOption("stage", name, f"one of {', '.join(repr(known) for known in STAGES[1:3])}")
    running = session.current
    recorder = running.recorder if running is not None and running.running else None
    if recorder is not None:
        recorder.steps.stage_begins(name, recorder.next_seq())
    try:
        yield
    finally:
        if recorder is not None:
            recorder.steps.stage_ends(recorder.next_seq())
