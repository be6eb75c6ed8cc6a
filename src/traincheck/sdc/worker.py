"""Worker: a child process that does a job (`worker_processes.py`): records a run for the doctor, or is one side of a
study."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from traincheck.errors import TrainCheckError
from traincheck.sdc.determinism import undetermined
from traincheck.sdc.fingerprint_log import Entry, written
from traincheck.sdc.process_setup import prepare
from traincheck.sdc.recording import record, record_submodules
from traincheck.sdc.study.plan import read_plan
from traincheck.sdc.worker_processes import DONE, FAILED, MESSAGE_PREFIX, PROGRESS
from traincheck.sdc.workload.workload import blamed


def send(message: Mapping[str, Any]) -> None:
    """To the parent."""
    # In one piece, and past what the workload has made of sys.stdout.
    sys.stdout.flush()
    os.write(1, f"{MESSAGE_PREFIX}{json.dumps(message)}\n".encode())


def progress(phase: str, done: int, total: int) -> None:
    """Say how far it is."""
    send({PROGRESS: [phase, done, total]})


def record_run(job: Mapping[str, Any]) -> None:
    """Execute a workload and write what it computed, with the settings, beside each other."""
    total = job["steps"]
    prepared = prepare(*(job[name] for name in ("framework", "workload", "seed", "device", "threads")))
    with Path(job["entries"]).open("w", encoding="utf-8") as file, undetermined() as names:

        def emit(entry: Entry) -> None:
            file.writelines(written([entry]))

        def on_step(step: int) -> None:
            progress(job["title"], step, total)

        if prepared.workload is None:
            record_submodules(prepared.begin(), total, emit, on_step)
        else:
            record(prepared.workload, total, emit, on_step)
    Path(job["told"]).write_text(json.dumps({"settings": prepared.settings, "undetermined": names}), encoding="utf-8")


def study_side(job: Mapping[str, Any]) -> None:
    """Be one of the two workers of a study on this machine; the trusted one writes what was found."""
    from traincheck.sdc.study.worker_side import execute_side

    study = execute_side(read_plan(job["plan"]), job["rank"], progress, f"file://{job['store']}")
    if job["rank"] == 0:
        Path(job["found"]).write_text(json.dumps(study), encoding="utf-8")


TASKS: dict[str, Callable[[Mapping[str, Any]], None]] = {"record": record_run, "study": study_side}


def main(file: str) -> int:
    """Do the job that stands in a file; 0, or 1 when it failed."""
    job = json.loads(Path(file).read_text(encoding="utf-8"))
    try:
        with blamed(job.get("workload") or job["plan"]["workload"]):
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
