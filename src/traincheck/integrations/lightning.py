"""For Lightning: `Trainer(..., callbacks=[TrainCheckCallback()])`, of `lightning` as of `pytorch_lightning`.

Source of the moments: lightning.pytorch.callbacks.Callback.
"""

from __future__ import annotations

import sys
from typing import Any

from traincheck.errors import MissingExtra
from traincheck.integrations.training_watch import TrainingWatch, WatchResults

try:
    # The two are one code under two names, and each takes callbacks of its own name only.
    if "pytorch_lightning" in sys.modules and "lightning" not in sys.modules:
        from pytorch_lightning.callbacks import Callback
    else:
        from lightning.pytorch.callbacks import Callback
except ImportError:
    raise MissingExtra("The callback for Lightning", "lightning", "pip install lightning") from None

FIT = "fit"


class TrainCheckCallback(WatchResults, Callback):  # type: ignore[misc]
    """Checks what `fit` trains, from its set-up to its end; `options` are those of `traincheck.checked`.

    `report` and `folder` tell what was found last, and where. Under `traincheck run` the callback leaves the training
    to that. Raises TrainCheckError out of `fit` before the first step where something that was asked for cannot be
    done, and StopTraining with `on_violation="stop"`.
    """

    def __init__(self, **options: Any) -> None:
        self._watch = TrainingWatch(options)

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Begin, before optimizers are made."""
        if stage == FIT:
            self._watch.begin()

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """End."""
        if stage == FIT:
            self._watch.end()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """End, for Lightning tears nothing down then."""
        self._watch.end()
