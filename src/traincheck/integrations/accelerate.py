"""For Accelerate: `Accelerator(..., log_with=TrainCheckTracker())`.

Source of the moments: accelerate.tracking.GeneralTracker.
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

    It ends with `Accelerator.end_training()`, if `init_trackers` was called, and otherwise with the program. `report`
    and `folder` tell what was found, and where. Under `traincheck run` it leaves the training to that. Raises
    TrainCheckError where something that was asked for cannot be done.
    """

    name = "traincheck"
    requires_logging_directory = False
    main_process_only = False  # each rank is observed by itself

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self._watch = TrainingWatch(options)
        self._watch.begin()

    @property
    def tracker(self) -> TrainCheckTracker:
        """What `Accelerator.get_tracker("traincheck")` gives."""
        return self

    def store_init_configuration(self, values: dict[str, Any]) -> None:
        """Nothing: settings are observed where they have an effect."""

    def log(self, values: dict[str, Any], step: int | None = None, **rest: Any) -> None:
        """Nothing: what the program logs is its own affair."""

    def finish(self) -> None:
        """End."""
        self._watch.end()
