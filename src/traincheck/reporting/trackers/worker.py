"""Run a tracker in its own process: read messages from standard input, and answer each line. See tracker.py."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from traincheck.errors import TrainCheckError
from traincheck.reporting.json_report import read_json
from traincheck.reporting.trackers.messages import CLOSE, MEASURE, OPEN, SHOW, Answer, Message
from traincheck.terminal_text import plain

NO_TELEMETRY = {"MLFLOW_DISABLE_TELEMETRY": "true", "WANDB_ERROR_REPORTING": "false", "DO_NOT_TRACK": "true"}
"""Turn off the libraries' telemetry about their use. The tracked data is not affected."""

MAX_LENGTH = 300
"""Characters of an error message of a library."""

JSON_NAME = "report.json"


def main() -> None:
    """Serve the tracker of the command line (`module:Class` and its target) until standard input ends."""
    answers = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)  # output of the libraries must not mix with answers
    os.environ.update(NO_TELEMETRY)
    target, target_place = sys.argv[1:]
    serve(target, target_place, sys.stdin.buffer, answers.write)


def serve(target: str, target_place: str, lines: Iterable[bytes], answer: Callable[[bytes], object]) -> None:
    """Pass each message to the tracker, and answer it.

    If the command was killed, the run is closed without a report. A run that failed to open is not closed.
    """
    tracker: Any = None
    closed = False
    for line in lines:
        try:
            message = msgspec.json.decode(line, type=Message)
            if message.kind == OPEN:
                module, _, name = target.partition(":")
                opened = getattr(importlib.import_module(module), name)(target_place)
                where = opened.open(message.run)
                tracker = opened  # only after `open`, so that a failed run is not closed
            else:
                where = ""
                _forward(tracker, message)
                closed = closed or message.kind == CLOSE
            reply = Answer(where=plain(str(where)))
        except Exception as error:  # any error of the library
            reply = Answer(trouble=_in_words(error))
        answer(msgspec.json.encode(reply) + b"\n")
    if tracker is not None and not closed:
        with suppress(Exception):
            tracker.close(None, ())


def _forward(tracker: Any, message: Message) -> None:
    if message.kind == SHOW:
        tracker.show(message.finding)
    elif message.kind == MEASURE:
        tracker.measure(message.status)
    elif message.kind == CLOSE:
        files = tuple(Path(file) for file in message.files if Path(file).is_file())
        report = next((read_json(file) for file in files if file.name == JSON_NAME), None)
        tracker.close(report, files)


def _in_words(error: Exception) -> str:
    text = plain(" ".join(str(error).split()))
    return text if isinstance(error, TrainCheckError) else f"{type(error).__name__}: {text}"[:MAX_LENGTH]


if __name__ == "__main__":
    main()
