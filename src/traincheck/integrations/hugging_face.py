"""Checks a training with the Hugging Face Trainer and its subclasses: `Trainer(..., callbacks=[TrainCheckCallback()])`.

Interface: transformers.TrainerCallback.
"""

from __future__ import annotations

from typing import Any

from traincheck.errors import MissingExtra
from traincheck.integrations.training_watch import TrainingWatch, WatchResults

try:
    from transformers import TrainerCallback
except ImportError:
    raise MissingExtra("The callback for Hugging Face", "transformers", "pip install transformers") from None


class TrainCheckCallback(WatchResults, TrainerCallback):  # type: ignore[misc]
    """Checks the training of a Trainer from `train()` to its end; `options` are those of `traincheck.checked`.

    `report` has the findings of the last training, and `folder` is its run folder. Under `traincheck run` the callback
    does nothing. If an option cannot be satisfied, `Trainer.train()` raises TrainCheckError before the first step. With
    `on_violation="stop"` it raises StopTraining after a finding.
    """

    def __init__(self, **options: Any) -> None:
        self._watch = TrainingWatch(options)

    def on_train_begin(self, args: Any, state: Any, control: Any, **rest: Any) -> None:
        """Begin the check."""
        self._watch.begin()

    def on_train_end(self, args: Any, state: Any, control: Any, **rest: Any) -> None:
        """End the check."""
        self._watch.end()
