"""Flags: the rows of the option table as typer wants them, one name for each."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Optional

import typer

from traincheck.options import OPTIONS


def flag(name: str, *, hidden: bool = False) -> Any:
    """The typer option of the row `name`; its default is left to the configuration, so it only says it."""
    option = OPTIONS[name]
    notes = [f"default: {option.default}"] if option.default and option.kind != "switch" else []
    notes += [f"env: {option.variable}"] if option.variable else []
    told = f"{option.help} ({'; '.join(notes)})" if notes else option.help
    return typer.Option(*option.flags, help=told, metavar=option.metavar or None, show_default=False, hidden=hidden)


# Optional and not `| None`: typer evaluates these at run time, and its oldest supported release reads only this form.
Books = Annotated[Optional[list[Path]], flag("books")]  # noqa: UP045
Packs = Annotated[Optional[list[str]], flag("packs")]  # noqa: UP045
Library = Annotated[Optional[Path], flag("library")]  # noqa: UP045
ReasonAccepted = Annotated[Optional[str], flag("reason_accepted")]  # noqa: UP045
Anyway = Annotated[bool, flag("anyway")]
DemoFolder = Annotated[Optional[Path], flag("demo_folder")]  # noqa: UP045
PacksFolder = Annotated[Path, flag("packs_folder")]
Themes = Annotated[Optional[Path], flag("themes")]  # noqa: UP045
Release = Annotated[str, flag("release")]
PackName = Annotated[str, typer.Argument(metavar="NAME", help="Name of a pack.", show_default=False)]
AsProgram = Annotated[Optional[str], flag("as_program")]  # noqa: UP045
Packages = Annotated[Optional[list[str]], flag("packages")]  # noqa: UP045
OnViolation = Annotated[Optional[str], flag("on_violation")]  # noqa: UP045
Callback = Annotated[Optional[str], flag("callback")]  # noqa: UP045
LookCloser = Annotated[Optional[str], flag("look_closer")]  # noqa: UP045
Snapshot = Annotated[bool, flag("snapshot")]
ReasonAsked = Annotated[Optional[str], flag("reason_asked")]  # noqa: UP045
Wait = Annotated[str, flag("wait")]
Record = Annotated[Optional[str], flag("record")]  # noqa: UP045
KeepRecording = Annotated[Optional[str], flag("keep_recording")]  # noqa: UP045
CompareRanks = Annotated[Optional[str], flag("compare_ranks")]  # noqa: UP045
Reports = Annotated[Optional[list[str]], flag("reports")]  # noqa: UP045
Trackers = Annotated[Optional[list[str]], flag("trackers")]  # noqa: UP045
FailOn = Annotated[Optional[str], flag("fail_on")]  # noqa: UP045
SampleEvery = Annotated[Optional[str], flag("sample_every")]  # noqa: UP045
WarmUp = Annotated[Optional[str], flag("warm_up")]  # noqa: UP045
Budget = Annotated[Optional[str], flag("budget")]  # noqa: UP045
ReplayEvery = Annotated[Optional[str], flag("replay_every")]  # noqa: UP045
NoReplayEvery = Annotated[Optional[str], flag("replay_every", hidden=True)]  # noqa: UP045
NoSampleEvery = Annotated[Optional[str], flag("sample_every", hidden=True)]  # noqa: UP045
NoWarmUp = Annotated[Optional[str], flag("warm_up", hidden=True)]  # noqa: UP045
NoBudget = Annotated[Optional[str], flag("budget", hidden=True)]  # noqa: UP045
Runs = Annotated[Optional[Path], flag("runs")]  # noqa: UP045
Webhook = Annotated[Optional[str], flag("webhook")]  # noqa: UP045
AlertCommand = Annotated[Optional[str], flag("alert_command")]  # noqa: UP045
AlertOn = Annotated[Optional[str], flag("alert_on")]  # noqa: UP045
SilentAfter = Annotated[Optional[str], flag("silent_after")]  # noqa: UP045
MetricsPort = Annotated[Optional[str], flag("metrics_port")]  # noqa: UP045
MetricsHost = Annotated[Optional[str], flag("metrics_host")]  # noqa: UP045
MetricsToken = Annotated[Optional[str], flag("metrics_token")]  # noqa: UP045
Otlp = Annotated[Optional[str], flag("otlp")]  # noqa: UP045
RunFolder = Annotated[Optional[Path], flag("run_folder")]  # noqa: UP045
BookFile = Annotated[Optional[Path], flag("book_file")]  # noqa: UP045
MergedFile = Annotated[Path, flag("merged_file")]
TallyFile = Annotated[Optional[Path], flag("tally_file")]  # noqa: UP045
Jobs = Annotated[Optional[int], flag("jobs")]  # noqa: UP045
Engine = Annotated[Optional[str], flag("engine")]  # noqa: UP045
ClusterAddress = Annotated[Optional[str], flag("address")]  # noqa: UP045
Journal = Annotated[Optional[Path], flag("journal")]  # noqa: UP045
JournalRead = Annotated[Optional[Path], flag("journal_read")]  # noqa: UP045
Reason = Annotated[Optional[str], flag("reason")]  # noqa: UP045
Unmute = Annotated[bool, flag("unmute")]
FailOnChange = Annotated[bool, flag("fail_on_change")]
JsonFile = Annotated[Optional[Path], flag("json_file")]  # noqa: UP045
HtmlFile = Annotated[Optional[Path], flag("html_file")]  # noqa: UP045
PageFile = Annotated[Optional[Path], flag("page_file")]  # noqa: UP045
JsonLines = Annotated[bool, flag("json_lines")]
AsJson = Annotated[bool, flag("as_json")]
Text = Annotated[Optional[str], flag("text")]  # noqa: UP045
Relation = Annotated[Optional[str], flag("relation")]  # noqa: UP045
Severity = Annotated[Optional[str], flag("severity")]  # noqa: UP045
Candidate = Annotated[Optional[str], flag("candidate")]  # noqa: UP045
Debug = Annotated[bool, flag("debug")]

RunFolders = Annotated[list[Path], typer.Argument(metavar="RUN...", help="Run folders.", show_default=False)]
Recordings = Annotated[
    list[str],
    typer.Argument(
        metavar="RUN...",
        help="Run folders, or tally files of runs; paths, or addresses such as s3://BUCKET/RUN.",
        show_default=False,
    ),
]
WatchedRun = Annotated[
    Path,
    typer.Argument(metavar="RUN", help="Run folder; one that is not there yet is waited for.", show_default=False),
]
OneRunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="Run folder.", show_default=False)]
Files = Annotated[list[Path], typer.Argument(metavar="FILE...", help="Books, or tally files.", show_default=False)]
Ids = Annotated[
    list[str], typer.Argument(metavar="ID...", help="Ids of invariants, or the first digits.", show_default=False)
]
Order = Annotated[
    Optional[list[str]],  # noqa: UP045
    typer.Argument(metavar="ORDER", help="What is asked, see below; status by default.", show_default=False),
]
BookA = Annotated[Path, typer.Argument(metavar="A", help="Book of invariants, the older one.", show_default=False)]
BookB = Annotated[Path, typer.Argument(metavar="B", help="Book of invariants, the newer one.", show_default=False)]
OneBook = Annotated[Path, typer.Argument(metavar="BOOK", help="Book of invariants.", show_default=False)]
Words = Annotated[
    Optional[list[str]],  # noqa: UP045
    typer.Argument(
        metavar="PROGRAM",
        help="SCRIPT [ARGS], -m MODULE [ARGS] or -- COMMAND [ARGS], as you would start it; all after it is its own.",
        show_default=False,
    ),
]
