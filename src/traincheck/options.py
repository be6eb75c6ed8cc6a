"""The option table: every option of the commands, stated once.

From a row come the flag with its help, the name of an environment variable, the key in `[tool.traincheck]` of
pyproject.toml, and the line in the reference. An option without `shared` is one of a single command line (the folder
to write, say): it has neither variable nor key. The value of a `secret` one is never shown.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

Value: TypeAlias = str | bool | int | float | tuple[str, ...] | None
Kind: TypeAlias = Literal["text", "path", "texts", "paths", "switch", "number", "count", "share", "size"]

ENVIRONMENT = "TRAINCHECK_"

AUTO, FILES, EXCHANGE, OFF = "auto", "files", "exchange", "off"
"""How ranks are compared: as the run folders allow, by their files, by what they tell each other, or not at all."""

FOUND, ALL = "found", "all"
"""What of a checked run is recorded: the steps around what was found, the first and the last ones and a few others; or
each step that is watched."""

LOCAL, RAY = "local", "ray"
"""Who reads what is learned from: processes of this machine, or a Ray cluster."""

SHIPPED_PACKS, NO_PACKS = "shipped", "none"
"""In place of a folder: the packs that come with TrainCheck, or none."""

RECORDED_WHOLE = (
    "nothing here: what is learned from is recorded whole; it is a check (`traincheck run`) that can leave out steps"
)
"""Why a recording does not take the options about steps that are not watched, as the end of a message."""


@dataclass(frozen=True, slots=True)
class Option:
    """One option. A `kind` in the plural takes several values: the flag is repeated, the variable holds a list."""

    name: str
    flags: tuple[str, ...]
    help: str
    kind: Kind = "text"
    metavar: str = ""
    default: Value = None
    choices: tuple[str, ...] = ()
    shared: bool = False
    secret: bool = False

    @property
    def flag(self) -> str:
        """The long flag, by which messages name the option."""
        return next(flag for flag in self.flags if flag.startswith("--"))

    @property
    def variable(self) -> str:
        """The environment variable, empty for an option of one command line only."""
        return ENVIRONMENT + self.name.upper() if self.shared else ""

    @property
    def key(self) -> str:
        """The key in `[tool.traincheck]`, empty for an option of one command line only."""
        return self.name.replace("_", "-") if self.shared else ""

    @property
    def several(self) -> bool:
        return self.kind in ("texts", "paths")

    @property
    def is_path(self) -> bool:
        return self.kind in ("path", "paths")

    @property
    def expected(self) -> str:
        """What a value should be, for a message."""
        if self.choices:
            return "one of " + ", ".join(self.choices)
        words = {
            "switch": "true or false",
            "texts": "a list of names",
            "paths": "a list of paths",
            "path": "a path",
            "number": "a whole number, 1 or more",
            "count": "a whole number, 0 or more",
            "size": "a size of 1 MB or more, such as 500 MB, 10GB or 2 GiB, or all for no limit",
            "share": "a share in percent, from 0% to less than 100%, such as 1% or 0.5%",
        }
        return words.get(self.kind, "a text")


_TABLE = (
    Option(
        "books",
        ("--book", "-b"),
        "Book of invariants to check against; may be given several times.",
        "paths",
        "BOOK",
        default=(),
        shared=True,
    ),
    Option(
        "packs",
        ("--packs",),
        "Folder or address of packs to check against as well: books for programs that were never seen. shipped are "
        "those that come with TrainCheck, which are used where no book is named; none turns them off. May be given "
        "several times.",
        "texts",
        "PACKS",
        default=(),
        shared=True,
    ),
    Option(
        "packages",
        ("--package",),
        "Further package whose functions are observed, besides torch and your own project; may be given several times.",
        "texts",
        "PACKAGE",
        default=(),
        shared=True,
    ),
    Option(
        "on_violation",
        ("--on-violation",),
        "What a finding of severity error does to the training: warn tells, stop ends it before the next step, "
        "callback calls --callback and what the program registered with traincheck.on_violation.",
        metavar="warn|stop|callback",
        default="warn",
        choices=("warn", "stop", "callback"),
        shared=True,
    ),
    Option(
        "callback",
        ("--callback",),
        "Function that is called with each finding of severity error, before the next step; with --on-violation "
        "callback.",
        metavar="MODULE:FUNCTION",
        shared=True,
    ),
    Option(
        "look_closer",
        ("--look-closer",),
        "Steps that are recorded in full after the first violation of a rule; 0 for none.",
        "count",
        "STEPS",
        default="5",
        shared=True,
    ),
    Option(
        "snapshot",
        ("--snapshot",),
        "Write parameters, gradients, buffers and optimizer state into the run folder at the first finding of severity "
        "error.",
        "switch",
        default=False,
        shared=True,
    ),
    Option(
        "record",
        ("--record",),
        "Which steps of a checked run are recorded: found, those around findings, the first, the last and now and then "
        "two; all, each that is watched.",
        metavar="found|all",
        default=FOUND,
        choices=(FOUND, ALL),
        shared=True,
    ),
    Option(
        "keep_recording",
        ("--keep-recording",),
        "Bytes that each process may keep of its recording; beyond that steps in the middle of the run are removed, "
        "those in which something was found last. all is no limit.",
        "size",
        "SIZE",
        default="1 GB",
        shared=True,
    ),
    Option(
        "compare_ranks",
        ("--compare-ranks",),
        "How the ranks of a job are compared while they train: files, by what they write into one run folder; "
        "exchange, by what they tell the first rank over the network; auto, by files where all ranks have the same run "
        "folder; off, not at all.",
        metavar="auto|files|exchange|off",
        default=AUTO,
        choices=(AUTO, FILES, EXCHANGE, OFF),
        shared=True,
    ),
    Option(
        "fail_on",
        ("--fail-on",),
        "Findings of this severity and above give exit code 3.",
        metavar="error|notice|never",
        default="error",
        choices=("error", "notice", "never"),
        shared=True,
    ),
    Option(
        "sample_every",
        ("--sample-every",),
        "Watch one of so many training steps, in bursts of two; all of them with 1.",
        "number",
        "K",
        default=1,
        shared=True,
    ),
    Option(
        "warm_up",
        ("--warm-up",),
        "Training steps at the start that are watched in any case.",
        "count",
        "N",
        default=20,
        shared=True,
    ),
    Option(
        "budget",
        ("--budget",),
        "Share of the time of a step that watching may take, such as 1% or 0.5%; it decides how many are watched.",
        "share",
        "P%",
        default=0.0,
        shared=True,
    ),
    Option(
        "runs",
        ("--runs",),
        "Folder in which run folders are made that -o does not name.",
        "path",
        "FOLDER",
        default="traincheck-runs",
        shared=True,
    ),
    Option(
        "webhook",
        ("--webhook",),
        "Address to post alerts to, in the form that Slack takes. It is a secret: better given in the variable.",
        metavar="URL",
        shared=True,
        secret=True,
    ),
    Option(
        "alert_command",
        ("--alert-command",),
        "Command to run for each alert, which it finds as JSON on its standard input. No shell is involved.",
        metavar="COMMAND",
        shared=True,
    ),
    Option(
        "alert_on",
        ("--alert-on",),
        "Findings of this severity and above give an alert; so do ranks that fall silent, and the end of the run.",
        metavar="error|notice",
        default="error",
        choices=("error", "notice"),
        shared=True,
    ),
    Option(
        "silent_after",
        ("--silent-after",),
        "Seconds without a sign of life after which a rank is told to be silent; less than 45 may be a slow disk.",
        metavar="SECONDS",
        default="60",
        shared=True,
    ),
    Option(
        "metrics_port",
        ("--metrics-port",),
        "Serve metrics for Prometheus on this port; 0 takes one that is free.",
        metavar="PORT",
        shared=True,
    ),
    Option(
        "metrics_host",
        ("--metrics-host",),
        "Address at which metrics are served; one that other hosts can reach needs a token.",
        metavar="HOST",
        default="127.0.0.1",
        shared=True,
    ),
    Option(
        "metrics_token",
        ("--metrics-token",),
        "Who asks for metrics has to show this as a bearer token. It is a secret: better given in the variable.",
        metavar="TOKEN",
        shared=True,
        secret=True,
    ),
    Option(
        "otlp",
        ("--otlp",),
        "Collector of OpenTelemetry to send metrics to over HTTP, http://localhost:4318, say.",
        metavar="ENDPOINT",
        shared=True,
    ),
    Option("run_folder", ("--out", "-o"), "Run folder to write. (default: RUNS/NAME-DATE-TIME)", "path", "RUN"),
    Option(
        "book_file",
        ("--out", "-o"),
        "Book to write; an older book of that name is replaced, and its mutes are kept.",
        "path",
        "BOOK",
    ),
    Option(
        "library",
        ("--library",),
        "Folder of the library; by default .traincheck in the project that the working directory belongs to.",
        "path",
        "FOLDER",
    ),
    Option(
        "reason_accepted", ("--reason",), "Why the run is known to be good; it is kept in the library.", metavar="TEXT"
    ),
    Option("anyway", ("--anyway",), "Accept the run although something was found in it, or it failed.", "switch"),
    Option("packs_folder", ("--out", "-o"), "Folder to write; older packs in it are replaced.", "path", "PACKS"),
    Option(
        "themes",
        ("--themes",),
        "TOML file that says which programs belong to which theme, each a pack of its own; without it there is one.",
        "path",
        "FILE",
    ),
    Option("release", ("--release",), "Version of the packs.", metavar="VERSION", default="1"),
    Option("merged_file", ("--out", "-o"), "Book or tally file to write.", "path", "OUT"),
    Option(
        "tally_file",
        ("--tally",),
        "Tally file to write: what was counted of these runs, to learn from later without the recordings.",
        "path",
        "FILE",
    ),
    Option(
        "jobs",
        ("--jobs", "-j"),
        "Recorded processes to read at a time; by default as many as there are cores and as the recordings are worth.",
        "number",
        "N",
    ),
    Option(
        "engine",
        ("--engine",),
        "Who reads: local processes, or a Ray cluster (pip install 'traincheck[ray]').",
        "text",
        "local|ray",
        LOCAL,
        (LOCAL, RAY),
    ),
    Option(
        "address",
        ("--address",),
        "Address of the Ray cluster; by default RAY_ADDRESS, or else a Ray of --jobs processes on this machine.",
        "text",
        "ADDRESS",
    ),
    Option(
        "journal",
        ("--journal",),
        "Where to write why each candidate was kept or dropped. (default: BOOK.journal.jsonl)",
        "path",
        "FILE",
    ),
    Option("journal_read", ("--journal",), "Journal to look in, instead of run folders.", "path", "FILE"),
    Option("reason", ("--reason",), "Why; it is kept in the book for whoever reads it next.", metavar="TEXT"),
    Option("reason_asked", ("--reason",), "Why; with mute and stop. It is told in the report.", metavar="TEXT"),
    Option(
        "wait",
        ("--wait",),
        "Seconds to wait for the processes of the run to answer; 0 to wait for none.",
        "count",
        "SECONDS",
        default="10",
    ),
    Option("unmute", ("--unmute",), "Check these invariants again.", "switch", default=False),
    Option("fail_on_change", ("--fail-on-change",), "Give exit code 3 when anything differs.", "switch", default=False),
    Option("json_file", ("--json",), "Also write the report as JSON.", "path", "FILE"),
    Option("html_file", ("--html",), "Also write the report as one self-contained HTML page.", "path", "FILE"),
    Option(
        "json_lines", ("--json",), "Print JSON: one object for each finding and each status.", "switch", default=False
    ),
    Option("as_json", ("--json",), "Print JSON.", "switch", default=False),
    Option("text", ("--filter",), "Only invariants in which every word of TEXT occurs.", metavar="TEXT"),
    Option("relation", ("--relation",), "Only invariants of this relation.", metavar="RELATION"),
    Option(
        "severity",
        ("--severity",),
        "Only invariants of this severity.",
        metavar="error|notice",
        choices=("error", "notice"),
    ),
    Option("candidate", ("--candidate",), "Follow the candidates that TEXT names in its own words.", metavar="TEXT"),
    Option("debug", ("--debug",), "Show the traceback of an error in TrainCheck itself.", "switch", default=False),
)

OPTIONS: Mapping[str, Option] = {option.name: option for option in _TABLE}
