"""Detectors on loss and gradient norm: the usual thresholds and two learned ones from scikit-learn.

Each gives the first step (counted from 1) at which it would alarm, or None. Thresholds are the customary ones: three
standard deviations, three times the median, scikit-learn's defaults. The learned ones are fitted to a clean run of the
same program (an advantage that a user seldom has).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable

import numpy as np
from sklearn.ensemble import IsolationForest
from sklearn.neighbors import LocalOutlierFactor

from benchmarks.baselines.series import Series

WINDOW = 10
"""Steps that a running rule looks back on; runs of the benchmark have 15 to 60."""
TIMES, SIGMAS = 3.0, 3.0
LOF_NEIGHBOURS = 20
"""scikit-learn's default, capped by the length of the run."""

Detector = Callable[[Series, Series], "int | None"]


def spike_of(values: np.ndarray) -> int | None:
    """First step with a value over three times the median of the steps before, or one that is not finite."""
    for step in range(len(values)):
        before = values[max(0, step - WINDOW) : step]
        if not np.isfinite(values[step]) or (len(before) >= 3 and values[step] > TIMES * abs(np.median(before))):
            return step + 1
    return None


def zscore_of(values: np.ndarray) -> int | None:
    """First step more than three standard deviations away from the mean of the steps before."""
    for step in range(5, len(values)):
        before = values[max(0, step - WINDOW) : step]
        if abs(values[step] - before.mean()) > SIGMAS * before.std() + 1e-12:
            return step + 1
    return None


def loss_spike(run: Series, clean: Series) -> int | None:
    """A spike of the loss."""
    return spike_of(run.loss)


def loss_trend(run: Series, clean: Series) -> int | None:
    """The loss does not fall: the mean of a window is no lower than that of the one before it, twice in a row."""
    means = [run.loss[at : at + WINDOW].mean() for at in range(0, len(run) - WINDOW + 1, WINDOW)]
    for number in range(2, len(means)):
        if means[number] >= means[number - 1] >= means[number - 2]:
            return (number + 1) * WINDOW
    return None


def norm_spike(run: Series, clean: Series) -> int | None:
    """A spike of the gradient norm."""
    return spike_of(run.norm)


def norm_zero(run: Series, clean: Series) -> int | None:
    """A gradient norm of zero."""
    steps = np.flatnonzero(run.norm == 0)
    return int(steps[0]) + 1 if len(steps) else None


def loss_zscore(run: Series, clean: Series) -> int | None:
    """The z-score of the loss."""
    return zscore_of(run.loss)


def norm_zscore(run: Series, clean: Series) -> int | None:
    """The z-score of the gradient norm."""
    return zscore_of(run.norm)


def outlier_factor(run: Series, clean: Series) -> int | None:
    """Local outlier factor of (loss, norm and their changes), fitted to the clean run."""
    neighbours = max(1, min(LOF_NEIGHBOURS, len(clean) - 1))
    return _first_outlier(LocalOutlierFactor(n_neighbors=neighbours, novelty=True), run, clean)


def isolation_forest(run: Series, clean: Series) -> int | None:
    """Isolation forest of the same, fitted to the clean run."""
    return _first_outlier(IsolationForest(random_state=0), run, clean)


def anomaly_mode(run: Series, clean: Series) -> int | None:
    """torch's anomaly mode: the program fails, or the mode warns."""
    return max(1, len(run)) if run.failed else None


DETECTORS: dict[str, Detector] = {
    "loss spike": loss_spike,
    "loss trend": loss_trend,
    "gradient norm spike": norm_spike,
    "gradient norm zero": norm_zero,
    "loss z-score": loss_zscore,
    "gradient norm z-score": norm_zscore,
    "local outlier factor": outlier_factor,
    "isolation forest": isolation_forest,
    "anomaly mode": anomaly_mode,
}


def _first_outlier(model: LocalOutlierFactor | IsolationForest, run: Series, clean: Series) -> int | None:
    reference, seen = _features(clean), _features(run)
    if len(reference) < 3 or not len(seen):
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # constant features: duplicates are told of, and do not matter here
        outliers = np.flatnonzero(model.fit(reference).predict(seen) == -1)
    return int(outliers[0]) + 1 if len(outliers) else None


def _features(run: Series) -> np.ndarray:
    columns = [run.loss, run.norm, np.diff(run.loss, prepend=run.loss[:1]), np.diff(run.norm, prepend=run.norm[:1])]
    return np.nan_to_num(np.stack(columns, axis=1)) if len(run) else np.empty((0, 4))
