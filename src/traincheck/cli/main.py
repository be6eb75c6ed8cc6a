"""The command line: all commands, and the one place where errors become messages and exit codes."""

from __future__ import annotations

import gc
import importlib
import os
import sys
import traceback
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Annotated

import typer

from traincheck.cli import flags
from traincheck.cli.console import INTERRUPTED, out, remark, say
from traincheck.cli.help_format import PlainCommand
from traincheck.cli.program_arguments import TargetCommand
from traincheck.errors import TrainCheckError
from traincheck.version import __version__

FAILED = 1
DEBUG_VARIABLE = "TRAINCHECK_DEBUG"

EPILOG = """\b
Examples:
  traincheck collect -o runs/cnn train_cnn.py        record a good run
  traincheck infer runs/cnn runs/gpt -o good.jsonl   learn rules from good runs
  traincheck run my_train.py                         check a run while it trains
  traincheck run --book good.jsonl my_train.py       check it against these rules
  traincheck check runs/odd --book good.jsonl        check its recording afterwards

\b
Exit codes: 0 clean, 1 TrainCheck failed, 2 no training step or wrong usage,
3 findings at or above --fail-on; else that of your program when it fails.
"""

COMMANDS: Mapping[str, tuple[str, str]] = {
    "demo": ("traincheck.cli.commands.demo", "Try TrainCheck on a sound and a broken program."),
    "collect": ("traincheck.cli.commands.collect", "Record a run of a program in full."),
    "infer": ("traincheck.cli.commands.infer", "Learn a book of rules from good runs."),
    "run": ("traincheck.cli.commands.run", "Run a program and check it while it trains."),
    "verify": ("traincheck.cli.commands.verify", "Verify some steps of a program, before a long run."),
    "watch": ("traincheck.cli.commands.watch", "Watch a run from another terminal or host."),
    "check": ("traincheck.cli.commands.check", "Check recorded runs; PyTorch is not needed."),
    "report": ("traincheck.cli.commands.report", "Show the reports of runs again, on the terminal and as a page."),
    "compare": ("traincheck.cli.commands.compare", "Find the first operation that differs between two runs."),
    "ctl": ("traincheck.cli.commands.ctl", "Change a run while it trains."),
    "accept": ("traincheck.cli.commands.accept", "Accept good runs and learn from them."),
    "status": ("traincheck.cli.commands.status", "Show which runs of your programs are accepted."),
    "show": ("traincheck.cli.commands.show", "Print the rules of a book."),
    "diff": ("traincheck.cli.commands.diff", "Compare two books."),
    "mute": ("traincheck.cli.commands.mute", "Mute rules of a book, with the reason."),
    "merge": ("traincheck.cli.commands.merge", "Merge several books into one, or several tally files."),
    "explain": (
        "traincheck.cli.commands.explain",
        "Explain a diagnosis, a rule or a candidate.",
    ),
    "packs": ("traincheck.cli.commands.packs", "List, print and build packs of rules."),
    "doctor": ("traincheck.cli.commands.doctor", "Show versions, and what can be observed here."),
    "sdc": ("traincheck.cli.sdc.group", "Look for hardware that computes wrong results silently."),
}
"""The module of each command and its line in --help, in the order of --help.

A module has a `command` and an `EPILOG`, or an `app` of several commands. The line is the first sentence of the
command's own help; it stands here so that `traincheck --help` imports no command.
"""
PROGRAM_FOLLOWS = {"collect", "run", "verify"}
"""Commands that start the user's program."""

COMPLETION_VARIABLE = "_TRAINCHECK_COMPLETE"
"""Set by the shell that asks for completions; the words are in one of the other two variables."""
COMPLETION_WORDS = ("_TYPER_COMPLETE_ARGS", "COMP_WORDS")


def _print_version(requested: bool) -> None:
    if requested:
        out(f"traincheck {__version__}")
        raise typer.Exit


RARE_COLLECTION = (100_000, 50, 50)
"""Thresholds of Python's garbage collector: reading a recording makes a million small objects and no garbage."""


Version = Annotated[
    bool, typer.Option("--version", help="Print the version and exit.", callback=_print_version, is_eager=True)
]


def all_commands(version: Version = False, debug: flags.Debug = False) -> None:
    """TrainCheck catches silent errors in deep learning training.

    It learns rules from runs that are known to be good, and checks other runs against them.
    """


def app(imported: Collection[str] = tuple(COMMANDS)) -> typer.Typer:
    """The command line. It imports the commands in `imported`; the others are only listed."""
    # Plain text instead of rich panels: importing rich would double the time of --help.
    group = typer.Typer(
        name="traincheck",
        no_args_is_help=True,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        epilog=EPILOG,
    )
    group.callback()(all_commands)
    for name, (module_name, summary) in COMMANDS.items():
        if name not in imported:
            group.command(name, help=summary)(_only_listed)
            continue
        module = importlib.import_module(module_name)
        if hasattr(module, "app"):
            group.add_typer(module.app, name=name)
        else:
            kind = TargetCommand if name in PROGRAM_FOLLOWS else PlainCommand
            group.command(name, cls=kind, epilog=module.EPILOG)(module.command)
    return group


def _only_listed() -> None:
    """Stands for a command that this command line does not name."""


def needed(words: Sequence[str], environ: Mapping[str, str] = os.environ) -> Collection[str]:
    """The commands to import: the one that `words` name, or that the shell completes."""
    if COMPLETION_VARIABLE in environ:
        words = next((environ[name].split()[1:] for name in COMPLETION_WORDS if environ.get(name)), [])
    name = next((word for word in words if word != "--debug"), "")
    return (name,) if name in COMMANDS else ()


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command in `argv` (without the program's name; those of the process by default); its exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    gc.set_threshold(*RARE_COLLECTION)
    return guarded(lambda: app(needed(words))(words, prog_name="traincheck"), wants_debug(words))


def guarded(work: Callable[[], object], debug: bool) -> int:
    """Runs `work` and returns its exit code (None is 0), or that of its error.

    A TrainCheckError is printed as one message; any other error as one line and, with `debug`, its traceback.
    """
    try:
        code = work()
        sys.stdout.flush()
        return code if isinstance(code, int) else 0
    except SystemExit as end:
        return _code_of(end)
    except TrainCheckError as error:
        _show_traceback(debug)
        say(f"traincheck: error [{error.slug}]: {error}")
        return error.exit_code
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # The reader has closed the pipe; the interpreter must not flush into it at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except Exception as error:
        _show_traceback(debug)
        remark(f"error [internal]: {type(error).__name__}: {error}")
        if not debug:
            remark(f"this is a bug in TrainCheck; {DEBUG_VARIABLE}=1 shows the traceback")
        return FAILED


def _code_of(end: SystemExit) -> int:
    if end.code is None or isinstance(end.code, int):
        return end.code or 0
    say(str(end.code))
    return FAILED


def _show_traceback(debug: bool) -> None:
    if debug:
        say(traceback.format_exc().rstrip())


def wants_debug(words: Sequence[str]) -> bool:
    """Whether tracebacks are requested: --debug before the command, or the variable."""
    command = next((index for index, word in enumerate(words) if not word.startswith("-")), len(words))
    return "--debug" in words[:command] or os.environ.get(DEBUG_VARIABLE, "0") not in ("", "0")


if __name__ == "__main__":
    sys.exit(main())
