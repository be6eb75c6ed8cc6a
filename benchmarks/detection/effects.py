"""python -m benchmarks.detection.effects CASE,... [--variant buggy]

Shows without TrainCheck that the effect of a case exists: the first step with it in the buggy program, and none in the
clean program.

A case's `effect.py` has two functions. `watch(record)` is called in each process before the script starts; it hooks
what it needs and passes each observation to `record` as keyword arguments (numbers, texts and lists of them).
`first_bad_step(ranks)` gets the observations of each rank, as lists of dictionaries, and returns the first
step with the effect (0: before the first step), or None without one.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import tempfile
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

from benchmarks.detection.cases import VARIANTS, BadCase, Case, read_cases
from benchmarks.detection.warm import run_forked, warm_up


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
    warm_up()
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
    """The first step in which the effect exists in a run of a variant. Raises RuntimeError when the program fails.

    The program runs in a fork of this process, see Note [Warm starts].
    """
    with tempfile.TemporaryDirectory() as scratch:
        home, out = Path(scratch) / "program", Path(scratch) / "out"
        case.lay_out(variant, home)
        out.mkdir()
        watch = partial(_watch, case.folder, out)
        code, output = run_forked(case.script, case.args, home, case.ranks, dict(case.env), watch)
        if code:
            raise RuntimeError(f"{case.id} {variant} failed:\n{output[-6000:]}")
        written = [(out / f"{rank}.jsonl").read_text().splitlines() for rank in range(case.ranks)]
        records = [[json.loads(line) for line in lines] for lines in written]
    step: int | None = _effect_of(case.folder).first_bad_step(records)
    return step


def _effect_of(folder: Path) -> ModuleType:
    """The module `effect.py` of a case."""
    spec = importlib.util.spec_from_file_location(f"effect_{folder.name.replace('-', '_')}", folder / "effect.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _watch(folder: Path, out: Path) -> None:
    """In the process of the program: hook. What is observed goes to `out`, a JSON line each, a file for each rank."""
    file = (out / f"{os.environ.get('RANK', '0')}.jsonl").open("a")

    def record(**observed: Any) -> None:
        file.write(json.dumps(observed) + "\n")
        file.flush()

    _effect_of(folder).watch(record)


if __name__ == "__main__":
    raise SystemExit(main())
