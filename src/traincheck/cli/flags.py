"""Flags: the rows of the option table as typer wants them, one name for each."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Optional

import typer

from traincheck.options import OPTIONS


def flag(name: str) -> Any:
    """The typer option of the row `name`; its default is left to the configuration, so it only says it."""
    option = OPTIONS[name]
    notes = [f"default: {option.default}"] if option.default and option.kind != "switch" else []
    notes += [f"env: {option.variable}"] if option.variable else []
    told = f"{option.help} ({'; '.join(notes)})" if notes else option.help
    return typer.Option(*option.flags, help=told, metavar=option.metavar or None, show_default=False)


# Optional and not `| None`: typer evaluates these at run time, and its oldest supported release reads only this form.
Books = Annotated[Optional[list[Path]], flag("books")]  # noqa: UP045
Packages = Annotated[Optional[list[str]], flag("packages")]  # noqa: UP045
OnViolation = Annotated[Optional[str], flag("on_violation")]  # noqa: UP045
FailOn = Annotated[Optional[str], flag("fail_on")]  # noqa: UP045
Runs = Annotated[Optional[Path], flag("runs")]  # noqa: UP045
RunFolder = Annotated[Optional[Path], flag("run_folder")]  # noqa: UP045
BookFile = Annotated[Path, flag("book_file")]
Journal = Annotated[Optional[Path], flag("journal")]  # noqa: UP045
JsonFile = Annotated[Optional[Path], flag("json_file")]  # noqa: UP045
HtmlFile = Annotated[Optional[Path], flag("html_file")]  # noqa: UP045
AsJson = Annotated[bool, flag("as_json")]
Text = Annotated[Optional[str], flag("text")]  # noqa: UP045
Relation = Annotated[Optional[str], flag("relation")]  # noqa: UP045
Severity = Annotated[Optional[str], flag("severity")]  # noqa: UP045
Candidate = Annotated[Optional[str], flag("candidate")]  # noqa: UP045
Debug = Annotated[bool, flag("debug")]

RunFolders = Annotated[list[Path], typer.Argument(metavar="RUN...", help="Run folders.", show_default=False)]
OneRunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="Run folder.", show_default=False)]
OneBook = Annotated[Path, typer.Argument(metavar="BOOK", help="Book of invariants.", show_default=False)]
Words = Annotated[
    Optional[list[str]],  # noqa: UP045
    typer.Argument(
        metavar="PROGRAM",
        help="SCRIPT [ARGS], -m MODULE [ARGS] or -- COMMAND [ARGS], as you would start it; all after it is its own.",
        show_default=False,
    ),
]
