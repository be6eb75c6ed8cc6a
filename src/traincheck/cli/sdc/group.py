"""`traincheck sdc`: is it the hardware? Whether training computes the same bits, here, there, and each time."""

from __future__ import annotations

import typer

from traincheck.cli.sdc import doctor, screen, study

EPILOG = """\b
Examples:
  traincheck sdc doctor                                    is training reproducible here, bit by bit?
  traincheck sdc doctor --workload mine.py:workload        and mine?
  traincheck sdc study --fault bitflip@forward:*.attention,bit=exponent
  traincheck sdc screen --seconds 60                       does this machine compute the same each time?
"""

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    epilog=EPILOG,
    help="Look for hardware that computes wrongly without failing.",
)
app.command("doctor", epilog=doctor.EPILOG)(doctor.command)
app.command("study", epilog=study.EPILOG)(study.command)
app.command("screen", epilog=screen.EPILOG)(screen.command)
