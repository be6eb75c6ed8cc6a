"""`traincheck compare`: find the first operation that differs between two runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from traincheck.cli import flags
from traincheck.cli.console import FINDINGS, out, out_json

EPILOG = """\b
Examples:
  traincheck collect --record operations -o runs/before train.py
  traincheck collect --record operations -o runs/after train.py --fused
  traincheck compare runs/before runs/after
  traincheck compare runs/before runs/after --json | jq .origins[0]

An origin is an operation whose inputs are equal and whose result is not. Only the first step with an origin is shown,
because everything behind it differs as well.

Exit codes: 0 equal, in all bits or up to rounding, 3 different, 2 wrong usage or no sketches, 1 TrainCheck failed.
"""

RunA = Annotated[Path, typer.Argument(metavar="RUN_A", help="Run folder to compare with.", show_default=False)]
RunB = Annotated[Path, typer.Argument(metavar="RUN_B", help="Run folder that may differ.", show_default=False)]


def command(a: RunA, b: RunB, as_json: flags.AsJson = False) -> None:
    """Find the first operation that differs between two runs.

    Both runs need sketches of their operations (`--record operations`). They may come from different programs,
    machines and versions of torch. Programs that share no modules are compared by the values that they name with
    `traincheck.mark`.
    """
    raise typer.Exit(compare(a, b, as_json))


def compare(a: Path, b: Path, as_json: bool = False) -> int:
    """Print the comparison; 3 where the runs differ. Raises what `compare_runs` raises."""
    from traincheck.comparison.report import data, lines
    from traincheck.comparison.run_comparison import DIFFERENT, compare_runs

    comparison = compare_runs(a, b)
    if as_json:
        out_json(data(comparison, str(a), str(b)))
    else:
        labels = (a.name, b.name) if a.name != b.name else (str(a), str(b))
        for line in lines(comparison, *labels):
            out(line)
    return FINDINGS if comparison.result == DIFFERENT else 0
