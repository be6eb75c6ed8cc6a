"""`traincheck collect`: record a run in full, to learn from it or to check it afterwards."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import typer

from traincheck import config as configs
from traincheck.cli import flags, program_run
from traincheck.cli.console import amount, remark, size
from traincheck.config import Config
from traincheck.errors import BadOption
from traincheck.options import OPTIONS, RECORDED_WHOLE
from traincheck.runtime.launching.command_target import Target

if TYPE_CHECKING:
    from traincheck.trace.folder import RunFolder

EPILOG = """\b
Examples:
  traincheck collect train.py --lr 1e-3
  traincheck collect -o runs/cnn --keep-recording 10GB train.py
  traincheck collect -o runs/gpt --package mylib -m package.train --epochs 1
  traincheck collect -o runs/ddp -- torchrun --nproc-per-node 2 train.py

Options of TrainCheck come before the program; everything after it is the program's own. The exit code is the
program's own, too. Recording everything slows training down; a few hundred steps are enough to learn from.
"""


def command(
    target: flags.Words = None,
    run_folder: flags.RunFolder = None,
    packages: flags.Packages = None,
    as_program: flags.AsProgram = None,
    runs: flags.Runs = None,
    keep_recording: flags.KeepRecording = None,
    sample_every: flags.NoSampleEvery = None,
    warm_up: flags.NoWarmUp = None,
    budget: flags.NoBudget = None,
    replay_every: flags.NoReplayEvery = None,
) -> None:
    """Record a run of a program in full."""
    of_runs = {"sample_every": sample_every, "warm_up": warm_up, "budget": budget, "replay_every": replay_every}
    for name, value in of_runs.items():
        if value is not None:
            raise BadOption(OPTIONS[name].flag, value, RECORDED_WHOLE)
    said = {
        "packages": tuple(packages or ()),
        "as_program": as_program,
        "runs": str(runs) if runs else None,
        "keep_recording": keep_recording,
    }
    config = configs.load(said, os.environ, Path.cwd())
    raise typer.Exit(collect(Target.parse(target or ()), config, run_folder))


def collect(target: Target, config: Config, run_folder: Path | None = None) -> int:
    """Run it, recorded, and sum up the recording on stderr; the program's exit code."""

    def beside(folder: RunFolder) -> AbstractContextManager[object]:
        with suppress(Exception):  # `count` needs it when the program has ended, and says so where it is missing
            import pyarrow  # noqa: F401
        return nullcontext()

    done = program_run.record(target, config, run_folder, None, os.environ, beside)
    program_run.tell_end(done.status)
    if done.folder.event_files():
        for line in summary(done.folder):
            remark(line)
    else:
        program_run.tell_nothing(done.folder)
    return done.status.code


def summary(folder: RunFolder) -> Iterator[str]:
    """What was recorded and what could not be, in a few lines."""
    counts = [count(path) for path in folder.event_files()]
    notes = folder.notes()
    steps, dropped = max(one.steps for one in counts), sum(note.dropped for note in notes)
    windows = amount(sum(one.windows for one in counts), "window")
    events = amount(sum(one.events for one in counts), "event")
    removed = folder.removed()
    per_step = f" ({size(folder.size / steps)} a step)" if steps and not removed else ""
    processes = f" in {len(counts)} processes" if len(counts) > 1 else ""
    yield f"recorded {amount(steps, 'step')}{processes}: {windows}, {events}, {size(folder.size)}{per_step}"
    yield from removed
    if dropped:
        yield f"{amount(dropped, 'window')} could not be written in time and were left out"
    for reason in dict.fromkeys(reason for note in notes for reason in note.not_observed):
        yield f"not observed: {reason}"
    if steps == 0:
        yield "no training step was seen: no optimizer took one"
    yield f"run folder: {folder.path}"


class Count(NamedTuple):
    """What an event file holds: the last training step, windows, and calls and changes."""

    steps: int = 0
    windows: int = 0
    events: int = 0


def count(path: Path) -> Count:
    """The contents of a recording, up to where a killed process may have torn it.

    The process's own note says this too, but that of a killed process is old or missing.
    """
    import pyarrow as pa

    from traincheck.trace.segments import segments

    found = Count()
    try:
        for segment in segments(path):
            with pa.OSFile(str(segment)) as file, pa.ipc.open_stream(file) as batches:
                for batch in batches:  # one to a window, whose own row is the first
                    step = batch.column("step")[0].as_py()
                    found = Count(max(found.steps, step), found.windows + 1, found.events + batch.num_rows - 1)
    except (pa.ArrowException, OSError):
        return found
    return found
