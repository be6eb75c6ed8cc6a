"""Run one job in a child process: record a run for the doctor, or execute one side of a study."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from traincheck.errors import TrainCheckError
from traincheck.sdc.determinism import nondeterministic_operations
from traincheck.sdc.fingerprint_log import Entry, written
from traincheck.sdc.process_setup import prepare
from traincheck.sdc.recording import record, record_submodules
from traincheck.sdc.study.plan import read_plan
from traincheck.sdc.worker_processes import DONE, FAILED, MESSAGE_PREFIX, PROGRESS
from traincheck.sdc.workload.workload import workload_errors


def send(message: Mapping[str, Any]) -> None:
    """Send a message to the parent process."""
    # In one piece, and past what the workload has made of sys.stdout.
    sys.stdout.flush()
    os.write(1, f"{MESSAGE_PREFIX}{json.dumps(message)}\n".encode())


def progress(phase: str, done: int, total: int) -> None:
    """Report the progress of the job to the parent process."""
    send({PROGRESS: [phase, done, total]})


def record_run(job: Mapping[str, Any]) -> None:
    """Execute a workload; write its results to one file and its settings to another."""
    total = job["steps"]
    prepared = prepare(*(job[name] for name in ("framework", "workload", "seed", "device", "threads")))
    with Path(job["entries"]).open("w", encoding="utf-8") as file, nondeterministic_operations() as names:

        def emit(entry: Entry) -> None:
            file.writelines(written([entry]))

        def on_step(step: int) -> None:
            progress(job["title"], step, total)

        if prepared.workload is None:
            record_submodules(prepared.begin(), total, emit, on_step)
        else:
            record(prepared.workload, total, emit, on_step)
    Path(job["settings_file"]).write_text(
        json.dumps({"settings": prepared.settings, "undetermined": names}), encoding="utf-8"
    )


def study_side(job: Mapping[str, Any]) -> None:
    """Execute one side of a study on this machine; the trusted side writes the results."""
    from traincheck.sdc.study.worker_side import execute_side

    study = execute_side(read_plan(job["plan"]), job["rank"], progress, f"file://{job['store']}")
    if job["rank"] == 0:
        Path(job["study_file"]).write_text(json.dumps(study), encoding="utf-8")


TASKS: dict[str, Callable[[Mapping[str, Any]], None]] = {"record": record_run, "study": study_side}


def main(file: str) -> int:
    """Run the job described in a file; return 0, or 1 if it failed."""
    job = json.loads(Path(file).read_text(encoding="utf-8"))
    try:
        with workload_errors(job.get("workload") or job["plan"]["workload"]):
            TASKS[job["task"]](job)
    except TrainCheckError as error:
        send({FAILED: [type(error).__name__, str(error)]})
        return 1
    send({DONE: True})
    return 0


if __name__ == "__main__":
    # At once: threads that gloo and others leave behind may abort an interpreter that ends in order.
    code = main(sys.argv[1])
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
