"""`traincheck watch`: look at a run that goes on, in another terminal or on another host."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

import typer

from traincheck import config as configs
from traincheck.cli import flags, monitoring, report_output
from traincheck.cli.console import INTERRUPTED, exit_code, out, remark
from traincheck.config import Config

if TYPE_CHECKING:
    from traincheck.runtime.run_monitor import Receiver

EPILOG = """\b
Examples:
  traincheck watch runs/today
  traincheck watch runs/today --json | jq .
  traincheck watch /shared/runs/today --alert-command "notify-send TrainCheck" --silent-after 120
  traincheck watch runs/today --metrics-port 9100

The run is not touched: its folder is read, on any host that sees it. A live view is shown on a terminal, plain
lines are printed elsewhere. It ends with the run, or with Ctrl-C, and then sums up what was found so far.

Exit codes: 0 no findings at or above --fail-on, 3 findings, 2 no training step or wrong usage, 1 TrainCheck
failed, 130 Ctrl-C without findings.
"""


def command(
    run: flags.WatchedRun,
    as_json: flags.JsonLines = False,
    fail_on: flags.FailOn = None,
    webhook: flags.Webhook = None,
    alert_command: flags.AlertCommand = None,
    alert_on: flags.AlertOn = None,
    silent_after: flags.SilentAfter = None,
    metrics_port: flags.MetricsPort = None,
    metrics_host: flags.MetricsHost = None,
    metrics_token: flags.MetricsToken = None,
    otlp: flags.Otlp = None,
) -> None:
    """Watch a run that goes on, from another terminal or host.

    Findings are shown as they come, and how the run fares.
    """
    said = {
        "fail_on": fail_on,
        "webhook": webhook,
        "alert_command": alert_command,
        "alert_on": alert_on,
        "silent_after": silent_after,
        "metrics_port": metrics_port,
        "metrics_host": metrics_host,
        "metrics_token": metrics_token,
        "otlp": otlp,
    }
    raise typer.Exit(watch(run, configs.load(said, os.environ, Path.cwd()), as_json))


def watch(run: Path, config: Config, as_json: bool = False) -> int:
    """Watch `run` until it is over, and sum up; the exit code."""
    from traincheck.checking.run_status import Watcher
    from traincheck.runtime.run_monitor import Spared, look_out

    watcher = Watcher(run, monitoring.silent_after(config))
    interrupted = False
    with ExitStack() as stack:
        stack.enter_context(_ended_as_by_ctrl_c())
        receivers = [Spared(receiver, remark) for receiver in monitoring.receivers(config)]
        for receiver in receivers:
            stack.callback(receiver.close)
        view = _view(as_json)
        stack.callback(view.close)
        try:
            look_out(watcher, [view, *receivers])
        except KeyboardInterrupt:
            interrupted = True
    checked = watcher.report()
    if checked is None:
        return INTERRUPTED if interrupted else 0
    if not as_json:
        report_output.show_summary(checked.report, [])
    return exit_code(checked.report, config.fail_on) or (INTERRUPTED if interrupted else 0)


@contextmanager
def _ended_as_by_ctrl_c() -> Iterator[None]:
    """A request to end (SIGTERM) sums up, too, and gives the terminal back."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _view(as_json: bool) -> Receiver:
    from traincheck.reporting.status_views import JsonLines, LiveView, PlainLines

    if as_json:
        return JsonLines(_put)
    return LiveView() if sys.stdout.isatty() else PlainLines()


def _put(line: str) -> None:
    out(line)
    sys.stdout.flush()  # into a pipe, too, while the run goes on
