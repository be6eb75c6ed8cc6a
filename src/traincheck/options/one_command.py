"""Options of one command line only: the folder to write, say."""

from __future__ import annotations

from traincheck.options.row import Option
from traincheck.vocab.option_values import LOCAL, RAY

ONE_COMMAND = (
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
    Option(
        "demo_folder",
        ("--out", "-o"),
        "Folder for programs, recordings and reports; it must be empty. By default a new one for temporary files.",
        "path",
        "FOLDER",
    ),
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
        "page_file",
        ("--output", "-o", "--html"),
        "Also write one self-contained HTML page, on which several runs stand side by side.",
        "path",
        "FILE",
    ),
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
