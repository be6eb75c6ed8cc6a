"""Observing from inside a program: `with traincheck.observe(...)`, `with traincheck.checked(...)`, `traincheck.step()`
and `traincheck.stage(...)`."""

from __future__ import annotations

import html
import os
import platform
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import msgspec

from traincheck import config as configs
from traincheck import plugins, redaction
from traincheck.checking.code_excerpts import with_files
from traincheck.checking.finding_details import exhibits
from traincheck.checking.live_results import gather
from traincheck.config import checked_number
from traincheck.errors import BadOption
from traincheck.files import PathLike
from traincheck.invariants.book import Book, read_book, write_book
from traincheck.options import OPTIONS, RECORDED_WHOLE
from traincheck.reporting.html.sink import render_html
from traincheck.reporting.json_report import write_json
from traincheck.runtime import process_session
from traincheck.runtime.launching.command_target import Target
from traincheck.runtime.launching.imported_packages import program_of
from traincheck.runtime.launching.program_identity import CheckedProgram, identity_of
from traincheck.runtime.launching.rule_selection import Rules, book_of
from traincheck.runtime.launching.run_settings import Settings
from traincheck.runtime.launching.run_setup import begin, checked_program, default_folder, now_in_words
from traincheck.runtime.stderr_log import complain, in_words
from traincheck.trace.folder import RunFolder
from traincheck.trace.format import BOOK_FILE
from traincheck.trace.run_notes import Manifest
from traincheck.vocab.events import EVAL, STAGES, TRAIN
from traincheck.vocab.program import ProgramIdentity

if TYPE_CHECKING:
    from traincheck.vocab.finding import Report


class Observation:
    """A run that is observed from inside: `folder` is its run folder, `report` what was found (None when recording)."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.report: Report | None = None

    def _repr_html_(self) -> str | None:
        """The page of the report, as notebooks show it; None where there is none."""
        try:
            page = (self.folder / "report.html").read_text(encoding="utf-8")
        except OSError:
            return None
        shown = html.escape(page, quote=True)
        return f'<iframe srcdoc="{shown}" style="width:100%;height:40em;border:0" title="TrainCheck"></iframe>'


@contextmanager
def observe(
    run_folder: PathLike,
    book: PathLike | Sequence[PathLike] = (),
    *,
    on_violation: Literal["warn", "stop", "callback"] = "warn",
    look_closer: int = 5,
    snapshot: bool = False,
    record: Literal["found", "all"] = "found",
    keep_recording: str = "1 GB",
    packages: Sequence[str] = (),
    name: str = "",
    sample_every: int = 1,
    warm_up: int = 20,
    budget: str = "",
) -> Iterator[Observation]:
    """Observe the training inside the block, for a notebook or a library.

    Without a book the run is recorded in full into `run_folder`, as `traincheck collect` does. With one or more books
    it is checked while it trains, as `traincheck run` does: findings are shown on stderr as they are made, report.json
    and report.html are left in the folder, and `Observation.report` holds the report when the block is left. `name` is
    what the run is called (the running script by default). `sample_every`, `warm_up` and `budget` ("1%") are the
    options of `traincheck run`: which steps are watched. A recording is of all of them.

    Raises TrainCheckError before the block is entered where the folder or a book cannot be used, and StopTraining
    inside it with `on_violation="stop"`; `look_closer`, `snapshot`, `record` and `keep_recording` are as the options
    of `traincheck run`. Nothing is raised when the block is left: what could not be written then (a full disk) is said
    on stderr, and `report` is None where it could not be made. Inside a program that is observed already, the block
    only yields.
    Known limitations: torch functions are seen only in the thread that enters the block. In a process with several
    threads a model that exists already has its name from its first use on, unless global variables lead to it.
    """
    _checked(on_violation, record, look_closer)
    keep = int(checked_number(OPTIONS["keep_recording"], keep_recording, "keep_recording"))
    share = _sampled(sample_every, warm_up, budget, checked=not isinstance(book, Sequence) or bool(book))
    outer = process_session.current
    if outer is not None and outer.running:
        yield Observation(Path(outer.settings.run_folder))
        return
    paths = _several(book)
    program = _program(name)
    rules = _rules(paths, program) if paths else None
    folder = _prepare(run_folder, rules, tuple(str(path) for path in paths), program)
    settings = Settings(
        run_folder=str(folder.path.absolute()),
        mode="collect" if rules is None else "run",
        books=() if rules is None else (str((folder.path / BOOK_FILE).absolute()),),
        on_violation=on_violation,
        look_closer=look_closer,
        snapshot=snapshot,
        record="all" if rules is None else record,
        keep_recording=keep,
        project=(str(Path.cwd()),),
        packages=tuple(packages),
        sample_every=sample_every,
        warm_up=warm_up,
        budget=share,
        script=folder.manifest.script,
    )
    observation = Observation(folder.path)
    with _observed(observation, folder, settings, rules):
        yield observation


@contextmanager
def checked(
    run_folder: PathLike | None = None,
    book: PathLike | Sequence[PathLike] = (),
    *,
    packs: str | Sequence[str] = (),
    name: str = "",
    on_violation: Literal["warn", "stop", "callback"] | None = None,
    callback: str | None = None,
    look_closer: int | None = None,
    snapshot: bool | None = None,
    record: Literal["found", "all"] | None = None,
    keep_recording: str | None = None,
    compare_ranks: Literal["auto", "files", "exchange", "off"] | None = None,
    packages: Sequence[str] = (),
    sample_every: int | None = None,
    warm_up: int | None = None,
    budget: str | None = None,
    replay_every: int | None = None,
    runs: PathLike | None = None,
) -> Iterator[Observation]:
    """Check the training inside the block as `traincheck run` checks a program.

    What it is checked against, and every other option, is as there: the books and packs that are named, otherwise those
    of the environment (`TRAINCHECK_BOOKS`) or of `[tool.traincheck]` in pyproject.toml, otherwise the project's library
    and the packs that come with TrainCheck. Findings are shown on stderr as they are made and summed up when the block
    is left; `Observation.report` holds them. The run folder is made in `runs` where none is named; where a launcher has
    started several ranks, each has one of its own, with `-rank1` behind its name, and what they tell each other is
    compared by the first.

    Raises as `observe` does. Inside a program that is observed already, by `traincheck run`, say, the block only
    yields. Known limitations: as for `observe`; what happened before the block (a model that was built, a seed that was
    set) is not seen, so rules about it are not triggered.
    """
    outer = process_session.current
    if outer is not None and outer.running:
        yield Observation(Path(outer.settings.run_folder))
        return
    said = {
        "books": tuple(map(str, _several(book))),
        "packs": (packs,) if isinstance(packs, str) and packs else tuple(packs),
        "on_violation": on_violation,
        "callback": callback,
        "look_closer": look_closer,
        "snapshot": snapshot,
        "record": record,
        "keep_recording": keep_recording,
        "compare_ranks": compare_ranks,
        "packages": tuple(packages),
        "sample_every": sample_every,
        "warm_up": warm_up,
        "budget": budget,
        "replay_every": replay_every,
        "runs": os.fspath(runs) if runs is not None else None,
    }
    config = configs.load(said, os.environ, Path.cwd())
    plugins.check("traincheck.relations")
    target = Target.running(name)
    program = checked_program(target, config)
    rules = book_of(config, program, lambda matter: program_of(target, os.environ, Path.cwd(), matter))
    path = Path(run_folder) if run_folder is not None else default_folder(config.runs, target)
    folder, settings = begin(target, config, _own_of_rank(path), rules)
    settings = msgspec.structs.replace(settings, project=tuple(dict.fromkeys((*settings.project, str(Path.cwd())))))
    observation = Observation(folder.path)
    try:
        with _observed(observation, folder, settings, rules):
            yield observation
    finally:
        # The other ranks say nothing of what the first says as well: that nothing was found.
        if observation.report is not None and (observation.report.findings or _rank() in ("", "0")):
            _sum_up(observation.report, folder.path)


@contextmanager
def _observed(observation: Observation, folder: RunFolder, settings: Settings, rules: Book | None) -> Iterator[None]:
    running = process_session.start(settings)
    failed = True
    try:
        yield
        failed = False
    finally:
        try:
            running.stop()
        finally:
            _conclude(observation, folder, rules, failed=failed)


def _rank() -> str:
    """The rank of this process as its launcher has it, empty where there are no others."""
    return os.environ.get("RANK", "") if os.environ.get("WORLD_SIZE", "1") != "1" else ""


def _own_of_rank(path: Path) -> Path:
    """The run folder of this process, where a launcher has started several ranks."""
    rank = _rank()
    return path.with_name(f"{path.name}-rank{rank}") if rank else path


def _several(book: PathLike | Sequence[PathLike]) -> list[PathLike]:
    return [book] if isinstance(book, (str, os.PathLike)) else list(book)


def _rules(paths: Sequence[PathLike], program: CheckedProgram) -> Book:
    """One book of those in `paths`, as they are deployed on the program.

    Raises BookError, NoRuleDeployed, and PluginError where a package adds what cannot be used.
    """
    plugins.check("traincheck.relations")
    return Rules(tuple((str(path), read_book(path), True) for path in paths), ()).book(program)


def _program(name: str) -> CheckedProgram:
    """The program that this process runs; `name` is what it is called, by default after its script."""
    identity = identity_of(Target.running(), Path.cwd())
    if name:
        identity = ProgramIdentity(identity.main)
    script = redaction.text(name or Path(getattr(sys.modules["__main__"], "__file__", "") or "notebook").name)
    return CheckedProgram(script, script, identity)


def _checked(on_violation: object, record: object, look_closer: object) -> None:
    """Raises BadOption where one of these is something else than it may be."""
    if on_violation not in ("warn", "stop", "callback"):
        raise BadOption("on_violation", on_violation, "'warn', 'stop' or 'callback'")
    if record not in OPTIONS["record"].choices:
        raise BadOption("record", record, "'found' or 'all'")
    if type(look_closer) is not int or look_closer < 0:
        raise BadOption("look_closer", look_closer, "a whole number, 0 or more")


def _sampled(sample_every: int, warm_up: int, budget: str, *, checked: bool) -> float:
    """The budget as a share of one, where the three can be. Raises BadOption."""
    checked_number(OPTIONS["sample_every"], sample_every, "sample_every")
    checked_number(OPTIONS["warm_up"], warm_up, "warm_up")
    share = float(checked_number(OPTIONS["budget"], budget or "0%", "budget"))
    if not checked and (sample_every > 1 or share):
        if sample_every > 1:
            raise BadOption("sample_every", sample_every, RECORDED_WHOLE)
        raise BadOption("budget", budget, RECORDED_WHOLE)
    return share


def _prepare(path: PathLike, book: Book | None, books: tuple[str, ...], program: CheckedProgram) -> RunFolder:
    folder = RunFolder.create(
        path,
        Manifest(
            mode="collect" if book is None else "run",
            argv=tuple(sys.argv),
            script=program.script,
            program=str(program.identity),
            python=platform.python_version(),
            started=now_in_words(),
            books=books,
        ),
    )
    if book is not None:
        write_book(book, folder.path / BOOK_FILE)
    return folder


def _conclude(observation: Observation, folder: RunFolder, book: Book | None, *, failed: bool) -> None:
    """Write down how it ended and what was found. What fails here (a full disk) is said: the program goes on."""
    parts: list[Callable[[], object]] = [lambda: folder.update(ended=now_in_words(), exit_code=int(failed))]
    if book is not None:
        parts.append(lambda: _report(observation, folder.path, book))
    for part in parts:
        try:
            part()
        except Exception as error:
            complain(f"{in_words(error)} (the program goes on)")


def _report(observation: Observation, folder: Path, book: Book) -> None:
    checked = gather(folder, book)
    observation.report = report = with_files(checked.report, Path(), RunFolder(folder).manifest.started)
    write_json(report, folder / "report.json")
    shown = exhibits(folder, report, [rule for rule, _ in checked.verdicts])
    render_html(report, checked.verdicts, folder / "report.html", shown)


def _sum_up(report: Report, folder: Path) -> None:
    from rich.console import Console

    from traincheck.reporting.terminal import TerminalSink

    files = [folder / "report.json", folder / "report.html"]
    try:
        TerminalSink(Console(stderr=True, highlight=False, force_jupyter=False), files).close(report)
    except Exception as error:  # a stderr of the program's own, say
        complain(f"{in_words(error)} (the program goes on)")


def step() -> None:
    """Say that a training step ends here. From the first call on, only these calls end steps. No effect unobserved."""
    running = process_session.current
    if running is not None and running.running:
        recorder = running.recorder
        recorder.guarded("steps", recorder.steps.explicit_step)(recorder.next_seq())


@contextmanager
def stage(name: str) -> Iterator[None]:
    """Say that what happens in the block is of this stage: `train` or `eval`. No effect unobserved.

    Raises BadOption for another name.
    """
    if name not in (TRAIN, EVAL):
        raise BadOption("stage", name, f"one of {', '.join(repr(known) for known in STAGES[1:3])}")
    running = process_session.current
    recorder = running.recorder if running is not None and running.running else None
    if recorder is not None:
        recorder.guarded("steps", recorder.steps.stage_begins)(name, recorder.next_seq())
    try:
        yield
    finally:
        if recorder is not None:
            recorder.guarded("steps", recorder.steps.stage_ends)(recorder.next_seq())
