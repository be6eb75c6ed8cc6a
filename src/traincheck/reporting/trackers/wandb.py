"""Log to a separate Weights & Biases run, or to the program's own run in shared mode.

Note [Separate or shared wandb run]
The program may have a wandb run in its own process. Two processes that write to one run overwrite each other's history,
except in wandb's shared mode. TrainCheck therefore joins the run of WANDB_RUN_ID only with WANDB_MODE=shared. Otherwise
it creates a separate run in the group of that id.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from traincheck.reporting.phrases import headline, plain
from traincheck.reporting.trackers.tracker import PREFIX, curves, in_words, last_numbers, name_of, needs
from traincheck.vocab.finding import Finding, Report
from traincheck.vocab.run_status import RunStatus

GROUP = "traincheck"

MAX_FINDINGS = 1_000
"""Findings in the table."""


class WeightsAndBiases:
    """Logs curves by step, a table of the findings, and the reports as an artifact.

    `project` is `PROJECT` or `ENTITY/PROJECT`. If it is empty, wandb's own settings select the project. They also
    decide everything else (WANDB_MODE and others). Raises MissingExtra.
    """

    name = "wandb"

    def __init__(self, project: str) -> None:
        needs(self.name, "wandb")
        if project.count("/") > 1:
            raise ValueError("wandb=PROJECT or wandb=ENTITY/PROJECT")
        self._project = project
        self._findings: list[list[Any]] = []
        self._step = 0

    def open(self, run: Mapping[str, str]) -> str:
        import wandb

        entity, _, project = self._project.rpartition("/")
        program_run = os.environ.pop("WANDB_RUN_ID", "")  # must not select TrainCheck's own run
        shared = bool(program_run) and os.environ.get("WANDB_MODE") == "shared"
        # Upload no data about the machine, the code or the console output.
        settings: dict[str, Any] = {"silent": True, "console": "off", "disable_git": True, "disable_code": True}
        settings |= {"save_code": False, "x_disable_stats": True, "x_disable_meta": True}
        if shared:
            settings |= {"x_primary": False, "x_label": "traincheck", "x_update_finish_state": False}
            run_options: dict[str, Any] = {"id": program_run}
        else:
            group = os.environ.get("WANDB_RUN_GROUP") or program_run or GROUP
            run_options = {"name": name_of(run), "group": group, "job_type": "traincheck"}
            run_options["config"] = {"traincheck": dict(run), **({"training_run": program_run} if program_run else {})}
        self._run = wandb.init(
            entity=entity or None,
            project=project or None,
            dir=run["folder"],  # in the program's folder, `latest-run` would point to TrainCheck's run
            settings=wandb.Settings(**settings),
            **run_options,
        )
        self._run.define_metric(f"{PREFIX}step", hidden=True)
        self._run.define_metric(f"{PREFIX}*", step_metric=f"{PREFIX}step")
        if self._run.settings.mode == "disabled":
            return "wandb is disabled, so nothing is logged"
        return str(self._run.url or f"wandb sync {self._run.settings.sync_dir}")

    def show(self, finding: Finding) -> None:
        self._findings.append(_row(finding))
        self._run.summary[f"{PREFIX}last_finding"] = in_words(finding)

    def measure(self, status: RunStatus) -> None:
        self._step = max(self._step, status.steps)
        self._run.log({**curves(status), f"{PREFIX}step": self._step})

    def close(self, report: Report | None, files: tuple[Path, ...]) -> None:
        import wandb

        if report is not None:
            self._step = max(self._step, report.counts.steps)
            self._findings = [_row(finding) for finding in report.findings[:MAX_FINDINGS]]
            self._run.summary.update({f"{PREFIX}verdict": report.verdict, f"{PREFIX}headline": headline(report)})
            self._run.summary.update(last_numbers(report))
        table = wandb.Table(columns=["severity", "step", "finding", "where", "observed"], data=self._findings)
        self._run.log({f"{PREFIX}findings": table, f"{PREFIX}step": self._step})
        artifact = wandb.Artifact(f"traincheck-{self._run.id}", type="traincheck-report")
        for file in files:
            artifact.add_file(str(file))
        if files:
            self._run.log_artifact(artifact)
        self._run.finish()


def _row(finding: Finding) -> list[Any]:
    where = plain(str(finding.site)) if finding.site else ""
    return [plain(finding.severity), finding.step, plain(finding.title), where, plain(finding.observed)]
