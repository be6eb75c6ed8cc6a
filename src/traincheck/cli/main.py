"""The command line: all commands, and the one place where errors become messages and exit codes."""

from __future__ import annotations

import gc
import importlib
import os
import sys
import traceback
from collections.abc import Callable, Collection, Sequence
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
  traincheck infer runs/cnn runs/gpt -o good.jsonl   learn what is normal
  traincheck run my_train.py                         check a run while it trains
  traincheck run --book good.jsonl my_train.py       check it against what you learned
  traincheck check runs/odd --book good.jsonl        or afterwards, from its recording

\b
Exit codes: 0 clean, 1 TrainCheck failed, 2 no training step or wrong usage, 3 findings at or above
--fail-on.
When your program fails, its own exit code is returned.
"""

COMMANDS = {
    "demo": "traincheck.cli.commands.demo",
    "collect": "traincheck.cli.commands.collect",
    "infer": "traincheck.cli.commands.infer",
    "run": "traincheck.cli.commands.run",
    "watch": "traincheck.cli.commands.watch",
    "check": "traincheck.cli.commands.check",
    "show": "traincheck.cli.commands.show",
    "diff": "traincheck.cli.commands.diff",
    "mute": "traincheck.cli.commands.mute",
    "merge": "traincheck.cli.commands.merge",
    "explain": "traincheck.cli.commands.explain",
    "ctl": "traincheck.cli.commands.ctl",
    "accept": "traincheck.cli.commands.accept",
    "status": "traincheck.cli.commands.status",
    "packs": "traincheck.cli.commands.packs",
    "report": "traincheck.cli.commands.report",
    "doctor": "traincheck.cli.commands.doctor",
    "completion": "traincheck.cli.commands.completion",
    "sdc": "traincheck.cli.sdc.group",
}
"""The module of each command, in the order in which --help tells them: it has a `command` and an `EPILOG`, or an
`app` of several."""
PROGRAM_FOLLOWS = {"collect", "run"}
"""Commands that start the user's program."""


def _tell_version(asked: bool) -> None:
    if asked:
        out(f"traincheck {__version__}")
        raise typer.Exit


SELDOM = (100_000, 50, 50)
"""How often Python's collector runs: to read a recording makes a million small objects, none of which is garbage."""


Version = Annotated[
    bool, typer.Option("--version", help="Print the version and exit.", callback=_tell_version, is_eager=True)
]


def all_commands(version: Version = False, debug: flags.Debug = False) -> None:
    """TrainCheck catches silent errors in deep learning training.

    It learns training invariants from runs that are known to be good and checks other runs against them.
    """


def app(names: Collection[str] = tuple(COMMANDS)) -> typer.Typer:
    """The command line with the commands `names`; only these are imported."""
    # Plain text and not rich panels: --help is on the way of every first minute, and rich takes longer than the rest.
    made = typer.Typer(
        name="traincheck",
        add_completion=False,
        no_args_is_help=True,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        epilog=EPILOG,
    )
    made.callback()(all_commands)
    for name in names:
        module = importlib.import_module(COMMANDS[name])
        if hasattr(module, "app"):
            made.add_typer(module.app, name=name)
            continue
        kind = TargetCommand if name in PROGRAM_FOLLOWS else PlainCommand
        made.command(name, cls=kind, epilog=module.EPILOG)(module.command)
    return made


def needed(words: Sequence[str]) -> Collection[str]:
    """The commands that `words` need: the one that they name; all where --help or an error has to tell of them."""
    place = next((place for place, word in enumerate(words) if word != "--debug"), len(words))
    name = words[place] if place < len(words) else ""
    return (name,) if name in COMMANDS else tuple(COMMANDS)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command in `argv` (without the program's name; those of the process by default); its exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    gc.set_threshold(*SELDOM)
    return guarded(lambda: app(needed(words))(words, prog_name="traincheck"), wants_debug(words))


def guarded(work: Callable[[], object], debug: bool) -> int:
    """The exit code of `work`: what it returns (None is 0) or exits with, or what its error stands for.

    An error that we foresaw is one message; any other is one line and, with `debug`, its traceback.
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
        # The reader of our output has gone, which is its right; the interpreter must not flush into the void at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except Exception as error:
        _show_traceback(debug)
        remark(f"error [internal]: {type(error).__name__}: {error}")
        if not debug:
            remark(f"this is a fault of TrainCheck's; {DEBUG_VARIABLE}=1 shows where")
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
    """Whether tracebacks are asked for: --debug before the command, or the variable."""
    command = next((place for place, word in enumerate(words) if not word.startswith("-")), len(words))
    return "--debug" in words[:command] or os.environ.get(DEBUG_VARIABLE, "0") not in ("", "0")


if __name__ == "__main__":
    sys.exit(main())
