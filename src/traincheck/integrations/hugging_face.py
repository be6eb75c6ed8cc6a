"""For the Trainer of Hugging Face, and those built on it: `Trainer(..., callbacks=[TrainCheckCallback()])`.

Source of the moments: transformers.TrainerCallback.
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

    `report` and `folder` tell what was found last, and where. Under `traincheck run` the callback leaves the training
    to that. Raises TrainCheckError out of `Trainer.train()` before the first step where something that was asked for
    cannot be done, and StopTraining with `on_violation="stop"`.
    """

    def __init__(self, **options: Any) -> None:
        self._watch = TrainingWatch(options)

    def on_train_begin(self, args: Any, state: Any, control: Any, **rest: Any) -> None:
        """Begin."""
        self._watch.begin()

    def on_train_end(self, args: Any, state: Any, control: Any, **rest: Any) -> None:
        """End."""
        self._watch.end()
