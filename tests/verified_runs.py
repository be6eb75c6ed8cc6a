"""Runs a training with verified steps in the test's own process, and reads the verdicts of experiments."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import torch

import traincheck
from traincheck.trace.folder import RunFolder
from traincheck.vocab.events import Reading
from traincheck.vocab.facts import value_of
from traincheck.vocab.verification import KIND


class Verdict(NamedTuple):
    """A verdict of an experiment in a step."""

    step: int
    subject: str
    verdict: str
    found: str
    first: str


class VerifiedRun(NamedTuple):
    """All verdicts of a run by experiment, the findings of its report, and what TrainCheck could not observe."""

    verdicts: dict[str, list[Verdict]]
    findings: list[dict[str, Any]]
    not_observed: list[str]

    def of(self, experiment: str) -> list[str]:
        """The verdicts of an experiment, in order."""
        return [verdict.verdict for verdict in self.verdicts.get(experiment, [])]

    def first(self, experiment: str) -> Verdict:
        """The first verdict of an experiment."""
        return self.verdicts[experiment][0]


def verified(folder: Path, steps: Iterable[object], every: int = 2) -> VerifiedRun:
    """Run a training, one step for each item of `steps`, with one of `every` steps verified."""
    if "torch._dynamo" in sys.modules:
        torch.compiler.reset()  # code that another test compiled would stay as it is, and some experiments leave it out
    with traincheck.checked(folder / "run", packs="none", verify_every=every, record="all", budget="1/1"):
        for _ in steps:
            pass
    verdicts: dict[str, list[Verdict]] = {}
    for _, windows in RunFolder.open(folder / "run").windows():
        for window in windows:
            for reading in window.readings:
                if reading.kind == KIND:
                    verdicts.setdefault(reading.attribute, []).append(_verdict(window.step, reading))
    report = json.loads((folder / "run" / "report.json").read_text())
    return VerifiedRun(verdicts, report["findings"], report["not_observed"])


def _verdict(step: int, reading: Reading) -> Verdict:
    found, first = (str(value_of(reading.context, fact) or "") for fact in ("found", "first"))
    return Verdict(step, reading.variable, str(reading.value), found, first)
