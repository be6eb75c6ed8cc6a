"""Options without variable and key: they belong to one command line, such as the folder to write."""

from __future__ import annotations

from traincheck.options.row import Option

ONE_COMMAND = (
    Option(
        "out",
        ("--out", "-o"),
        "Folder or file to write: a run folder, a book, packs, a page or a study, depending on the command.",
        "path",
        "OUT",
    ),
    Option(
        "against",
        ("--against",),
        "Earlier results to compare with: a run, or the fingerprints of a clean device, depending on the command.",
        "path",
        "RUN_A|FILE",
    ),
    Option(
        "from_earlier",
        ("--from",),
        "Earlier results to begin from: the initial state of a run, or a finished study, depending on the command.",
        "path",
        "RUN_A|FILE",
    ),
    Option(
        "library",
        ("--library",),
        "Folder of the library. (default: .traincheck in the project around the working directory)",
        "path",
        "FOLDER",
    ),
    Option("reason", ("--reason",), "Reason, which TrainCheck keeps and reports.", metavar="TEXT"),
    Option(
        "only",
        ("--only",),
        "Accept the run, but of its findings only those with this diagnosis. Repeat the option for several.",
        metavar="DIAGNOSIS",
    ),
    Option(
        "themes",
        ("--themes",),
        "TOML file that assigns programs to themes. Each theme becomes a pack; without the file there is one pack.",
        "path",
        "FILE",
    ),
    Option("release", ("--release",), "Version of the packs.", metavar="VERSION", default="1"),
    Option(
        "tally_file",
        ("--tally",),
        "Tally file to write: the counts of these runs, to learn from later without their recordings.",
        "path",
        "FILE",
    ),
    Option(
        "jobs",
        ("--jobs", "-j"),
        "Recordings to read in parallel. (default: depends on cores and on the size of the recordings)",
        "number",
        "N",
    ),
    Option(
        "ray",
        ("--ray",),
        "Read on a Ray cluster (pip install 'traincheck[ray]'). auto uses RAY_ADDRESS, or starts a Ray of --jobs "
        "processes on this machine.",
        "text",
        "ADDRESS|auto",
    ),
    Option(
        "journal",
        ("--journal",),
        "Journal of why each candidate was kept or dropped. (default: BOOK.journal.jsonl)",
        "path",
        "FILE",
    ),
    Option(
        "wait",
        ("--wait",),
        "Seconds to wait for the answers of the run's processes; 0 does not wait.",
        "count",
        "SECONDS",
        default="10",
    ),
    Option(
        "steps",
        ("--steps",),
        "Training steps to execute. (default: 20 for verify, 3 for sdc, 10 for each level of a study)",
        "number",
        "N",
    ),
    Option("unmute", ("--unmute",), "Check these rules again.", "switch", default=False),
    Option(
        "fail_on_change",
        ("--fail-on-change",),
        "Exit with code 3 if the books differ.",
        "switch",
        default=False,
    ),
    Option("json", ("--json",), "Print JSON on standard output.", "switch", default=False),
    Option(
        "filter",
        ("--filter",),
        "Only rules that contain every word of TEXT, in the rule, its relation or its severity.",
        metavar="TEXT",
    ),
    Option(
        "map",
        ("--map",),
        "Match names of modules and parameters of two runs by hand. * stands for any text, and commas join parts. "
        "Repeatable.",
        metavar="OLD=NEW",
    ),
    Option("debug", ("--debug",), "Show the traceback of an error in TrainCheck itself.", "switch", default=False),
)
