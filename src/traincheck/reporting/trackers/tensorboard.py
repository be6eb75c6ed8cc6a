"""Log to TensorBoard event files with TensorBoard's own writer, without torch or TensorFlow."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from traincheck.files import may_write
from traincheck.reporting.markdown import escaped, markdown_of
from traincheck.reporting.phrases import in_lines
from traincheck.reporting.trackers.tracker import PREFIX, curves, in_words, last_numbers, needs
from traincheck.vocab.finding import Finding, Report
from traincheck.vocab.run_status import RunStatus

FOLDER = "tensorboard"
"""The default folder, inside the run folder."""


class TensorBoard:
    """Logs scalars by step, and findings and report as text, into `folder`, or into the run folder if that is empty.

    Raises MissingExtra, and OutputError for a folder that cannot be written.
    """

    name = "tensorboard"

    def __init__(self, folder: str) -> None:
        needs(self.name, "tensorboard")
        if folder:
            may_write(Path(folder) / "events")
        self._folder = folder
        self._step = 0

    def open(self, run: Mapping[str, str]) -> str:
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        folder = Path(self._folder) if self._folder else Path(run["folder"]) / FOLDER
        self._writer = EventFileWriter(str(folder), filename_suffix=".traincheck")
        return f"tensorboard --logdir {folder}"

    def show(self, finding: Finding) -> None:
        lines = "".join(f"\n* {escaped(line)}" for line in in_lines(finding))
        self._text("findings", f"**{escaped(in_words(finding))}**\n{lines}", finding.step)
        self._writer.flush()

    def measure(self, status: RunStatus) -> None:
        self._step = max(self._step, status.steps)
        self._scalars(curves(status))

    def close(self, report: Report | None, files: tuple[Path, ...]) -> None:
        if report is not None:
            self._step = max(self._step, report.counts.steps)
            self._scalars(last_numbers(report))
            self._text("report", markdown_of(report), self._step)
        self._writer.close()

    def _scalars(self, values: Mapping[str, float]) -> None:
        from tensorboard.compat.proto.summary_pb2 import Summary

        self._add(
            Summary(value=[Summary.Value(tag=tag, simple_value=value) for tag, value in values.items()]), self._step
        )
        self._writer.flush()

    def _text(self, tag: str, text: str, step: int) -> None:
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.compat.proto.tensor_pb2 import TensorProto
        from tensorboard.compat.proto.tensor_shape_pb2 import TensorShapeProto
        from tensorboard.compat.proto.types_pb2 import DT_STRING
        from tensorboard.plugins.text.metadata import create_summary_metadata

        shape = TensorShapeProto(dim=[TensorShapeProto.Dim(size=1)])
        tensor = TensorProto(dtype=DT_STRING, string_val=[text.encode("utf-8", "backslashreplace")], tensor_shape=shape)
        metadata = create_summary_metadata(display_name="", description="")
        self._add(Summary(value=[Summary.Value(tag=PREFIX + tag, metadata=metadata, tensor=tensor)]), step)

    def _add(self, summary: Any, step: int) -> None:
        from tensorboard.compat.proto.event_pb2 import Event

        self._writer.add_event(Event(wall_time=time.time(), step=step, summary=summary))
