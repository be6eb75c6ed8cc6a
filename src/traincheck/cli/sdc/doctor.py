"""`traincheck sdc doctor`: whether a training computes the same bits each time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from traincheck.cli import flags
from traincheck.cli.console import FINDINGS, Progress, amount, columns, out, out_json, remark
from traincheck.cli.sdc import flags as sdc_flags

if TYPE_CHECKING:
    from traincheck.sdc.doctor import Diagnosis

EPILOG = """\b
Examples:
  traincheck sdc doctor
  traincheck sdc doctor --workload decoder-small-bf16 --steps 5 --threads 2
  traincheck sdc doctor --workload mine.py:workload --device cuda --json
  traincheck sdc doctor --framework xla

\b
Exit codes: 0 both runs computed the same bits, 3 they did not.
"""

STEPS = 3
"""The second step trains on what the first one made, and the third with a state that the optimizer has updated."""


def command(
    workload: sdc_flags.Workload = None,
    framework: sdc_flags.Framework = "torch",
    steps: sdc_flags.Steps = None,
    seed: sdc_flags.Seed = 0,
    device: sdc_flags.Device = None,
    threads: sdc_flags.Threads = 1,
    as_json: flags.AsJson = False,
) -> None:
    """Make a training bit-reproducible, prove it by executing it twice, or name the first operation that differs.

    Two processes execute the same steps one after the other, with deterministic settings. The fingerprints of all that
    torch computes in them are compared, operation by operation; of XLA's programs, submodule by submodule.
    """
    from traincheck.sdc.doctor import Execution, diagnose
    from traincheck.sdc.frameworks import framework_of, must_be_executable

    framework = framework_of(framework, "traincheck sdc doctor")
    steps = STEPS if steps is None else steps
    sdc_flags.at_least("--steps", steps, 1)
    sdc_flags.at_least("--seed", seed, 0)
    sdc_flags.at_least("--threads", threads, 1)
    workload = workload or sdc_flags.BUILT_IN
    must_be_executable(framework, workload)
    execution = Execution(workload, steps, seed, device or "cpu", threads, framework)
    with Progress() as progress:
        found = diagnose(execution, progress, remark)
    if as_json:
        out_json(found.data())
    else:
        _tell(found)
    raise typer.Exit(0 if found.reproducible else FINDINGS)


def _tell(found: Diagnosis) -> None:
    from traincheck.sdc.doctor import advice
    from traincheck.sdc.frameworks import TORCH

    execution, difference = found.execution, found.difference
    what = f"{execution.workload}, {amount(execution.steps, 'step')} on {execution.device}"
    what += "" if execution.framework == TORCH else f" with {execution.framework}"
    if difference is None:
        out(f"Reproducible: two runs of {what} computed the same bits ({amount(found.compared, 'result')} compared).")
        if found.undetermined:
            named = ", ".join(found.undetermined)
            out(f"Torch has no deterministic implementation of {named}; it may differ another time.")
        out("With these settings:")
        for line in columns(found.settings.items()):
            out(line)
        return
    out(f"Not reproducible: two runs of {what} part after {amount(found.compared, 'equal result')}.")
    for name, entry in (("first run", difference.first), ("second run", difference.second)):
        if entry is None:
            out(f"  {name}: has ended")
        elif not difference.same_work:
            out(f"  {name}: {entry.sentence}")
    if difference.same_work and difference.first is not None:
        out(f"  first to differ: {difference.first.sentence}")
    out(f"  {advice(difference, found.undetermined, execution.framework)}")
