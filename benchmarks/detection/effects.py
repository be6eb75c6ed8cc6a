"""python -m benchmarks.detection.effects CASE,... [--variant buggy]

Shows without TrainCheck that the effect a case claims is there: from which step on in the buggy program, and not in the
clean one.

A case's `effect.py` has two functions. `watch(record)` is called in each process before the script starts; it hooks
what it needs and passes each observation to `record` as keyword arguments (numbers, texts and lists of them).
`first_bad_step(ranks)` gets the observations of each rank, as lists of dictionaries, and gives the first step
in which the effect exists (0: before the first step), or None where it does not.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import tempfile
from pathlib import Path

from benchmarks.detection.cases import VARIANTS, BadCase, Case, read_cases
from benchmarks.detection.watched import effect_of

ROOT = Path(__file__).resolve().parents[2]
WATCHED = Path(__file__).with_name("watched.py")
TIMEOUT = 180
"""Seconds for one program; the slowest takes 15 on two idle cores."""


def main() -> int:
    """Measure the effect of the chosen cases; 0 where all are as claimed."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("cases", help="ids or parts, comma-separated")
    options.add_argument("--variant", choices=VARIANTS, help="only this one")
    chosen = options.parse_args()
    try:
        cases = read_cases(chosen.cases)
    except BadCase as error:
        options.error(str(error))
    wrong = 0
    for case in cases:
        for variant in [chosen.variant] if chosen.variant else VARIANTS:
            step = measured(case, variant)
            expected = case.first_bad_step if variant == "buggy" else None
            wrong += step != expected
            verdict = "as claimed" if step == expected else f"NOT as claimed ({expected})"
            print(f"{case.id} {variant}: first bad step {step}, {verdict}", flush=True)
    return int(wrong > 0)


def measured(case: Case, variant: str) -> int | None:
    """The first step in which the effect exists in a run of a variant. Raises RuntimeError when the program fails."""
    with tempfile.TemporaryDirectory() as scratch:
        home, out = Path(scratch) / "program", Path(scratch) / "out"
        case.lay_out(variant, home)
        out.mkdir()
        command = case.command(str(WATCHED), (str(case.folder), case.script, str(out), *case.args))
        done = subprocess.run(
            command,
            cwd=home,
            capture_output=True,
            text=True,
            timeout=TIMEOUT,
            env={**os.environ, **dict(case.env), "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        )
        if done.returncode:
            raise RuntimeError(f"{case.id} {variant} failed:\n{done.stdout[-2000:]}{done.stderr[-4000:]}")
        written = [(out / f"{rank}.jsonl").read_text().splitlines() for rank in range(case.ranks)]
        found = [[json.loads(line) for line in lines] for lines in written]
    step: int | None = effect_of(case.folder).first_bad_step(found)
    return step


if __name__ == "__main__":
    raise SystemExit(main())
