"""`traincheck run`: run a program and check it against books while it trains."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from traincheck import config as configs
from traincheck import plugins
from traincheck.cli import flags, monitoring, program_run, report_formats, report_output
from traincheck.cli.console import FINDINGS, UNJUDGED, exit_code, remark
from traincheck.config import Config
from traincheck.errors import BadOption, TrainCheckError
from traincheck.options import AUTO, FILES, OPTIONS
from traincheck.runtime.launching.command_target import Target
from traincheck.runtime.stderr_log import in_words
from traincheck.vocab.invariant import ERROR

if TYPE_CHECKING:
    from traincheck.checking.rank_comparison import Follower
    from traincheck.checking.rank_engine import RankComparison
    from traincheck.cli.program_run import Recording
    from traincheck.comparison.given_names import GivenName
    from traincheck.comparison.live_comparison import LiveComparison
    from traincheck.invariants.book import Book
    from traincheck.trace.folder import RunFolder
    from traincheck.vocab.finding import Finding

EPILOG = """\b
Examples:
  traincheck run train.py --lr 1e-3
  traincheck run torchrun --nproc-per-node 2 train.py
  traincheck run --book good.jsonl --on-violation stop -m package.train
  traincheck run --budget 1% --report junit=results.xml -- bash job.sh
  traincheck run --against runs/before --on-violation stop train.py

TrainCheck's options come before the program. You can also set them as variables
(TRAINCHECK_BUDGET=1%) and in pyproject.toml ([tool.traincheck] budget = "1%").
The run folder holds report.html and report.json.

\b
Exit codes: 0 no findings at or above --fail-on, 3 findings or other results
than --against, 2 no training step, nothing to compare or wrong usage,
1 TrainCheck failed; else that of your program when it fails.
"""


@flags.shared_options(
    "books",
    "on_violation",
    "fail_on",
    "budget",
    "reports",
    "trackers",
    "alerts",
    "packs",
    "packages",
    "as_program",
    "verify_every",
    "record_after_finding",
    "snapshot",
    "record",
    "keep_recording",
    "runs",
    "compare_ranks",
    "heartbeat_timeout",
    "metrics",
)
def command(
    target: flags.Words = None,
    run_folder: flags.RunFolder = None,
    *,
    against: flags.Against = None,
    initial_state: flags.InitialState = None,
    names: flags.NamesAgainst = None,
    **options: Any,
) -> None:
    """Run a program and check it while it trains.

    TrainCheck checks it against your books; without --book against the packs that it ships and your accepted runs.
    """
    if names and against is None:
        raise BadOption(OPTIONS["map"].flag, names[0], f"{OPTIONS['against'].flag} RUN_A with it")
    config = configs.load(options, os.environ, Path.cwd())
    raise typer.Exit(run(Target.parse(target or ()), config, run_folder, against, initial_state, names or ()))


def run(
    target: Target,
    config: Config,
    run_folder: Path | None = None,
    against: Path | None = None,
    initial_state: Path | None = None,
    names: Sequence[str] = (),
) -> int:
    """Run the program, gather the results of its processes, and report; the exit code of program or findings.

    The run is compared with the run folder `against`, with `names` that the user matched. It begins with the weights
    and random states of `initial_state`.
    """
    from traincheck.runtime.launching.imported_packages import program_of
    from traincheck.runtime.launching.rule_selection import book_of
    from traincheck.runtime.launching.run_setup import checked_program

    # A broken extension, a bad port or a bad book ends the command before the program starts.
    plugins.check("traincheck.relations")
    if plugins.added(plugins.DIAGNOSIS_GROUP):
        from traincheck.diagnoses.catalogue import catalogue

        catalogue()
    target.check(os.environ)
    given: tuple[GivenName, ...] = ()
    if against is not None:
        from traincheck.cli import run_against

        config, given = run_against.recording_operations(config, against, names)
    requests = report_formats.requested(config)
    sinks = report_formats.Sinks(requests, {"script": target.script, "fail_on": config.fail_on})
    trackers = monitoring.trackers(config)
    program = checked_program(target, config)
    book = book_of(config, program, lambda matter: program_of(target, os.environ, Path.cwd(), matter))
    followers: list[Follower] = []
    comparisons: list[LiveComparison] = []

    @contextmanager
    def follow(folder: RunFolder) -> Iterator[None]:
        monitor.begin(folder.path)
        for tracker in trackers:
            tracker.begin({"folder": str(folder.path), "script": folder.manifest.script, "host": platform.node()})
        followers.append(_follower(folder, book, config))
        if against is not None:
            from traincheck.cli import run_against

            comparisons.append(run_against.live_comparison(against, folder, config, given))
        report_output.import_report_modules()
        with ExitStack() as threads:
            threads.enter_context(followers[0])
            for comparison in comparisons:
                threads.enter_context(comparison)
            yield

    with monitoring.run_monitor(config, trackers) as monitor:
        recording = program_run.record(
            target, config, run_folder, book, os.environ, follow, initial_state=initial_state
        )
        try:
            compared = followers[0].comparisons if followers else ()
            for tracker in trackers:
                tracker.finish([recording.path / report_output.JSON_NAME, recording.path / report_output.HTML_NAME])
            return _conclude(recording, book, config, compared, sinks, *comparisons)
        except Exception as error:
            if not recording.status.code:
                raise
            remark(in_words(error))  # a failed program keeps its own exit code
            return recording.status.code


def _conclude(
    recording: Recording,
    book: Book,
    config: Config,
    compared: Sequence[RankComparison],
    sinks: report_formats.Sinks,
    live: LiveComparison | None = None,
) -> int:
    """Gather the results and report them; the exit code."""
    from traincheck.checking.code_excerpts import with_files
    from traincheck.checking.results import result_of_live_run

    folder, status = recording.folder, recording.status
    checked = result_of_live_run(recording.path, book, compared)
    report = with_files(checked.report, Path(), folder.manifest.started)
    if live is not None:
        from traincheck.cli import run_against

        report = run_against.with_comparison(report, live, recording.path)
    checked = replace(checked, report=report)
    json_file, html_file = recording.path / report_output.JSON_NAME, recording.path / report_output.HTML_NAME
    try:
        report_output.write_reports(recording.path, checked.report, checked.verdicts, [json_file], [html_file])
        sinks.close(checked.report, checked.verdicts, recording.path)
    finally:  # the summary is printed even where the files cannot be written
        program_run.report_end(status)
        program_run.report_removed_steps(folder)
        if checked.outcomes:
            report_output.show_summary(checked.report, [json_file, html_file, *sinks.files], is_result=False)
            if not (status.code or config.books or report.findings or report.untrained or report.differs):
                report_output.suggest_accept(folder, Path.cwd())
        else:
            program_run.report_nothing_observed(folder)
    if folder.manifest.stopped_by_us:
        return FINDINGS
    if not (checked.outcomes or status.code or config.fail_on == "never"):
        return UNJUDGED
    code = status.code or exit_code(report, config.fail_on)
    if live is not None and report.comparison is None:
        remark(f"the run was not compared with {live.earlier}: {live.fault}")
        return code or (0 if config.fail_on == "never" else UNJUDGED)
    return code


def _follower(folder: RunFolder, book: Book, config: Config) -> Follower:
    """Compares the ranks of the job while they train, if it has several, and shows findings as they come."""
    from traincheck.checking.rank_comparison import Follower
    from traincheck.invariants.selection import deployable
    from traincheck.reporting.terminal import TerminalSink
    from traincheck.trace.control_file import add_finding, change_control

    sink = TerminalSink()

    def react(finding: Finding) -> None:
        sink.show(finding)
        if finding.severity != ERROR:
            return
        try:  # the ranks record more steps, and react as --on-violation says
            change_control(folder.path, lambda control: add_finding(control, finding))
            if config.on_violation == "stop":
                folder.request_stop(finding.title, finding.step)
        except TrainCheckError as error:
            remark(str(error))

    rules = deployable(book.invariants, folder.manifest.script) if config.compare_ranks in (AUTO, FILES) else []
    return Follower(folder, rules, react)
