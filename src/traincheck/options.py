"""The option table: every option of the commands, stated once.

From a row come the flag with its help, the name of an environment variable, the key in `[tool.traincheck]` of
pyproject.toml, and the line in the reference. An option without `shared` is one of a single command line (the folder
to write, say): it has neither variable nor key.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

Value: TypeAlias = str | bool | tuple[str, ...] | None
Kind: TypeAlias = Literal["text", "path", "texts", "paths", "switch", "number"]

ENVIRONMENT = "TRAINCHECK_"

AUTO, FILES, EXCHANGE, OFF = "auto", "files", "exchange", "off"
"""How ranks are compared: as the run folders allow, by their files, by what they tell each other, or not at all."""


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
        "What a finding of severity error does to the training: warn tells, stop ends it before the next step.",
        metavar="warn|stop",
        default="warn",
        choices=("warn", "stop"),
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
        "runs",
        ("--runs",),
        "Folder in which run folders are made that -o does not name.",
        "path",
        "FOLDER",
        default="traincheck-runs",
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
        "journal",
        ("--journal",),
        "Where to write why each candidate was kept or dropped. (default: BOOK.journal.jsonl)",
        "path",
        "FILE",
    ),
    Option("journal_read", ("--journal",), "Journal to look in, instead of run folders.", "path", "FILE"),
    Option("reason", ("--reason",), "Why; it is kept in the book for whoever reads it next.", metavar="TEXT"),
    Option("unmute", ("--unmute",), "Check these invariants again.", "switch", default=False),
    Option("fail_on_change", ("--fail-on-change",), "Give exit code 3 when anything differs.", "switch", default=False),
    Option("json_file", ("--json",), "Also write the report as JSON.", "path", "FILE"),
    Option("html_file", ("--html",), "Also write the report as one self-contained HTML page.", "path", "FILE"),
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
