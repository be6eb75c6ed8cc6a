"""Checks a training with Accelerate: `Accelerator(..., log_with=TrainCheckTracker())`.

Interface: accelerate.tracking.GeneralTracker.
"""

from __future__ import annotations

from typing import Any

from traincheck.errors import MissingExtra
from traincheck.integrations.training_watch import TrainingWatch, WatchResults

try:
    from accelerate.tracking import GeneralTracker
except ImportError:
    raise MissingExtra("The tracker for Accelerate", "accelerate", "pip install accelerate") from None


class TrainCheckTracker(WatchResults, GeneralTracker):  # type: ignore[misc]
    """Checks the training from here on; `options` are those of `traincheck.checked`.

    It ends with `Accelerator.end_training()`, if you called `init_trackers`, and otherwise with the program. `report`
    has the findings, and `folder` is the run folder. Under `traincheck run` the tracker does nothing. Raises
    TrainCheckError if an option cannot be satisfied.
    """

    name = "traincheck"
    requires_logging_directory = False
    main_process_only = False  # TrainCheck observes each rank

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self._watch = TrainingWatch(options)
        self._watch.begin()

    @property
    def tracker(self) -> TrainCheckTracker:
        """The result of `Accelerator.get_tracker("traincheck")`."""
        return self

    def store_init_configuration(self, values: dict[str, Any]) -> None:
        """Do nothing: TrainCheck observes settings where they take effect."""

    def log(self, values: dict[str, Any], step: int | None = None, **rest: Any) -> None:
        """Do nothing: TrainCheck does not use the program's own metrics."""

    def finish(self) -> None:
        """End the check."""
        self._watch.end()
