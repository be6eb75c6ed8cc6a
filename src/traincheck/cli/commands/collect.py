"""`traincheck collect`: record a run in full, to learn from it or to check it afterwards."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

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

TrainCheck's options come before the program. The exit code is that of the program. Recording everything slows
training down; a few hundred steps are enough to learn from.
"""


@flags.shared_options("packages", "as_program", "runs", "record", "keep_recording", "verify_every", hidden=("budget",))
def command(
    target: flags.Words = None,
    run_folder: flags.RunFolder = None,
    *,
    initial_state: flags.InitialState = None,
    **options: Any,
) -> None:
    """Record a run of a program in full."""
    if options["budget"] is not None:
        raise BadOption(OPTIONS["budget"].flag, options["budget"], RECORDED_WHOLE)
    config = configs.load(options, os.environ, Path.cwd())
    raise typer.Exit(collect(Target.parse(target or ()), config, run_folder, initial_state))


def collect(target: Target, config: Config, run_folder: Path | None = None, initial_state: Path | None = None) -> int:
    """Run and record the program, and summarise the recording on stderr; the program's exit code.

    The program begins with the weights and random states of the run folder `initial_state`.
    """

    def import_pyarrow(folder: RunFolder) -> AbstractContextManager[object]:
        with suppress(Exception):  # `count_events` needs it after the program's end, and raises where it is missing
            import pyarrow  # noqa: F401
        return nullcontext()

    recording = program_run.record(
        target, config, run_folder, None, os.environ, import_pyarrow, initial_state=initial_state
    )
    program_run.report_end(recording.status)
    if recording.folder.event_files() or recording.folder.mark_files():
        for line in summary(recording.folder):
            remark(line)
    else:
        program_run.report_nothing_observed(recording.folder)
    return recording.status.code


def summary(folder: RunFolder) -> Iterator[str]:
    """The size and the gaps of a recording, in a few lines."""
    counts = [count_events(path) for path in folder.event_files()]
    notes = folder.notes()
    steps = max((count.steps for count in counts), default=0)
    dropped = sum(note.dropped for note in notes)
    windows = amount(sum(count.windows for count in counts), "window")
    events = amount(sum(count.events for count in counts), "event")
    removed = folder.removed()
    per_step = f" ({size(folder.size / steps)} a step)" if steps and not removed else ""
    processes = f" in {len(counts)} processes" if len(counts) > 1 else ""
    yield f"recorded {amount(steps, 'step')}{processes}: {windows}, {events}, {size(folder.size)}{per_step}"
    yield from removed
    if dropped:
        yield f"{amount(dropped, 'window')} could not be written in time and were dropped"
    for reason in dict.fromkeys(reason for note in notes for reason in note.not_observed):
        yield f"not observed: {reason}"
    from traincheck.trace.operation_files import read_marks

    marks = sum(1 for files in folder.mark_files().values() for file in files for _ in read_marks(file))
    if marks:
        yield f"recorded {amount(marks, 'mark')}"
    elif steps == 0:
        yield "no training step was seen: no optimizer stepped"
    yield f"run folder: {folder.path}"


class Count(NamedTuple):
    """The contents of an event file: the last training step, windows, and calls and changes."""

    steps: int = 0
    windows: int = 0
    events: int = 0


def count_events(path: Path) -> Count:
    """Count a recording, up to the point where a killed process may have torn it.

    The process writes these counts itself, but a killed process leaves old ones or none.
    """
    import pyarrow as pa

    from traincheck.trace.segments import segments

    contents = Count()
    try:
        for segment in segments(path):
            with pa.OSFile(str(segment)) as file, pa.ipc.open_stream(file) as batches:
                for batch in batches:  # one batch per window, whose first row describes it
                    step = batch.column("step")[0].as_py()
                    events = contents.events + batch.num_rows - 1
                    contents = Count(max(contents.steps, step), contents.windows + 1, events)
    except (pa.ArrowException, OSError):
        return contents
    return contents
