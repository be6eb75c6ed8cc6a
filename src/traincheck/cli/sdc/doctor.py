"""`traincheck sdc doctor`: test whether a training computes the same bits each time."""

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
"""The second step uses updated parameters, the third an updated optimizer state."""


def command(
    workload: sdc_flags.Workload = None,
    framework: sdc_flags.Framework = "torch",
    steps: sdc_flags.Steps = None,
    seed: sdc_flags.Seed = 0,
    device: sdc_flags.Device = None,
    threads: sdc_flags.Threads = 1,
    as_json: flags.AsJson = False,
) -> None:
    """Make a training bit-reproducible and prove it.

    TrainCheck executes the same steps in two processes, with deterministic settings. It compares the fingerprint of
    each operation (with XLA of each submodule) and names the first that differs.
    """
    from traincheck.sdc.doctor import Execution, diagnose
    from traincheck.sdc.frameworks import check_executable, framework_of

    framework = framework_of(framework, "traincheck sdc doctor")
    steps = STEPS if steps is None else steps
    sdc_flags.at_least("--steps", steps, 1)
    sdc_flags.at_least("--seed", seed, 0)
    sdc_flags.at_least("--threads", threads, 1)
    workload = workload or sdc_flags.BUILT_IN
    check_executable(framework, workload)
    execution = Execution(workload, steps, seed, device or "cpu", threads, framework)
    with Progress() as progress:
        diagnosis = diagnose(execution, progress, remark)
    if as_json:
        out_json(diagnosis.data())
    else:
        _print(diagnosis)
    raise typer.Exit(0 if diagnosis.reproducible else FINDINGS)


def _print(diagnosis: Diagnosis) -> None:
    from traincheck.sdc.doctor import advice
    from traincheck.sdc.frameworks import TORCH

    execution, difference = diagnosis.execution, diagnosis.difference
    work = f"{execution.workload}, {amount(execution.steps, 'step')} on {execution.device}"
    work += "" if execution.framework == TORCH else f" with {execution.framework}"
    if difference is None:
        compared = amount(diagnosis.compared, "result")
        out(f"Reproducible: two runs of {work} computed the same bits ({compared} compared).")
        if diagnosis.undetermined:
            names = ", ".join(diagnosis.undetermined)
            out(f"Torch has no deterministic implementation of {names}, so another run may differ.")
        out("With these settings:")
        for line in columns(diagnosis.settings.items()):
            out(line)
        return
    out(f"Not reproducible: two runs of {work} differ after {amount(diagnosis.compared, 'equal result')}.")
    for name, entry in (("first run", difference.first), ("second run", difference.second)):
        if entry is None:
            out(f"  {name}: has ended")
        elif not difference.same_work:
            out(f"  {name}: {entry.sentence}")
    if difference.same_work and difference.first is not None:
        out(f"  first to differ: {difference.first.sentence}")
    out(f"  {advice(difference, diagnosis.undetermined, execution.framework)}")
