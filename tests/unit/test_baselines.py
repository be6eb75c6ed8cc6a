"""The simple detectors that the benchmark compares with: each sees what it is made for, and nothing in a smooth run."""

from __future__ import annotations

import numpy as np
import pytest
from benchmarks.baselines.detectors import DETECTORS
from benchmarks.baselines.series import Series, from_notes


def smooth(seed: int = 0, steps: int = 40) -> Series:
    """A loss that falls with a little noise, and a gradient norm that follows it."""
    noise = np.random.default_rng(seed)
    loss = 2 * np.exp(-np.arange(steps) / 15) + noise.normal(0, 0.02, steps) + 0.2
    return Series(loss, 0.5 * loss + noise.normal(0, 0.01, steps), failed=False)


def changed(step: int, *, loss: float | None = None, norm: float | None = None) -> Series:
    run = smooth()
    if loss is not None:
        run.loss[step - 1] = loss
    if norm is not None:
        run.norm[step - 1] = norm
    return run


@pytest.mark.parametrize(
    ("name", "run"),
    [
        ("loss spike", changed(21, loss=9.0)),
        ("loss spike", changed(21, loss=float("nan"))),
        ("gradient norm spike", changed(21, norm=9.0)),
        ("gradient norm zero", changed(21, norm=0.0)),
        ("loss z-score", changed(21, loss=9.0)),
        ("gradient norm z-score", changed(21, norm=9.0)),
        ("local outlier factor", changed(21, loss=9.0)),
        ("isolation forest", changed(21, loss=9.0, norm=9.0)),
    ],
)
def test_each_detector_finds_its_kind_of_error(name: str, run: Series) -> None:
    step = DETECTORS[name](run, smooth(1))
    assert step is not None and step <= 21
    if name not in ("isolation forest", "local outlier factor", "loss z-score", "gradient norm z-score"):
        assert step == 21


def test_a_loss_that_does_not_fall() -> None:
    run = smooth()
    run.loss[:] = np.linspace(1, 2, len(run))
    assert DETECTORS["loss trend"](run, smooth(1)) == 30


@pytest.mark.parametrize(
    "name", ["loss spike", "loss trend", "gradient norm spike", "gradient norm zero", "anomaly mode"]
)
def test_a_smooth_run_gives_no_alarm(name: str) -> None:
    assert DETECTORS[name](smooth(), smooth(1)) is None


@pytest.mark.parametrize("name", DETECTORS)
def test_a_run_without_steps_gives_no_alarm(name: str) -> None:
    nothing = Series(np.array([]), np.array([]), failed=False)
    assert DETECTORS[name](nothing, nothing) is None


def test_steps_are_read_from_notes() -> None:
    lines = [{"loss": 1.0}, {"loss": 3.0}, {"norm": 2.0}, {"norm": 5.0}, {"loss": 4.0}, {"norm": 1.0}]
    run = from_notes(lines, failed=True)
    assert run.loss.tolist() == [2.0, 4.0]  # two micro-batches are one step
    assert run.norm.tolist() == [5.0, 1.0]  # two optimizers are one step
    assert DETECTORS["anomaly mode"](run, run) == 2
