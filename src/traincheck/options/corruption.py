"""Options of `traincheck sdc`, which looks for silent data corruption."""

from __future__ import annotations

from traincheck.options.row import Option

CORRUPTION = (
    Option(
        "workload",
        ("--workload",),
        "Training to execute: decoder-tiny, -small, -125m, -1b or -8b, with another type as in decoder-8b-bf16, or "
        "your own function, FILE.py:FUNCTION or MODULE:FUNCTION. (default: decoder-tiny, decoder-small for screen)",
        metavar="WORKLOAD",
    ),
    Option(
        "framework",
        ("--framework",),
        "Framework that executes the training: torch, or xla for JAX (built-in workloads only).",
        metavar="NAME",
        default="torch",
        choices=("torch", "xla"),
    ),
    Option("seed", ("--seed",), "Seed of the model, the data and all other random numbers.", "count", "N", default="0"),
    Option("device", ("--device",), "Device to compute on, such as cpu, cuda or cuda:1.", metavar="DEVICE"),
    Option("threads", ("--threads",), "CPU threads to use.", "number", "N", default=1),
    Option(
        "faults",
        ("--fault",),
        "Fault to inject, KIND@SITE:PATTERN,KEY=VALUE..., such as intermittent@forward:*.attention,chance=0.1 "
        "(docs/sdc.md lists all). Repeatable.",
        "texts",
        "FAULT",
        default=(),
    ),
    Option(
        "levels",
        ("--level",),
        "Level of the study: 1 (submodule), 2 (step) or 3 (period). Repeatable. (default: all)",
        "texts",
        "LEVEL",
        default=(),
    ),
    Option(
        "tensor_parallel",
        ("--tensor-parallel",),
        "Ranks of each host over which the model is split. Each rank is compared with its counterpart on the other "
        "host before they reduce.",
        "number",
        "N",
        default=1,
    ),
    Option(
        "seconds",
        ("--seconds",),
        "Seconds to screen each device for; at least two rounds.",
        "number",
        "N",
        default=120,
    ),
)
