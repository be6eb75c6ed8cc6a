"""`traincheck sdc`: the commands that look for silent data corruption by hardware."""

from __future__ import annotations

import typer

from traincheck.cli.sdc import doctor, screen, study

EPILOG = """\b
Examples:
  traincheck sdc doctor                                    is training bit-reproducible here?
  traincheck sdc doctor --workload mine.py:workload        is mine?
  traincheck sdc study --fault intermittent@forward:*.attention
  traincheck sdc screen --seconds 60                       does this machine compute correctly?
"""

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    epilog=EPILOG,
    help="Look for hardware that computes wrong results silently.",
)
app.command("doctor", epilog=doctor.EPILOG)(doctor.command)
app.command("study", epilog=study.EPILOG)(study.command)
app.command("screen", epilog=screen.EPILOG)(screen.command)
