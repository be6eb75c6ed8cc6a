"""The published commands `traincheck-collect`, `-infer`, `-check` and `-onlinecheck`, as calls of today's commands.

They take the options of the tool in the paper (OSDI 2025), so that existing scripts go on working. Options without a
meaning today are accepted and reported as ignored.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeAlias

from traincheck.cli.console import remark
from traincheck.cli.main import guarded, wants_debug
from traincheck.cli.report_output import HTML_NAME, JSON_NAME
from traincheck.config import Config, load

Number: TypeAlias = "str | int | None"
SINGLE: Number = None
MANY: Number = "*"
SWITCH: Number = 0
"""Numbers of values that an option takes."""

COLLECT_DROPPED: dict[str, Number] = {
    "--config": SINGLE,
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
    "--model-tracker-style": SINGLE,
    "--proxy-update-limit": SINGLE,
    "--tensor-dump-format": SINGLE,
    "--delta-dump": SINGLE,
    "--delta-dump-meta-var": SINGLE,
    "--delta-dump-attributes": SINGLE,
    "--enable-C-level-observer": SINGLE,
    "--no-auto-var-instr": SWITCH,
    "--use-torch-compile": SWITCH,
    "--sampling-interval": SINGLE,
    "--warm-up-steps": SINGLE,
}
INFER_DROPPED: dict[str, Number] = {
    "--debug -d": SWITCH,
    "--disable-relation": MANY,
    "--enable-relation": MANY,
    "--disable-precond-sampling": SWITCH,
    "--precond-sampling-threshold": SINGLE,
    "--backend -b": SINGLE,
}
CHECK_DROPPED: dict[str, Number] = {
    "--debug -d": SWITCH,
    "--check-relation-first": SWITCH,
    "--backend -b": SINGLE,
    "--no-html-report": SWITCH,
    "--report-wandb": SWITCH,
    "--wandb-project": SINGLE,
    "--wandb-entity": SINGLE,
    "--wandb-run-name": SINGLE,
    "--report-mlflow": SWITCH,
    "--mlflow-experiment": SINGLE,
    "--mlflow-run-name": SINGLE,
}

PAUSE = 5.0
"""Seconds between two looks at a run that is going on."""


class Dropped(argparse.Action):
    """Accepts an option without a meaning today, and notes that it was given."""

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
    options = parser.parse_args(words)
    ignored = list(dict.fromkeys(getattr(options, "dropped", [])))
    if ignored:
        remark(f"ignored, as no longer needed: {', '.join(ignored)}")
    return options


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
    options = _parsed(parser, words)
    shell = ["--", "bash", options.shscript] if options.shscript else None
    folder = Path(options.output_dir) if options.output_dir else None
    target = Target.parse(shell or [options.pyscript])
    if options.invariants:
        return selectively(target, _config(options.invariants, fail_on="never"), folder)
    return in_full(target, _config(), folder)


def infer(argv: Sequence[str] | None = None) -> int:
    """`traincheck-infer -f DIR... -o BOOK`: `traincheck infer DIR... -o BOOK`."""
    return _guarded(_infer, argv)


def _infer(words: Sequence[str]) -> int:
    from traincheck.cli.commands.infer import infer as ours

    parser = _parser("traincheck-infer", "traincheck infer", INFER_DROPPED)
    _add_folders(parser)
    parser.add_argument("-o", "--output", default="invariants.json", help="book to write (default: %(default)s)")
    options = _parsed(parser, words)
    return ours(options.folders, Path(options.output))


def check(argv: Sequence[str] | None = None) -> int:
    """`traincheck-check -f DIR -i BOOK -o OUT`: `traincheck check DIR --book BOOK`, with the reports in OUT."""
    return _guarded(_check, argv)


def _check(words: Sequence[str]) -> int:
    from traincheck.cli.commands.check import check as ours

    parser = _parser("traincheck-check", "traincheck check", CHECK_DROPPED)
    _add_folders(parser)
    _add_books(parser)
    options = _parsed(parser, words)
    config = _config(options.invariants)
    folders = [Path(folder) for folder in options.folders]
    out = Path(options.output_dir or time.strftime("traincheck_checker_results_%Y-%m-%d_%H-%M-%S"))
    outputs = [out / folder.name if len(folders) > 1 else out for folder in folders]
    codes = []
    for folder, output in zip(folders, outputs, strict=True):
        reports = (f"json={output / JSON_NAME}", f"html={output / HTML_NAME}")
        codes.append(ours([folder], replace(config, reports=reports)))
    return max(codes)


def onlinecheck(argv: Sequence[str] | None = None) -> int:
    """`traincheck-onlinecheck -f DIR -i BOOK`: check a run folder again and again until its run has ended."""
    return _guarded(_onlinecheck, argv)


def _onlinecheck(words: Sequence[str]) -> int:
    from traincheck.cli.live_check import follow

    parser = _parser("traincheck-onlinecheck", "traincheck check", CHECK_DROPPED)
    _add_folders(parser)
    _add_books(parser)
    parser.add_argument("--once", action="store_true", help="look once, whether or not the run has ended")
    options = _parsed(parser, words)
    config = _config(options.invariants)
    pause = 0.0 if options.once else PAUSE
    output = Path(options.output_dir) if options.output_dir else None
    return max(follow(Path(folder), config, pause, output) for folder in options.folders)


def _add_folders(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-f", "--trace-folders", dest="folders", nargs="+", required=True, help="run folders")


def _add_books(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-i", "--invariants", nargs="+", required=True, help="books to check against")
    parser.add_argument("-o", "--output-dir", help="folder for report.json and report.html")


def _guarded(work: Callable[[Sequence[str]], int], argv: Sequence[str] | None) -> int:
    words = list(sys.argv[1:] if argv is None else argv)
    return guarded(lambda: work(words), wants_debug([]))
