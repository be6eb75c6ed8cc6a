"""Weights & Biases: a run beside that of the program, or the program's own where that is shared.

Note [Whose run it is]
The program may have a run of its own, in its own process. Two processes that write into one run overwrite each other's
history, unless both do so in the shared mode of wandb. So the run that WANDB_RUN_ID names is joined in that mode
(WANDB_MODE=shared) only; otherwise ours is another one, in the group of that id.
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

MOST = 1_000
"""Findings that the table holds."""


class WeightsAndBiases:
    """Curves by step, a table of the findings, and the reports as an artifact. `place` is `PROJECT` or
    `ENTITY/PROJECT`; without one wandb's own settings decide, as they do about everything else (WANDB_MODE, ...).

    Raises MissingExtra.
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
        theirs = os.environ.pop("WANDB_RUN_ID", "")  # of the program: it must not decide over ours
        shared = bool(theirs) and os.environ.get("WANDB_MODE") == "shared"
        # Nothing is told of the machine, of the code and of what else the process prints, unless it is asked for.
        settings: dict[str, Any] = {"silent": True, "console": "off", "disable_git": True, "disable_code": True}
        settings |= {"save_code": False, "x_disable_stats": True, "x_disable_meta": True}
        if shared:
            settings |= {"x_primary": False, "x_label": "traincheck", "x_update_finish_state": False}
            whose: dict[str, Any] = {"id": theirs}
        else:
            group = os.environ.get("WANDB_RUN_GROUP") or theirs or GROUP
            whose = {"name": name_of(run), "group": group, "job_type": "traincheck"}
            whose["config"] = {"traincheck": dict(run), **({"training_run": theirs} if theirs else {})}
        self._run = wandb.init(
            entity=entity or None,
            project=project or None,
            dir=run["folder"],  # not beside those of the program, where `latest-run` would become ours
            settings=wandb.Settings(**settings),
            **whose,
        )
        self._run.define_metric(f"{PREFIX}step", hidden=True)
        self._run.define_metric(f"{PREFIX}*", step_metric=f"{PREFIX}step")
        if self._run.settings.mode == "disabled":
            return "nothing is kept, for wandb is disabled"
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
            self._findings = [_row(finding) for finding in report.findings[:MOST]]
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
