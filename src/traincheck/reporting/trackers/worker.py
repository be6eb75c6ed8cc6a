"""The process of a tracker: reads what is told on standard input, and answers each line. See tracker.py."""

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
"""What the libraries would tell their makers of us, turned off; what they are asked to track is not concerned."""

LONGEST = 300
"""Characters of what a library says of its trouble."""

JSON_NAME = "report.json"


def main() -> None:
    """Serve the tracker that the command line names, `module:Class` and a place, until standard input ends."""
    answers = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)  # libraries print, and what they print is no answer
    os.environ.update(NO_TELEMETRY)
    target, target_place = sys.argv[1:]
    serve(target, target_place, sys.stdin.buffer, answers.write)


def serve(target: str, target_place: str, lines: Iterable[bytes], answer: Callable[[bytes], object]) -> None:
    """Hand each message to the tracker, and answer it. A run whose command was killed is closed without a report; one
    that could not be opened is not closed."""
    tracker: Any = None
    closed = False
    for line in lines:
        try:
            message = msgspec.json.decode(line, type=Message)
            if message.kind == OPEN:
                module, _, name = target.partition(":")
                opened = getattr(importlib.import_module(module), name)(target_place)
                where = opened.open(message.run)
                tracker = opened  # one that was not opened is not closed
            else:
                where = ""
                _forward(tracker, message)
                closed = closed or message.kind == CLOSE
            reply = Answer(where=plain(str(where)))
        except Exception as error:  # the library's, whatever it is
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
    return text if isinstance(error, TrainCheckError) else f"{type(error).__name__}: {text}"[:LONGEST]


if __name__ == "__main__":
    main()
