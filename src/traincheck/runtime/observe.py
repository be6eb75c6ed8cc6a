"""The Python API that observes training from inside a program: `observe`, `checked`, `step` and `stage`."""

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
from traincheck.checking.finding_details import finding_details
from traincheck.checking.results import result_of_live_run
from traincheck.config import Budget, checked_action, checked_budget, checked_number, steps_to_watch
from traincheck.errors import BadOption
from traincheck.files import PathLike
from traincheck.invariants.book import Book, read_book, write_book
from traincheck.options import OPTIONS, RECORDED_WHOLE
from traincheck.reporting.html.sink import render_html
from traincheck.reporting.json_report import write_json
from traincheck.runtime import process_session
from traincheck.runtime.launching.code_version import commit_of
from traincheck.runtime.launching.command_target import Target
from traincheck.runtime.launching.imported_packages import program_of
from traincheck.runtime.launching.program_identity import CheckedProgram, digests_of, identity_of
from traincheck.runtime.launching.rule_selection import Rules, book_of
from traincheck.runtime.launching.run_settings import Settings
from traincheck.runtime.launching.run_setup import begin, checked_program, default_folder, now_in_words
from traincheck.runtime.stderr_log import in_words, log_warning
from traincheck.trace.folder import RunFolder
from traincheck.trace.format import BOOK_FILE
from traincheck.trace.run_notes import Manifest
from traincheck.vocab.events import EVAL, STAGES, TRAIN
from traincheck.vocab.program import ProgramIdentity

if TYPE_CHECKING:
    from traincheck.vocab.finding import Report


class Observation:
    """A run that is observed from inside: `folder` is its run folder, `report` its report (None when recording)."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.report: Report | None = None

    def _repr_html_(self) -> str | None:
        """The page of the report, as notebooks show it; None without a page."""
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
    on_violation: str = "warn",
    record_after_finding: int = 5,
    snapshot: bool = False,
    record: Literal["found", "all"] = "found",
    keep_recording: str = "1 GB",
    packages: Sequence[str] = (),
    name: str = "",
    budget: str = "",
) -> Iterator[Observation]:
    """Observe the training inside the block, for a notebook or a library.

    Without a book TrainCheck records the run in full into `run_folder`, as `traincheck collect` does. With one or more
    books it checks the run, as `traincheck run` does: it shows findings on stderr, writes report.json and report.html,
    and sets `Observation.report` at the end of the block. `name` is the name of the run (default: the script). The
    other options are those of `traincheck run`, with its defaults; `budget` ("1%" or "1/10") does not apply to a
    recording.

    Raises TrainCheckError before the block if the folder or a book cannot be used, and StopTraining inside the block
    with `on_violation="stop"`. The end of the block raises nothing: TrainCheck reports an error such as a full disk on
    stderr and leaves `report` None. Inside a program that is observed already, the block has no effect.
    Known limitations: TrainCheck sees torch functions only in the thread that enters the block. In a process with
    several threads, an existing model has its name only from its first use on, unless a global variable leads to it.
    """
    _check(record, record_after_finding)
    action = checked_action(on_violation, "on_violation")
    keep = checked_number(OPTIONS["keep_recording"], keep_recording, "keep_recording")
    limits = checked_budget(budget, "budget") if budget else None
    paths = _paths(book)
    if limits is not None and limits.limits and not paths:
        raise BadOption("budget", budget, RECORDED_WHOLE)
    watched = steps_to_watch(limits, record) if paths else Budget()
    outer = process_session.current
    if outer is not None and outer.running:
        yield Observation(Path(outer.settings.run_folder))
        return
    program = _program(name)
    rules = _rules(paths, program) if paths else None
    folder = _prepare(run_folder, rules, tuple(str(path) for path in paths), program)
    settings = Settings(
        run_folder=str(folder.path.absolute()),
        mode="collect" if rules is None else "run",
        books=() if rules is None else (str((folder.path / BOOK_FILE).absolute()),),
        on_violation="callback" if ":" in action else _literal(action),
        callback=action if ":" in action else "",
        record_after_finding=record_after_finding,
        snapshot=snapshot,
        record="all" if rules is None else record,
        keep_recording=keep,
        project=(str(Path.cwd()),),
        packages=tuple(packages),
        budget=watched.share,
        sample_every=watched.every,
        warm_up=watched.first,
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
    on_violation: str | None = None,
    record_after_finding: int | None = None,
    snapshot: bool | None = None,
    record: Literal["found", "all"] | None = None,
    keep_recording: str | None = None,
    compare_ranks: Literal["auto", "files", "exchange", "off"] | None = None,
    packages: Sequence[str] = (),
    budget: str | None = None,
    verify_every: int | None = None,
    runs: PathLike | None = None,
) -> Iterator[Observation]:
    """Check the training inside the block as `traincheck run` checks a program.

    Every option works as there. TrainCheck checks the named books and packs; else those of the environment
    (`TRAINCHECK_BOOK`) or of `[tool.traincheck]` in pyproject.toml; else the project's library and the shipped packs.
    It shows findings and a summary on stderr, and sets `Observation.report` at the end of the block. Without
    `run_folder` it makes one in `runs`. Under a launcher each rank has a run folder of its own, with `-rank1` behind
    its name, and rank 0 compares the ranks.

    Raises as `observe` does. Inside a program that is observed already, such as under `traincheck run`, the block has
    no effect. Known limitations: those of `observe`. TrainCheck does not see earlier events, such as a seed or the
    construction of a model, so rules about them do not trigger.
    """
    outer = process_session.current
    if outer is not None and outer.running:
        yield Observation(Path(outer.settings.run_folder))
        return
    options = {
        "books": tuple(map(str, _paths(book))),
        "packs": (packs,) if isinstance(packs, str) and packs else tuple(packs),
        "on_violation": on_violation,
        "record_after_finding": record_after_finding,
        "snapshot": snapshot,
        "record": record,
        "keep_recording": keep_recording,
        "compare_ranks": compare_ranks,
        "packages": tuple(packages),
        "budget": budget,
        "verify_every": verify_every,
        "runs": os.fspath(runs) if runs is not None else None,
    }
    config = configs.load(options, os.environ, Path.cwd())
    plugins.check("traincheck.relations")
    if plugins.added(plugins.DIAGNOSIS_GROUP):
        from traincheck.diagnoses.catalogue import catalogue

        catalogue()  # raises PluginError
    target = Target.running(name)
    program = checked_program(target, config)
    rules = book_of(config, program, lambda matter: program_of(target, os.environ, Path.cwd(), matter))
    path = Path(run_folder) if run_folder is not None else default_folder(config.runs, target)
    folder, settings = begin(target, config, _folder_of_rank(path), rules)
    settings = msgspec.structs.replace(settings, project=tuple(dict.fromkeys((*settings.project, str(Path.cwd())))))
    observation = Observation(folder.path)
    try:
        with _observed(observation, folder, settings, rules):
            yield observation
    finally:
        # Other ranks print no summary without findings, as the first rank prints one.
        if observation.report is not None and (observation.report.findings or _rank() in ("", "0")):
            _print_summary(observation.report, folder.path)


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
    """The rank of this process according to its launcher, empty for a single process."""
    return os.environ.get("RANK", "") if os.environ.get("WORLD_SIZE", "1") != "1" else ""


def _folder_of_rank(path: Path) -> Path:
    """The run folder of this rank: `path` itself for a single process."""
    rank = _rank()
    return path.with_name(f"{path.name}-rank{rank}") if rank else path


def _paths(book: PathLike | Sequence[PathLike]) -> list[PathLike]:
    return [book] if isinstance(book, (str, os.PathLike)) else list(book)


def _rules(paths: Sequence[PathLike], program: CheckedProgram) -> Book:
    """One book with the rules in `paths` that are deployed on the program.

    Raises BookError, NoRuleDeployed, and PluginError for a plug-in that cannot be used.
    """
    plugins.check("traincheck.relations")
    return Rules(tuple((str(path), read_book(path), True) for path in paths), ()).book(program)


def _program(name: str) -> CheckedProgram:
    """The program that this process runs, under `name` or the name of its script."""
    identity = identity_of(Target.running(), Path.cwd())
    if name:
        identity = ProgramIdentity(identity.main)
    script = redaction.text(name or Path(getattr(sys.modules["__main__"], "__file__", "") or "notebook").name)
    return CheckedProgram(script, script, identity)


def _check(record: object, record_after_finding: object) -> None:
    """Raises BadOption."""
    if record not in OPTIONS["record"].choices:
        raise BadOption("record", record, "'found' or 'all'")
    if type(record_after_finding) is not int or record_after_finding < 0:
        raise BadOption("record_after_finding", record_after_finding, "a whole number, 0 or more")


def _literal(action: str) -> Literal["warn", "stop", "callback"]:
    return "stop" if action == "stop" else "callback" if action == "callback" else "warn"


def _prepare(path: PathLike, book: Book | None, books: tuple[str, ...], program: CheckedProgram) -> RunFolder:
    plugins.check(plugins.SOURCE_GROUP)
    folder = RunFolder.create(
        path,
        Manifest(
            mode="collect" if book is None else "run",
            argv=tuple(sys.argv),
            script=program.script,
            files=digests_of(Target.running(), Path.cwd()),
            commit=commit_of(Path()),
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
    """Record the end and write the report. An error, such as a full disk, is logged: the program goes on."""
    parts: list[Callable[[], object]] = [lambda: folder.update(ended=now_in_words(), exit_code=int(failed))]
    if book is not None:
        parts.append(lambda: _report(observation, folder.path, book))
    for part in parts:
        try:
            part()
        except Exception as error:
            log_warning(f"{in_words(error)} (the program goes on)")


def _report(observation: Observation, folder: Path, book: Book) -> None:
    checked = result_of_live_run(folder, book)
    observation.report = report = with_files(checked.report, Path(), RunFolder(folder).manifest.started)
    write_json(report, folder / "report.json")
    details = finding_details(folder, report, [rule for rule, _ in checked.verdicts])
    render_html(report, checked.verdicts, folder / "report.html", details)


def _print_summary(report: Report, folder: Path) -> None:
    from traincheck.reporting.quiet_import import import_terminal

    import_terminal()
    from rich.console import Console

    from traincheck.reporting.terminal import TerminalSink

    files = [folder / "report.json", folder / "report.html"]
    try:
        TerminalSink(Console(stderr=True, highlight=False, force_jupyter=False), files).close(report)
    except Exception as error:  # the program may have replaced stderr
        log_warning(f"{in_words(error)} (the program goes on)")


def step() -> None:
    """Mark the end of a training step. From the first call on, only these calls end steps.

    It has no effect in a program that is not observed.
    """
    running = process_session.current
    if running is not None and running.running:
        recorder = running.recorder
        recorder.guarded("steps", recorder.steps.explicit_step)(recorder.next_seq())


@contextmanager
def stage(name: str) -> Iterator[None]:
    """Mark the block as a stage, `train` or `eval`. It has no effect in a program that is not observed.

    Raises BadOption for another name.
    """
    if name not in (TRAIN, EVAL):
        raise BadOption("stage", name, f"one of {', '.join(map(repr, STAGES[1:3]))}")
    running = process_session.current
    recorder = running.recorder if running is not None and running.running else None
    if recorder is not None:
        recorder.guarded("steps", recorder.steps.stage_begins)(name, recorder.next_seq())
    try:
        yield
    finally:
        if recorder is not None:
            recorder.guarded("steps", recorder.steps.stage_ends)(recorder.next_seq())
