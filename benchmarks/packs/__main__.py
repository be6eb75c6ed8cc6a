"""python -m benchmarks.packs [--seeds 0:1000] [--runs FOLDER] [--jobs N] [--reuse] [--output FOLDER]

Record all examples and the corpus programs of these seeds, learn from them, and put the packs that come with TrainCheck
into src/traincheck/packs. An interrupted run goes on where it stopped. `python -m benchmarks.detection` says how packs
fare on examples that they were not made from, and `python -m benchmarks.mutants` on new programs of the corpus.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from benchmarks.corpus.__main__ import FOLDER, learn_from_all, seeds
from benchmarks.corpus.running import lay_out
from benchmarks.detection.__main__ import positive, spread
from benchmarks.detection.books import THEMES, example_programs
from benchmarks.detection.recordings import ROOT, ProgramFailed
from benchmarks.detection.runs import RecordingOptions, recorded_example
from benchmarks.detection.warm import warm_pool
from traincheck.cli.main import main as traincheck
from traincheck.inference.tally_files import write_tallies
from traincheck.invariants.packs import SHIPPED
from traincheck.version import __version__


def main() -> int:
    """Record what is missing and build the packs; the exit code."""
    options = argparse.ArgumentParser(
        prog="python -m benchmarks.packs", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument(
        "--runs", type=Path, default=ROOT / "traincheck-runs" / "detection", help="where recordings go"
    )
    options.add_argument("--seeds", type=seeds, default=range(1000), help="programs of the corpus, FIRST:END")
    options.add_argument("--corpus", type=Path, default=FOLDER, help="where programs of the corpus and tallies go")
    options.add_argument("--output", type=Path, default=SHIPPED, help="where the packs go")
    options.add_argument("--jobs", type=positive, default=3, help="programs that run at a time")
    options.add_argument(
        "--reuse", action="store_true", help="take recordings of an earlier version of TrainCheck, too"
    )
    chosen = options.parse_args()
    recording_options = RecordingOptions(chosen.runs.resolve(), chosen.reuse, False, False)
    try:
        with warm_pool(chosen.jobs) as pool:
            learned = spread(
                pool,
                recorded_example,
                [(program, recording_options) for program in example_programs(recording_options.runs)],
            )
    except ProgramFailed as error:
        print(error, file=sys.stderr)
        return 1
    tallies = recording_options.runs / "examples.tally"
    write_tallies([example.tally for example in learned], tallies)
    sources = [str(tallies)]
    if chosen.seeds:
        programs = lay_out(list(chosen.seeds), chosen.corpus.resolve())
        with warm_pool(chosen.jobs) as pool:
            recorded = learn_from_all(pool, programs, chosen.corpus.resolve())
        sources += [str(entry.tally) for entry in recorded if not entry.problem]
    words = ["packs", "build", *sources, "-o", str(chosen.output), "--themes", str(THEMES), "--release", __version__]
    return traincheck(words)


if __name__ == "__main__":
    raise SystemExit(main())
