"""`traincheck sdc`: is it the hardware? Whether training computes the same bits, here, there, and each time."""

from __future__ import annotations

import typer

from traincheck.cli import sdc_doctor, sdc_screen, sdc_study

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
app.command("doctor", epilog=sdc_doctor.EPILOG)(sdc_doctor.command)
app.command("study", epilog=sdc_study.EPILOG)(sdc_study.command)
app.command("screen", epilog=sdc_screen.EPILOG)(sdc_screen.command)
