"""The published command names: `traincheck-collect`, `-infer`, `-check` and `-onlinecheck`, translated into ours.

Their options are those of the tool that the paper describes (OSDI 2025). What is not needed any more is accepted, so
that scripts which call them go on working, and said to be so. Each option that we obey has one line in a parser below.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeAlias

from traincheck.cli.console import remark
from traincheck.cli.main import guarded, wants_debug
from traincheck.config import Config, load

Number: TypeAlias = "str | int | None"
ONE: Number = None
MANY: Number = "*"
SWITCH: Number = 0
"""How many values an option takes."""

COLLECT_DROPPED: dict[str, Number] = {
    "--config": ONE,
    "--use-config": SWITCH,
    "--copy-all-files -a": SWITCH,
    "--only-instr": SWITCH,
    "--instr-descriptors": SWITCH,
    "--profiling": SWITCH,
    "--debug-mode -d": SWITCH,
    "--modules-to-instr -t": MANY,
    "--disable-scan-proxy-in-args": SWITCH,
    "--API-dump-stack-trace": SWITCH,
    "--use-full-instr": SWITCH,
    "--cond-dump": SWITCH,
    "--models-to-track": MANY,
    "--model-tracker-style": ONE,
    "--proxy-update-limit": ONE,
    "--tensor-dump-format": ONE,
    "--delta-dump": ONE,
    "--delta-dump-meta-var": ONE,
    "--delta-dump-attributes": ONE,
    "--enable-C-level-observer": ONE,
    "--no-auto-var-instr": SWITCH,
    "--use-torch-compile": SWITCH,
    "--sampling-interval": ONE,
    "--warm-up-steps": ONE,
}
INFER_DROPPED: dict[str, Number] = {
    "--debug -d": SWITCH,
    "--disable-relation": MANY,
    "--enable-relation": MANY,
    "--disable-precond-sampling": SWITCH,
    "--precond-sampling-threshold": ONE,
    "--backend -b": ONE,
}
CHECK_DROPPED: dict[str, Number] = {
    "--debug -d": SWITCH,
    "--check-relation-first": SWITCH,
    "--backend -b": ONE,
    "--no-html-report": SWITCH,
    "--report-wandb": SWITCH,
    "--wandb-project": ONE,
    "--wandb-entity": ONE,
    "--wandb-run-name": ONE,
    "--report-mlflow": SWITCH,
    "--mlflow-experiment": ONE,
    "--mlflow-run-name": ONE,
}

PAUSE = 5.0
"""Seconds between two looks at a run that is going on."""


class Dropped(argparse.Action):
    """Accepts an option that is not needed any more, and remembers that it was given."""

    def __call__(
        self, parser: object, namespace: argparse.Namespace, values: object, option_string: str | None = None
    ) -> None:
        namespace.dropped = [*getattr(namespace, "dropped", []), option_string]


def _parser(name: str, ours: str, dropped: dict[str, Number]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        name,
        description=f"The published name of `{ours}`, which has more options and a better --help.",
        allow_abbrev=False,
    )
    for flags, number in dropped.items():
        parser.add_argument(*flags.split(), action=Dropped, nargs=number, help=argparse.SUPPRESS, dest="_")
    return parser


def _parsed(parser: argparse.ArgumentParser, words: Sequence[str]) -> argparse.Namespace:
    found = parser.parse_args(words)
    given = list(dict.fromkeys(getattr(found, "dropped", [])))
    if given:
        remark(f"not needed any more and left out: {', '.join(given)}")
    return found


def _config(books: Sequence[str] = (), fail_on: str | None = None) -> Config:
    return load({"books": tuple(books), "fail_on": fail_on}, os.environ, Path.cwd())


def collect(argv: Sequence[str] | None = None) -> int:
    """`traincheck-collect --pyscript S --output-dir D`: `traincheck collect -o D S`; with `-i BOOK`: `... run`."""
    return _guarded(_collect, argv)


def _collect(words: Sequence[str]) -> int:
    from traincheck.cli.commands.collect import collect as in_full
    from traincheck.cli.commands.run import run as selectively
    from traincheck.runtime.launching.command_target import Target

    parser = _parser("traincheck-collect", "traincheck collect", COLLECT_DROPPED)
    parser.add_argument("-p", "--pyscript", required=True, help="the training script")
    parser.add_argument("-s", "--shscript", help="shell script that starts it; its Python processes are observed")
    parser.add_argument("--output-dir", help="run folder to write")
    parser.add_argument("-i", "--invariants", nargs="*", default=[], help="books: record what they need, and check")
    found = _parsed(parser, words)
    shell = ["--", "bash", found.shscript] if found.shscript else None
    folder = Path(found.output_dir) if found.output_dir else None
    target = Target.parse(shell or [found.pyscript])
    if found.invariants:
        return selectively(target, _config(found.invariants, fail_on="never"), folder)
    return in_full(target, _config(), folder)


def infer(argv: Sequence[str] | None = None) -> int:
    """`traincheck-infer -f DIR... -o BOOK`: `traincheck infer DIR... -o BOOK`."""
    return _guarded(_infer, argv)


def _infer(words: Sequence[str]) -> int:
    from traincheck.cli.commands.infer import infer as ours

    parser = _parser("traincheck-infer", "traincheck infer", INFER_DROPPED)
    _add_folders(parser)
    parser.add_argument("-o", "--output", default="invariants.json", help="book to write (default: %(default)s)")
    found = _parsed(parser, words)
    return ours(found.folders, Path(found.output))


def check(argv: Sequence[str] | None = None) -> int:
    """`traincheck-check -f DIR -i BOOK -o OUT`: `traincheck check DIR --book BOOK`, with the reports in OUT."""
    return _guarded(_check, argv)


def _check(words: Sequence[str]) -> int:
    from traincheck.cli.commands.check import check as ours

    parser = _parser("traincheck-check", "traincheck check", CHECK_DROPPED)
    _add_folders(parser)
    _add_books(parser)
    found = _parsed(parser, words)
    config = _config(found.invariants)
    folders = [Path(folder) for folder in found.folders]
    out = Path(found.output_dir or time.strftime("traincheck_checker_results_%Y-%m-%d_%H-%M-%S"))
    places = [out / folder.name if len(folders) > 1 else out for folder in folders]
    return max(
        ours([folder], config, place / "report.json", place / "report.html")
        for folder, place in zip(folders, places, strict=True)
    )


def onlinecheck(argv: Sequence[str] | None = None) -> int:
    """`traincheck-onlinecheck -f DIR -i BOOK`: check a run folder again and again until its run has ended."""
    return _guarded(_onlinecheck, argv)


def _onlinecheck(words: Sequence[str]) -> int:
    from traincheck.cli.live_check import follow

    parser = _parser("traincheck-onlinecheck", "traincheck check", CHECK_DROPPED)
    _add_folders(parser)
    _add_books(parser)
    parser.add_argument("--once", action="store_true", help="look once, whether or not the run has ended")
    found = _parsed(parser, words)
    config = _config(found.invariants)
    pause = 0.0 if found.once else PAUSE
    output = Path(found.output_dir) if found.output_dir else None
    return max(follow(Path(folder), config, pause, output) for folder in found.folders)


def _add_folders(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-f", "--trace-folders", dest="folders", nargs="+", required=True, help="run folders")


def _add_books(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-i", "--invariants", nargs="+", required=True, help="books to check against")
    parser.add_argument("-o", "--output-dir", help="folder for report.json and report.html")


def _guarded(work: Callable[[Sequence[str]], int], argv: Sequence[str] | None) -> int:
    words = list(sys.argv[1:] if argv is None else argv)
    return guarded(lambda: work(words), wants_debug([]))
