"""`traincheck watch`: follow a run from another terminal or another host."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

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
  traincheck watch /shared/runs/today --alert "notify-send TrainCheck" --heartbeat-timeout 120
  traincheck watch runs/today --metrics 9100

TrainCheck only reads the run folder, on any host that sees it. On a terminal it shows a live view, elsewhere it
prints plain lines. It ends with the run or with Ctrl-C and then prints a summary.

Exit codes: 0 no findings at or above --fail-on, 3 findings, 2 no training step or wrong usage, 1 TrainCheck
failed, 130 Ctrl-C without findings.
"""


@flags.shared_options("fail_on", "alerts", "metrics", "heartbeat_timeout")
def command(run: flags.WatchedRun, as_json: flags.JsonLines = False, **options: Any) -> None:
    """Watch a run from another terminal or host.

    It shows findings as they come, and the state of each rank.
    """
    raise typer.Exit(watch(run, configs.load(options, os.environ, Path.cwd()), as_json))


def watch(run: Path, config: Config, as_json: bool = False) -> int:
    """Watch `run` until it is over, and print a summary; the exit code."""
    from traincheck.checking.run_status import Watcher
    from traincheck.runtime.run_monitor import Isolated, look_out

    watcher = Watcher(run, monitoring.heartbeat_timeout(config))
    interrupted = False
    with ExitStack() as stack:
        stack.enter_context(_sigterm_as_ctrl_c())
        receivers = [Isolated(receiver, remark) for receiver in monitoring.receivers(config)]
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
def _sigterm_as_ctrl_c() -> Iterator[None]:
    """SIGTERM prints the summary, too, and gives the terminal back."""

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
        return JsonLines(_print_line)
    return LiveView() if sys.stdout.isatty() else PlainLines()


def _print_line(line: str) -> None:
    out(line)
    sys.stdout.flush()  # a reader of the pipe follows the run
