"""Checks a training with `lightning` or `pytorch_lightning`: `Trainer(..., callbacks=[TrainCheckCallback()])`.

Interface: lightning.pytorch.callbacks.Callback.
"""

from __future__ import annotations

import sys
from typing import Any

from traincheck.errors import MissingExtra
from traincheck.integrations.training_watch import TrainingWatch, WatchResults

try:
    # Both packages have the same code, but each accepts only its own callback class.
    if "pytorch_lightning" in sys.modules and "lightning" not in sys.modules:
        from pytorch_lightning.callbacks import Callback
    else:
        from lightning.pytorch.callbacks import Callback
except ImportError:
    raise MissingExtra("The callback for Lightning", "lightning", "pip install lightning") from None

FIT = "fit"


class TrainCheckCallback(WatchResults, Callback):  # type: ignore[misc]
    """Checks the training in `fit`, from its set-up to its end; `options` are those of `traincheck.checked`.

    `report` has the findings of the last training, and `folder` is its run folder. Under `traincheck run` the callback
    does nothing. If an option cannot be satisfied, `fit` raises TrainCheckError before the first step. With
    `on_violation="stop"` it raises StopTraining after a finding.
    """

    def __init__(self, **options: Any) -> None:
        self._watch = TrainingWatch(options)

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Begin the check, before the optimizers exist."""
        if stage == FIT:
            self._watch.begin()

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """End the check."""
        if stage == FIT:
            self._watch.end()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """End the check, because Lightning does not call `teardown` after an exception."""
        self._watch.end()
