"""Findings on the terminal of the program that is observed."""

from __future__ import annotations

from collections.abc import Callable

from traincheck.reporting.base import Sink
from traincheck.runtime.launching.run_settings import Settings
from traincheck.vocab.finding import Finding


def shown_live(settings: Settings) -> Callable[[Finding], None]:
    """Shows live findings on stderr, without importing the terminal library before there is something to show."""

    sinks: list[Sink] = []

    def show(finding: Finding) -> None:
        if not settings.live_terminal:
            return
        if not sinks:
            from traincheck.reporting.quiet_import import import_terminal

            import_terminal()
            from traincheck.reporting.terminal import TerminalSink

            sinks.append(TerminalSink())
        sinks[0].show(finding)

    return show
