"""Verifies training steps in a test: computes each of them in a second way, and compares.

For a test of your own model::

    from traincheck.testing import verify_step

    def test_one_step() -> None:
        model, optimizer = build()
        verified = verify_step(model, next(iter(loader)), compute_loss, optimizer)
        assert not verified.undecided, verified
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from traincheck.checking.engine import Engine, demand_of
from traincheck.checking.results import findings_of
from traincheck.checking.verification_tally import VerificationTally
from traincheck.relations.consistent.builtin_rules import of_verification
from traincheck.reporting.quiet_import import import_terminal
from traincheck.reporting.verification_table import verification_rows
from traincheck.vocab.events import Window
from traincheck.vocab.finding import Finding
from traincheck.vocab.invariant import ERROR
from traincheck.vocab.verification import AGREES, NOT_TRUE_HERE, UNDECIDED, VerifiedComputation

if TYPE_CHECKING:
    from traincheck.sources.base import Source
    from traincheck.sources.recording.recorder import Recorder


NO_OCCASION = "the model must be in training mode, and its parameters need gradients"
"""The usual reason where no experiment has one."""


@dataclass(frozen=True)
class Verification:
    """What was verified, without an error. Printed, it is a table.

    `rows` has a row for each experiment and subject. `not_observed` names computations that could not be observed.
    """

    rows: tuple[VerifiedComputation, ...]
    not_observed: tuple[str, ...] = ()

    @property
    def agreed(self) -> tuple[VerifiedComputation, ...]:
        """The rows in which both ways agreed."""
        return tuple(row for row in self.rows if row.verdict == AGREES)

    @property
    def disagreed(self) -> tuple[VerifiedComputation, ...]:
        """The rows about inputs that do not hold: some models are meant to look at other samples or later tokens."""
        return tuple(row for row in self.rows if row.verdict == NOT_TRUE_HERE)

    @property
    def undecided(self) -> tuple[VerifiedComputation, ...]:
        """The rows in which no result could be decided, with the reasons."""
        return tuple(row for row in self.rows if row.verdict == UNDECIDED)

    def __str__(self) -> str:
        rows = ["  ".join(row[:4]) for row in verification_rows(self.rows)]
        return "\n".join([*rows, *(f"not observed: {reason}" for reason in self.not_observed)])


def verify_step(
    model: Any,
    batch: Any,
    loss_fn: Callable[[Any, Any], Any],
    optimizer: Any,
    *,
    steps: int = 2,
) -> Verification:
    """Train `model` for `steps` steps with every experiment in each, restore the state before, and return the results.

    `loss_fn(model, batch)` returns the loss, as in your loop::

        def compute_loss(model, batch):
            return F.cross_entropy(model(batch["inputs"]), batch["labels"])

        verified = verify_step(model, batch, compute_loss, optimizer)
        assert not verified.undecided, verified

    Each step calls `zero_grad`, `loss_fn`, `backward` and `step`. Put the model into training mode first. Afterwards,
    parameters, gradients, buffers, the optimizer and all random streams have the bits that they had before, also after
    an error. docs/verification.md describes the experiments.

    Raises AssertionError with the finding if a computation is wrong, and ValueError if nothing could be verified (for
    example, the model is in evaluation mode). Errors of your own code are raised as they are.
    Known limitations: other effects of `loss_fn`, such as a metric or a log, remain. An optimizer that needs a closure
    is not supported.
    """
    from traincheck.sources.verification.training_state import TrainingState

    rules, tally = of_verification(), VerificationTally()
    engine = Engine(rules, process=os.getpid())

    def judge(window: Window) -> None:
        tally.feed(window)
        engine.feed(window)

    faults: list[str] = []
    recorder = _recorder(judge, faults, loss_fn)
    sources, before = _sources(recorder), TrainingState(model, optimizer)
    try:
        missing = _train(recorder, sources, lambda: _steps(model, batch, loss_fn, optimizer, steps))
    finally:
        before.restore()
    errors = [finding for finding in findings_of([engine.outcome]) if finding.severity == ERROR]
    not_observed = tuple(dict.fromkeys([*missing, *recorder.unobservable, *faults]))
    if errors:
        raise AssertionError(_words(errors))
    if not any(row.times for row in tally.rows):
        reasons = [
            *(f"{row.experiment} of {row.subject}: {'; '.join(row.reasons)}" for row in tally.rows),
            *not_observed,
        ]
        raise ValueError(f"nothing could be verified: {'; '.join(reasons) or NO_OCCASION}")
    return Verification(tally.rows, not_observed)


def _recorder(judge: Callable[[Window], None], faults: list[str], loss_fn: Callable[..., Any]) -> Recorder:
    from traincheck.sources.recording.call_sites import CallSites
    from traincheck.sources.recording.recorder import Recorder

    code = getattr(loss_fn, "__code__", None)
    folders = [str(Path.cwd()), *([str(Path(code.co_filename).parent)] if code is not None else [])]
    on_fault = lambda source, error: faults.append(f"{source}: {type(error).__name__}: {error}")  # noqa: E731
    return Recorder(CallSites(tuple(dict.fromkeys(folders))), judge, on_fault, process=os.getpid())


def _sources(recorder: Recorder) -> Sequence[Source]:
    from traincheck.sources.registry import build_all

    return build_all(recorder, lambda: None, verify_every=1).sources


def _train(recorder: Recorder, sources: Sequence[Source], steps: Callable[[], None]) -> list[str]:
    """Observe the steps, and remove all hooks afterwards; the sources that could not observe, with the reasons."""
    from traincheck.sources.registry import attach

    undo, missing = attach(list(sources), demand_of(of_verification()), recorder)
    try:
        steps()
    finally:
        try:
            recorder.finish()
            recorder.deactivate()
        finally:
            undo.close()
    return missing


def _steps(model: Any, batch: Any, loss_fn: Callable[[Any, Any], Any], optimizer: Any, steps: int) -> None:
    for _ in range(steps):
        optimizer.zero_grad()
        loss_fn(model, batch).backward()
        optimizer.step()


def _words(errors: Sequence[Finding]) -> str:
    import_terminal()
    from traincheck.reporting.terminal import finding_block

    return "\n\n".join(finding_block(finding).plain for finding in errors)
