"""Command-line flags, made from the rows of the option table.

A command names its shared options in `@shared_options(...)` and receives them as keyword arguments, by the names of the
rows. Flags of one command are annotations of its parameters.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Optional, TypeVar

import typer

from traincheck.options import OPTIONS, Option

Command = TypeVar("Command", bound=Callable[..., None])


def flag(name: str, help: str = "", *, metavar: str = "", hidden: bool = False) -> Any:
    """The typer option of the row `name`, with the text of the row or another one that suits the command.

    The configuration sets the default; the help only names it.
    """
    option = OPTIONS[name]
    text = help or option.help
    if option.default and option.kind != "switch":
        text = f"{text} (default: {option.default})"
    return typer.Option(
        *option.flags,
        help=text,
        metavar=metavar or option.metavar or None,
        show_default=False,
        hidden=hidden,
        rich_help_panel=option.group,
        autocompletion=_completion(option),
    )


def _completion(option: Option) -> Callable[[str], list[str]] | None:
    if not option.choices:
        return None
    return lambda incomplete: [choice for choice in option.choices if choice.startswith(incomplete)]


def _type(option: Option) -> Any:
    # Optional and not `| None`: typer evaluates these at run time, and its oldest supported release reads only this.
    if option.kind == "switch":
        return bool
    return Optional[list[str]] if option.several else Optional[str]  # noqa: UP045


def shared_options(*names: str, hidden: tuple[str, ...] = ()) -> Callable[[Command], Command]:
    """Replaces the `**options` of a command by the flags of these rows; those in `hidden` are not in its --help.

    Keyword-only flags of the command come after them in its --help.
    """

    def decorate(command: Command) -> Command:
        signature = inspect.signature(command, eval_str=True)
        own = signature.parameters.values()
        params = [param for param in own if param.kind not in (param.KEYWORD_ONLY, param.VAR_KEYWORD)]
        for name in (*names, *hidden):
            option = OPTIONS[name]
            made = flag(name, hidden=name in hidden)
            annotation = Annotated[_type(option), made]  # type: ignore[valid-type]
            default = False if option.kind == "switch" else None
            param = inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
            params.append(param)
        params += [param for param in own if param.kind is param.KEYWORD_ONLY]
        command.__signature__ = signature.replace(parameters=params)  # type: ignore[attr-defined]
        command.__annotations__ = {param.name: param.annotation for param in params}
        return command

    return decorate


RunFolder = Annotated[
    Optional[Path],  # noqa: UP045
    flag("out", "Run folder to write. (default: RUNS/NAME-DATE-TIME)", metavar="RUN"),
]
BookFile = Annotated[
    Optional[Path],  # noqa: UP045
    flag("out", "Book to write. It replaces an older book and keeps the mutes in it.", metavar="BOOK"),
]
DemoFolder = Annotated[
    Optional[Path],  # noqa: UP045
    flag("out", "Empty folder for programs, recordings and reports. (default: a temporary folder)", metavar="FOLDER"),
]
PacksFolder = Annotated[Path, flag("out", "Folder to write; it replaces older packs in it.", metavar="PACKS")]
MergedFile = Annotated[Path, flag("out", "Book or tally file to write.")]
PageFile = Annotated[
    Optional[Path],  # noqa: UP045
    flag("out", "Also write one self-contained HTML page, which shows several runs side by side.", metavar="FILE"),
]
Against = Annotated[
    Optional[Path],  # noqa: UP045
    flag("against", "Earlier run to compare each step with.", metavar="RUN_A"),
]
InitialState = Annotated[
    Optional[Path],  # noqa: UP045
    flag(
        "from_earlier",
        "Changes the run: begin in the state of RUN_A.",
        metavar="RUN_A",
    ),
]
Library = Annotated[Optional[Path], flag("library")]  # noqa: UP045
Only = Annotated[Optional[list[str]], flag("only")]  # noqa: UP045
Themes = Annotated[Optional[Path], flag("themes")]  # noqa: UP045
Release = Annotated[str, flag("release")]
Wait = Annotated[str, flag("wait")]
TallyFile = Annotated[Optional[Path], flag("tally_file")]  # noqa: UP045
Jobs = Annotated[Optional[int], flag("jobs")]  # noqa: UP045
Ray = Annotated[Optional[str], flag("ray")]  # noqa: UP045
Journal = Annotated[Optional[Path], flag("journal", "Journal to write. (default: BOOK.journal.jsonl)")]  # noqa: UP045
JournalRead = Annotated[
    Optional[Path],  # noqa: UP045
    flag("journal", "Journal to read, instead of run folders."),
]
ReasonAccepted = Annotated[
    Optional[str],  # noqa: UP045
    flag("reason", "Reason why the run is good; the library keeps it. With a reason, findings do not matter."),
]
ReasonMuted = Annotated[
    Optional[str],  # noqa: UP045
    flag("reason", "Reason for the mute; the book keeps it."),
]
ReasonRequested = Annotated[
    Optional[str],  # noqa: UP045
    flag("reason", "Reason, with mute and stop; the report shows it."),
]
Unmute = Annotated[bool, flag("unmute")]
StepsToVerify = Annotated[
    Optional[int],  # noqa: UP045
    flag("steps", "Training steps to verify. The program then ends as after sys.exit(0). (default: 20)"),
]
FailOnChange = Annotated[bool, flag("fail_on_change")]
JsonLines = Annotated[bool, flag("json", "Print JSON: one object for each finding and each status.")]
AsJson = Annotated[bool, flag("json")]
Text = Annotated[Optional[str], flag("filter")]  # noqa: UP045
Candidate = Annotated[
    Optional[str],  # noqa: UP045
    flag("filter", "Follow the candidates that contain every word of TEXT through the inference."),
]
Names = Annotated[Optional[list[str]], flag("map")]  # noqa: UP045
NamesAgainst = Annotated[Optional[list[str]], flag("map", "Match names with --against by hand.")]  # noqa: UP045
Debug = Annotated[bool, flag("debug")]

RunFolders = Annotated[list[Path], typer.Argument(metavar="RUN...", help="Run folders.", show_default=False)]
RunFoldersToPreview = Annotated[
    Optional[list[Path]],  # noqa: UP045
    typer.Argument(metavar="RUN...", help="Run folders that you might accept.", show_default=False),
]
Recordings = Annotated[
    list[str],
    typer.Argument(
        metavar="RUN...",
        help="Run folders or tally files: paths, or addresses such as s3://BUCKET/RUN.",
        show_default=False,
    ),
]
WatchedRun = Annotated[
    Path,
    typer.Argument(metavar="RUN", help="Run folder. TrainCheck waits for it to appear.", show_default=False),
]
OneRunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="Run folder.", show_default=False)]
Files = Annotated[list[Path], typer.Argument(metavar="FILE...", help="Books, or tally files.", show_default=False)]
Ids = Annotated[
    list[str], typer.Argument(metavar="ID...", help="Ids of rules, or their first digits.", show_default=False)
]
Order = Annotated[
    Optional[list[str]],  # noqa: UP045
    typer.Argument(metavar="ORDER", help="Order, see below. (default: status)", show_default=False),
]
BookA = Annotated[Path, typer.Argument(metavar="A", help="The older book.", show_default=False)]
BookB = Annotated[Path, typer.Argument(metavar="B", help="The newer book.", show_default=False)]
OneBook = Annotated[Path, typer.Argument(metavar="BOOK", help="Book of rules.", show_default=False)]
PackName = Annotated[str, typer.Argument(metavar="NAME", help="Name of a pack.", show_default=False)]
Words = Annotated[
    Optional[list[str]],  # noqa: UP045
    typer.Argument(
        metavar="PROGRAM",
        help="SCRIPT [ARGS], -m MODULE [ARGS] or -- COMMAND [ARGS]. All words after it belong to the program.",
        show_default=False,
    ),
]
