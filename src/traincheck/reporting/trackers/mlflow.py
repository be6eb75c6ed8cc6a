"""Log metrics, tags and artifacts to the MLflow run of MLFLOW_RUN_ID, or to a new run of TrainCheck."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from traincheck.reporting.markdown import markdown_of
from traincheck.reporting.phrases import headline
from traincheck.reporting.trackers.tracker import curves, in_words, last_numbers, name_of, needs
from traincheck.vocab.finding import Finding, Report
from traincheck.vocab.run_status import RunStatus

MAX_TAGS = 20
"""Findings that are logged as tags while the run goes on; the report has all of them."""

MAX_LENGTH = 500
"""Characters of a tag: the limit of the strictest store."""

FOLDER = "traincheck"
"""The folder of the artifacts."""


class MLflow:
    """Logs metrics by step, findings as tags, and the reports as artifacts.

    `experiment` is the name of the experiment. If it is empty, MLflow's own variables select it. They also select the
    store (MLFLOW_TRACKING_URI). Raises MissingExtra.
    """

    name = "mlflow"

    def __init__(self, experiment: str) -> None:
        needs(self.name, "mlflow")
        self._experiment_name = experiment
        self._shown = 0
        self._step = 0

    def open(self, run: Mapping[str, str]) -> str:
        from mlflow import MlflowClient

        self._client = MlflowClient()
        self._id = os.environ.get("MLFLOW_RUN_ID", "")
        self._own = not self._id
        if self._own:
            tags = {f"{FOLDER}.{name}": value[:MAX_LENGTH] for name, value in run.items() if value}
            created = self._client.create_run(self._experiment(), run_name=name_of(run), tags=tags)
            self._id = created.info.run_id
        run_record = self._client.get_run(self._id)
        return f"MLflow run {self._id} ({run_record.info.run_name}) of experiment {run_record.info.experiment_id}"

    def _experiment(self) -> str:
        """Return the id of the experiment; create the experiment if it does not exist."""
        name = self._experiment_name or os.environ.get("MLFLOW_EXPERIMENT_NAME", "")
        if not name:
            return os.environ.get("MLFLOW_EXPERIMENT_ID") or "0"
        existing = self._client.get_experiment_by_name(name)
        return str(existing.experiment_id if existing else self._client.create_experiment(name))

    def show(self, finding: Finding) -> None:
        self._shown += 1
        if self._shown <= MAX_TAGS:
            self._client.set_tag(self._id, f"{FOLDER}.finding.{self._shown}", in_words(finding)[:MAX_LENGTH])

    def measure(self, status: RunStatus) -> None:
        self._step = max(self._step, status.steps)
        self._log(curves(status))

    def close(self, report: Report | None, files: tuple[Path, ...]) -> None:
        if report is not None:
            self._step = max(self._step, report.counts.steps)
            self._log(last_numbers(report))
            self._client.set_tag(self._id, f"{FOLDER}.verdict", report.verdict)
            self._client.set_tag(self._id, f"{FOLDER}.headline", headline(report)[:MAX_LENGTH])
            self._client.log_text(self._id, markdown_of(report), f"{FOLDER}/report.md")
        for file in files:
            self._client.log_artifact(self._id, str(file), FOLDER)
        if self._own:  # the program ends its own run
            failed = report is not None and report.verdict == "errors"
            self._client.set_terminated(self._id, "FAILED" if failed else "FINISHED")

    def _log(self, numbers: Mapping[str, float]) -> None:
        from mlflow.entities import Metric

        now = int(1000 * time.time())
        metrics: list[Any] = [Metric(name, number, now, self._step) for name, number in numbers.items()]
        self._client.log_batch(self._id, metrics=metrics)
