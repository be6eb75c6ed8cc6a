"""Compares a program with mutants of it, and judges what is named.

Programs and mutants are recorded with `--record operations`. The truth comes from elsewhere: the first step in which
plain runs of both compute something else (mutants/effects.py), and the lines that the mutation changed. An origin is
*named right* if it begins in that step at the latest, and its line lies in the function or class that was changed.
(Plain runs show losses and updated parameters. An average or a clip differs before they do.) An origin without a line
(an update, a gradient, data) has to be in a phase that the kind of the error concerns.
"""

from __future__ import annotations

import ast
import difflib
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.corpus.running import CorpusProgram, PlainRun, record
from benchmarks.detection.recordings import Program
from benchmarks.mutants.effects import first_difference, is_plausible
from benchmarks.mutants.operator import Operator
from benchmarks.mutants.running import nth_mutant, read_plain
from benchmarks.mutants.script import Script
from traincheck.comparison.difference import DIFFERENT, SAME, Difference
from traincheck.comparison.run_comparison import compare_runs
from traincheck.errors import TrainCheckError
from traincheck.trace.operation_files import read_operations
from traincheck.vocab.operations import ACCUMULATED, AFTER, BACKWARD, BEFORE, FORWARD, GRADIENT, UPDATE

NAMED, ELSEWHERE, OTHER_STEP, MISSED = COUNTED = ("named", "elsewhere", "other step", "missed")
"""Outcomes of pairs that count."""

LONG = 40
"""Lines of a function in which only the changed lines and `NEAR` lines around them count."""
NEAR = 3

COMPUTED = (FORWARD, BACKWARD)
PHASES: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("clearing", "accumulation", "clipping", "scaler", "gradient-averaging"), (GRADIENT, UPDATE)),
    **dict.fromkeys(("stepping", "groups", "schedule", "freezing", "state", "resume"), (GRADIENT, UPDATE, BEFORE)),
    **dict.fromkeys(("data-order", "augmentation", "samplers", "worker-seeds", "replay"), (BEFORE,)),
    **dict.fromkeys(("initialization", "tying", "buffers", "checkpoints", "wrapper"), (BEFORE, UPDATE, AFTER)),
    **dict.fromkeys(("targets", "caches"), (BEFORE, AFTER)),
    **dict.fromkeys(("detaching", "in-place"), (BACKWARD, GRADIENT, *COMPUTED)),
}
"""Phases in which an error of a kind may begin where no line of the program shows; else the computed ones."""


@dataclass(frozen=True)
class Pair:
    """The result of a comparison. `outcome` is one of `COUNTED`, or why the pair does not count."""

    operator: str
    outcome: str
    step: int | None = None
    found: str = ""
    origins: int = 0
    kilobytes_a_step: float = 0.0


def compare_program(
    clean: CorpusProgram, mutants: Sequence[tuple[Operator, int]], folder: Path
) -> tuple[str, list[Pair]]:
    """Compare a program with itself and with its mutants."""
    work = folder / clean.program.name
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    try:
        effects, output = read_plain(clean.program, work / "clean")
        if effects is None or PlainRun(0, 0.0, output).problem:
            return "does not train", []
        for name in ("first", "second"):
            code, _ = record(clean.program, work / name, what="operations")
            if code:
                return f"crashed when recorded ({code})", []
        twin = compare_runs(work / "first", work / "second").result
        shutil.rmtree(work / "second", ignore_errors=True)
        return twin, [compare_mutant(clean, operator, variant, effects, work) for operator, variant in mutants]
    except TrainCheckError as error:
        return type(error).__name__, []
    finally:
        shutil.rmtree(work, ignore_errors=True)


def compare_mutant(
    clean: CorpusProgram, operator: Operator, variant: int, effects: Mapping[int, Any], work: Path
) -> Pair:
    """Compare a program with one mutant of it."""
    text = nth_mutant(operator, Script(clean.text), variant)
    home = work / f"{operator.name}.program"
    shutil.copytree(clean.program.home, home, dirs_exist_ok=True)
    (home / clean.program.script).write_text(text)
    program: Program = replace(clean.program, home=home)
    changed, _ = read_plain(program, work / "mutant")
    if changed is None:
        return Pair(operator.name, "crashed")
    steps = [first_difference(effects.get(rank, ()), changed.get(rank, ())) for rank in effects]
    differing = [step for step in steps if step is not None]
    if not differing:
        return Pair(operator.name, "equivalent")
    if not all(is_plausible(effects[rank], changed.get(rank, ())) for rank in effects):
        return Pair(operator.name, "implausible")
    run = work / "mutant.run"
    code, _ = record(program, run, what="operations")
    if code:
        return Pair(operator.name, "crashed")
    comparison = compare_runs(work / "first", run)
    size = kilobytes_a_step(run)
    shutil.rmtree(run, ignore_errors=True)
    step = min(differing)
    if comparison.result != DIFFERENT:
        return Pair(operator.name, MISSED, step, "" if comparison.result == SAME else "rounding")
    first = comparison.origins[0]
    found = (
        f"{first.kind} in step {first.step}: {first.operation.phase} {first.operation.name} {first.operation.module}"
    )
    right = is_named(first, clean.text, text, operator.kind)
    outcome = ELSEWHERE if not right else NAMED if first.step <= step else OTHER_STEP
    return Pair(operator.name, outcome, step, found, len(comparison.origins), size)


def kilobytes_a_step(run: Path) -> float:
    """The size of the sketches of a run, for each step of each process."""
    files = list(run.glob("operations-*"))
    steps = sum(1 for file in files for _ in read_operations(file))
    return round(sum(file.stat().st_size for file in files) / max(steps, 1) / 1e3, 1)


def is_named(origin: Difference, before: str, after: str, kind: str) -> bool:
    """Whether an origin lies where the text was changed, or in a phase that the kind of error concerns."""
    operations = [*origin.others_a, *origin.others_b, *(each for each in (origin.a, origin.b) if each is not None)]
    lines = {int(each.site.split(":")[1]) for each in operations if each.site.count(":") >= 2}
    if any(first <= line <= last for first, last in changed_places(before, after) for line in lines):
        return True
    phase = GRADIENT if origin.operation.name == ACCUMULATED else origin.operation.phase
    return phase in PHASES.get(kind, COMPUTED)


def changed_places(before: str, after: str) -> Iterator[tuple[int, int]]:
    """The first and last line of each function or class (or statement outside) in which a text was changed."""
    matcher = difflib.SequenceMatcher(None, before.splitlines(), after.splitlines(), autojunk=False)
    blocks = [block for block in matcher.get_opcodes() if block[0] != "equal"]
    for text, begin, end in ((before, 1, 2), (after, 3, 4)):
        places = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef | ast.ClassDef)]
        for block in blocks:
            first, last = block[begin] + 1, max(block[end], block[begin] + 1)
            around = [
                (node.lineno, node.end_lineno or node.lineno)
                for node in places
                if node.lineno <= first and last <= (node.end_lineno or node.lineno)
            ]
            innermost = max(around, default=(first, last))
            yield innermost if innermost[1] - innermost[0] <= LONG else (first - NEAR, last + NEAR)
