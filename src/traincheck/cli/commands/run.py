"""`traincheck run`: run a program and check it against books while it trains."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from traincheck import config as configs
from traincheck import plugins
from traincheck.cli import flags, monitoring, program_run, report_formats, report_output
from traincheck.cli.console import FINDINGS, UNJUDGED, exit_code, remark
from traincheck.config import Config
from traincheck.errors import TrainCheckError
from traincheck.options import AUTO, FILES
from traincheck.runtime.launching.command_target import Target
from traincheck.runtime.stderr_log import in_words
from traincheck.vocab.invariant import ERROR

if TYPE_CHECKING:
    from traincheck.checking.rank_comparison import Follower
    from traincheck.checking.rank_engine import Compared
    from traincheck.cli.program_run import Recording
    from traincheck.invariants.book import Book
    from traincheck.trace.folder import RunFolder
    from traincheck.vocab.finding import Finding

EPILOG = """\b
Examples:
  traincheck run train.py --lr 1e-3
  traincheck run torchrun --nproc-per-node 2 train.py --lr 1e-3
  traincheck run --book good.jsonl train.py --lr 1e-3
  traincheck run --packs shipped --packs s3://team/packs -b good.jsonl train.py
  traincheck run -b good.jsonl --as train.py experiments/train_copy.py
  traincheck run -b good.jsonl --on-violation stop -m package.train --epochs 3
  traincheck run -b good.jsonl --budget 1% --keep-recording 200MB train.py
  traincheck run -b good.jsonl --sample-every 10 -- bash job.sh
  traincheck run -b good.jsonl --report junit=results.xml --report github train.py
  traincheck run -b good.jsonl --track tensorboard --track wandb=lab/vision train.py
  traincheck run -b good.jsonl --alert-command "notify-send TrainCheck" --metrics-port 9100 train.py

Options of TrainCheck come before the program; everything after it is the program's own. Report and recording are
left in the run folder: report.html, report.json.

Exit codes: 0 no findings at or above --fail-on, 3 findings, 2 no training step or wrong usage, 1 TrainCheck
failed. When the program fails, its own exit code is returned, unless it was stopped by --on-violation stop: that is 3.
"""


def command(
    target: flags.Words = None,
    books: flags.Books = None,
    packs: flags.Packs = None,
    run_folder: flags.RunFolder = None,
    on_violation: flags.OnViolation = None,
    callback: flags.Callback = None,
    look_closer: flags.LookCloser = None,
    snapshot: flags.Snapshot = False,
    record: flags.Record = None,
    keep_recording: flags.KeepRecording = None,
    fail_on: flags.FailOn = None,
    compare_ranks: flags.CompareRanks = None,
    sample_every: flags.SampleEvery = None,
    warm_up: flags.WarmUp = None,
    budget: flags.Budget = None,
    replay_every: flags.ReplayEvery = None,
    json_file: flags.JsonFile = None,
    html_file: flags.HtmlFile = None,
    more_reports: flags.Reports = None,
    trackers: flags.Trackers = None,
    packages: flags.Packages = None,
    as_program: flags.AsProgram = None,
    runs: flags.Runs = None,
    webhook: flags.Webhook = None,
    alert_command: flags.AlertCommand = None,
    alert_on: flags.AlertOn = None,
    silent_after: flags.SilentAfter = None,
    metrics_port: flags.MetricsPort = None,
    metrics_host: flags.MetricsHost = None,
    metrics_token: flags.MetricsToken = None,
    otlp: flags.Otlp = None,
) -> None:
    """Run a program and check it while it trains.

    It is checked against books of invariants, as `traincheck infer` learns them from good runs; where none is named,
    against the packs that come with TrainCheck.
    """
    said = {
        "books": tuple(map(str, books or ())),
        "packs": tuple(packs or ()),
        "on_violation": on_violation,
        "callback": callback,
        "look_closer": look_closer,
        "snapshot": snapshot or None,
        "record": record,
        "keep_recording": keep_recording,
        "fail_on": fail_on,
        "compare_ranks": compare_ranks,
        "sample_every": sample_every,
        "warm_up": warm_up,
        "budget": budget,
        "replay_every": replay_every,
        "reports": tuple(more_reports or ()),
        "trackers": tuple(trackers or ()),
        "packages": tuple(packages or ()),
        "as_program": as_program,
        "runs": str(runs) if runs else None,
        "webhook": webhook,
        "alert_command": alert_command,
        "alert_on": alert_on,
        "silent_after": silent_after,
        "metrics_port": metrics_port,
        "metrics_host": metrics_host,
        "metrics_token": metrics_token,
        "otlp": otlp,
    }
    config = configs.load(said, os.environ, Path.cwd())
    raise typer.Exit(run(Target.parse(target or ()), config, run_folder, json_file, html_file))


def run(
    target: Target,
    config: Config,
    run_folder: Path | None = None,
    json_file: Path | None = None,
    html_file: Path | None = None,
) -> int:
    """Run it, gather what its processes found, report; the exit code of program or findings."""
    from traincheck.runtime.launching.imported_packages import program_of
    from traincheck.runtime.launching.rule_selection import book_of
    from traincheck.runtime.launching.run_setup import checked_program

    plugins.check("traincheck.relations")  # a package that adds what cannot be used stops us before the start
    target.check(os.environ)  # before a port is opened
    more = report_formats.Sinks(report_formats.asked_for(config), {"script": target.script, "fail_on": config.fail_on})
    tracking = monitoring.tracking(config)
    # And so does a bad book.
    program = checked_program(target, config)
    book = book_of(config, program, lambda matter: program_of(target, os.environ, Path.cwd(), matter))
    following: list[Follower] = []

    def follow(folder: RunFolder) -> Follower:
        guard.begin(folder.path)
        for one in tracking:
            one.begin({"folder": str(folder.path), "script": folder.manifest.script, "host": platform.node()})
        following.append(_follower(folder, book, config))
        report_output.make_ready()
        return following[0]

    with monitoring.guard(config, tracking) as guard:
        done = program_run.record(target, config, run_folder, book, os.environ, follow)
        try:
            compared = following[0].compared if following else ()
            for one in tracking:
                one.finish([done.path / report_output.JSON_NAME, done.path / report_output.HTML_NAME])
            return _conclude(done, book, config, compared, json_file, html_file, more)
        except Exception as error:
            if not done.status.code:
                raise
            remark(in_words(error))  # a program that failed has its own exit code, whatever becomes of us
            return done.status.code


def _conclude(
    done: Recording,
    book: Book,
    config: Config,
    compared: Sequence[Compared],
    json_file: Path | None,
    html_file: Path | None,
    more: report_formats.Sinks,
) -> int:
    """Gather and report what was found; the exit code."""
    from traincheck.checking.code_excerpts import with_files
    from traincheck.checking.live_results import gather

    checked = gather(done.path, book, compared)
    checked = replace(checked, report=with_files(checked.report, Path(), done.folder.manifest.started))
    json_files = [done.path / report_output.JSON_NAME, *report_output.given(json_file)]
    html_files = [done.path / report_output.HTML_NAME, *report_output.given(html_file)]
    try:
        report_output.write_reports(done.path, checked.report, checked.verdicts, json_files, html_files)
        more.close(checked.report, checked.verdicts)
    finally:  # what was found is told even where it cannot be written
        program_run.tell_end(done.status)
        program_run.tell_removed(done.folder)
        if checked.outcomes:
            report_output.show_summary(checked.report, [*json_files, *html_files, *more.files], is_result=False)
            if not (done.status.code or config.books or checked.report.findings or checked.report.untrained):
                report_output.offer(done.folder, Path.cwd())
        else:
            program_run.tell_nothing(done.folder)
    if done.folder.manifest.stopped_by_us:
        return FINDINGS
    if not (checked.outcomes or done.status.code or config.fail_on == "never"):
        return UNJUDGED
    return done.status.code or exit_code(checked.report, config.fail_on)


def _follower(folder: RunFolder, book: Book, config: Config) -> Follower:
    """What compares the ranks of the job, if it has several, while they train; its findings are shown as they come."""
    from traincheck.checking.rank_comparison import Follower
    from traincheck.invariants.selection import deployable
    from traincheck.reporting.terminal import TerminalSink
    from traincheck.trace.control_file import change_control
    from traincheck.trace.control_file import found as tell_found

    sink = TerminalSink()

    def found(finding: Finding) -> None:
        sink.show(finding)
        if finding.severity != ERROR:
            return
        try:  # the ranks look closer, and do what else is to be done
            change_control(folder.path, lambda control: tell_found(control, finding))
            if config.on_violation == "stop":
                folder.ask_to_stop(finding.title, finding.step)
        except TrainCheckError as error:
            remark(str(error))

    rules = deployable(book.invariants, folder.manifest.script) if config.compare_ranks in (AUTO, FILES) else []
    return Follower(folder, rules, found)
