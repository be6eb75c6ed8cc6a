"""Options of the commands that look for silent data corruption."""

from __future__ import annotations

from traincheck.options.row import Option

CORRUPTION = (
    Option(
        "workload",
        ("--workload",),
        "Training to execute: decoder-tiny, -small, -125m, -1b or -8b, in another type as decoder-8b-bf16, or a "
        "function of your own, FILE.py:FUNCTION or MODULE:FUNCTION. By default decoder-tiny, for screen decoder-small.",
        metavar="WORKLOAD",
    ),
    Option(
        "framework",
        ("--framework",),
        "What executes the training: torch, or xla for JAX, whose programs XLA compiles (built-in workloads only).",
        metavar="NAME",
        default="torch",
        choices=("torch", "xla"),
    ),
    Option(
        "steps", ("--steps",), "Training steps to execute; by default 3, for each level of a study 10.", "number", "N"
    ),
    Option("seed", ("--seed",), "Seed of model, data and whatever else is drawn.", "count", "N", default="0"),
    Option("device", ("--device",), "Device to compute on, such as cpu, cuda or cuda:1.", metavar="DEVICE"),
    Option("threads", ("--threads",), "Threads that may be used on the CPU.", "number", "N", default=1),
    Option(
        "faults",
        ("--fault",),
        "Fault to put in, KIND@SITE:PATTERN,KEY=VALUE..., such as bitflip@forward:*.attention,bit=exponent,chance=0.1 "
        "(docs/sdc.md tells all); may be given several times.",
        "texts",
        "FAULT",
        default=(),
    ),
    Option(
        "levels",
        ("--level",),
        "Level of the study: 1 (submodule), 2 (step), 3 (period); all of them by default. May be given several times.",
        "texts",
        "LEVEL",
        default=(),
    ),
    Option(
        "tensor_parallel",
        ("--tensor-parallel",),
        "Ranks of each host of a study, over which the model is split; each is compared with that of the other host, "
        "before they reduce.",
        "number",
        "N",
        default=1,
    ),
    Option("study_file", ("--out", "-o"), "File to write what was found to, as JSON.", "path", "FILE"),
    Option(
        "study_page", ("--html",), "File to write a page with tables and plots to, which loads nothing.", "path", "FILE"
    ),
    Option(
        "from_study",
        ("--from",),
        "File of an earlier study, as -o wrote it: nothing is executed, what it found is shown again.",
        "path",
        "FILE",
    ),
    Option(
        "seconds",
        ("--seconds",),
        "Seconds to screen each device for; at least two rounds are made.",
        "number",
        "N",
        default=120,
    ),
    Option(
        "save",
        ("--save",),
        "File to write the fingerprints of a clean device to, to judge others by.",
        "path",
        "FILE",
    ),
    Option(
        "against",
        ("--against",),
        "File of known fingerprints, as --save wrote it on a device of the same kind.",
        "path",
        "FILE",
    ),
)
