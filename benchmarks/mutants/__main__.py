"""python -m benchmarks.mutants [--programs 300] [--mutated 100] [--per-program 6] [--own 100] [--jobs 2]

The mutation score: clean programs of the corpus, from seeds that were never learned from, are recorded and checked
(errors are false alarms); the first of them are mutated, and each mutant is run, recorded and checked. Goes on where it
was interrupted. A whole run writes benchmarks/results/mutants.json and docs/mutation-score.md.
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import itertools
import json
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.corpus.__main__ import results
from benchmarks.corpus.running import CorpusProgram, lay_out
from benchmarks.corpus.writing import choose
from benchmarks.detection.recordings import ROOT, digest_of_traincheck
from benchmarks.detection.warm import warm_pool
from benchmarks.machine import machine
from benchmarks.mutants.operator import Operator, all_operators, reserved
from benchmarks.mutants.plan import plan_mutants
from benchmarks.mutants.running import Options, run_program
from benchmarks.mutants.table import figures, page
from traincheck.invariants.packs import MANIFEST, SHIPPED

FIRST_SEED = 1_000_000
"""Programs from this seed on belong to this benchmark; packs are learned from smaller ones."""

RESULTS = ROOT / "benchmarks" / "results" / "mutants.json"
PAGE = ROOT / "docs" / "mutation-score.md"


def main() -> int:
    """Run what has no result yet, and write the figures."""
    chosen = options().parse_args()
    began = time.perf_counter()
    folder = chosen.folder.resolve()
    drawn = seeds_of(FIRST_SEED + chosen.skip, frozenset(chosen.without.split(",")))
    programs = lay_out(list(itertools.islice(drawn, chosen.programs)), folder / "programs")
    operators = [
        entry for entry in all_operators() if not chosen.operators or entry.name in chosen.operators.split(",")
    ]
    if not operators:
        options().error(f"--operators: none of {chosen.operators} is an operator")
    mutated = {entry.program.name: entry.text for entry in programs[: chosen.mutated]}
    plan = plan_mutants(mutated, operators, chosen.per_program)
    options_of = {
        program.program.name: Options(folder / "work", chosen.packs.resolve(), number < chosen.own, chosen.verify)
        for number, program in enumerate(programs)
    }
    kept = folder / "results"
    kept.mkdir(parents=True, exist_ok=True)
    done: dict[str, dict[str, Any]] = {}
    open_programs = []
    for program in programs:
        name = program.program.name
        file = kept / f"{name}-{_made_of(program, plan.get(name, ()), options_of[name])}.json"
        if file.exists():
            done[name] = json.loads(file.read_text())
        else:
            open_programs.append((program, file))
    files = {program.program.name: file for program, file in open_programs}
    with warm_pool(chosen.jobs) as pool:
        work = [
            (program, plan.get(program.program.name, ()), options_of[program.program.name])
            for program, _ in open_programs
        ]
        clean = [program for program, _ in open_programs]
        for program, result in results(pool, run_program, work, clean, "mutants"):
            done[program.program.name] = result.as_data()
            files[program.program.name].write_text(json.dumps(result.as_data()))
            print_progress(done[program.program.name], reserved(operators))
    result = figures([done[name] for name in sorted(done)], operators)
    result |= {"machine": machine(), "seconds": round(time.perf_counter() - began)}
    (folder / "result.json").write_text(json.dumps(result, indent=2) + "\n")
    if chosen.keep:
        RESULTS.write_text(json.dumps(result, indent=2) + "\n")
        PAGE.write_text(page(result))
    print(page(result).split("## By kind")[0])
    return int(bool(result["failed"]))


def seeds_of(first: int, without: frozenset[str]) -> Iterator[int]:
    """The seeds from `first` on whose programs do not consist of a loop or program of these names."""
    for seed in itertools.count(first):
        choices, _ = choose(seed)
        if (choices.program or choices.loop) not in without:
            yield seed


def _made_of(program: CorpusProgram, mutants: Sequence[tuple[Operator, int]], run_options: Options) -> str:
    """A digest of all that a result depends on."""
    parts = (
        program.text,
        digest_of_traincheck(),
        (run_options.packs / MANIFEST).read_text(),
        run_options.own,
        run_options.verify_every,
        [(operator.name, variant) for operator, variant in mutants],
        _own_text(),
    )
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:12]


@functools.cache
def _own_text() -> str:
    """The text of this benchmark, without that of its tables."""
    return "".join(file.read_text() for file in sorted(Path(__file__).parent.rglob("*.py")) if file.name != "table.py")


def print_progress(row: dict[str, Any], held_back: frozenset[str]) -> None:
    """A line for a program: its false alarms and the outcome of its open mutants."""
    if row["problem"]:
        print(f"{row['name']}: {row['problem']}", flush=True)
        return
    words = [f"{row['name']} {row['parts']['program'] or row['parts']['loop'] + '/' + row['parts']['task']}"]
    words += [f"FALSE ALARM ({setting}): {', '.join(slugs)}" for setting, slugs in row["errors"].items() if slugs]
    for mutant in row["mutants"]:
        if mutant["operator"] not in held_back:
            verdicts = [
                f"{setting} {'detected' if verdict['detected'] else 'missed'}"
                for setting, verdict in mutant["verdicts"].items()
            ]
            words.append(f"{mutant['operator']} {mutant['outcome']} {', '.join(verdicts)}".strip())
    print("; ".join(words), flush=True)


def options() -> argparse.ArgumentParser:
    """The options of the command."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.mutants", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--programs", type=int, default=300, help="clean programs")
    parser.add_argument("--skip", type=int, default=0, help="leave out so many programs at the start")
    parser.add_argument("--without", default="", help="loops and programs to leave out, comma-separated")
    parser.add_argument("--mutated", type=int, default=100, help="how many of them are mutated")
    parser.add_argument("--per-program", type=int, default=6, help="mutants of a program")
    parser.add_argument("--operators", default="", help="names, comma-separated; all by default")
    parser.add_argument("--own", type=int, default=100, help="how many of them are also checked with own runs")
    parser.add_argument("--verify", action="store_true", help="also with experiments on live steps (--verify-every)")
    parser.add_argument("--packs", type=Path, default=SHIPPED, help="the packs to check with")
    parser.add_argument("--jobs", type=int, default=2, help="programs that run at a time")
    parser.add_argument("--keep", action="store_true", help="write benchmarks/results and docs")
    parser.add_argument("--folder", type=Path, default=ROOT / "traincheck-runs" / "mutants", help="where runs go")
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
