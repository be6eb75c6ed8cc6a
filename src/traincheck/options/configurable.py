"""Options that may be given as a flag, as a variable and as a key of pyproject.toml."""

from __future__ import annotations

from traincheck.options.row import Option
from traincheck.vocab.option_values import ALL, AUTO, EXCHANGE, FILES, FOUND, OFF

CONFIGURABLE = (
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
        "as_program",
        ("--as",),
        "Name of the program, for a script that was renamed or rewritten: rules that were learned from a program of "
        "that name are checked. By default TrainCheck recognises a program by its source text.",
        metavar="NAME",
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
        "reports",
        ("--report",),
        "Also write the report in this format: json, html, junit, sarif, github, markdown, or one that a package adds. "
        "FILE is in the working directory unless a path is given, and - is standard output; by default it is "
        "traincheck.json, traincheck-junit.xml and the like. github needs no file. May be given several times.",
        "texts",
        "FORMAT[=FILE]",
        default=(),
        shared=True,
    ),
    Option(
        "trackers",
        ("--track",),
        "Show the run in a tracker while it goes on: tensorboard[=FOLDER], wandb[=PROJECT], mlflow[=EXPERIMENT], or "
        "one that a package adds. May be given several times.",
        "texts",
        "TRACKER[=PLACE]",
        default=(),
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
        "replay_every",
        ("--replay-every",),
        "Execute one of so many training steps again, from the same state, and compare the bits: what differs is "
        "hardware that computes wrongly. 0 for none.",
        "count",
        "K",
        default="0",
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
)
