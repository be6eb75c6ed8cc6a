"""Saves the initial state of a process in the run folder, and finds the one with which it begins."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from traincheck.errors import OutputError
from traincheck.runtime.launching.run_settings import Settings
from traincheck.runtime.ranks.rank_info import current_rank_info
from traincheck.trace.folder import RunFolder
from traincheck.trace.format import INITIAL_STATE
from traincheck.vocab.events import TRAIN, Window
from traincheck.vocab.option_values import OPERATIONS

if TYPE_CHECKING:
    from traincheck.sources.modules.variables import VariableCatalog
    from traincheck.sources.operations.initial_state import InitialStateSource, Restored, State

SHARE = 4
"""Weights are saved if they take at most this part of --keep-recording, 250 MB by default: one copy in memory and on
disk, in the first step alone."""

MAX_DISK_SHARE = 0.5
"""Weights that need more than this part of the free space are not saved: checkpoints come first."""

MOST_NAMED = 5


class InitialStates:
    """The initial states of a process: the one that it saves, and the one with which it begins.

    Messages go to `say`.
    """

    def __init__(self, settings: Settings, process: int, say: Callable[[str], object]) -> None:
        self._settings, self._process, self._say = settings, process, say
        self._state: State | None = None
        self._restored = self._trained = False

    def source(self, catalog: VariableCatalog) -> InitialStateSource:
        """The source that takes the state from the program, and sets it."""
        from traincheck.sources.operations.initial_state import InitialStateSource

        keep = self._keep if self._settings.record == OPERATIONS else None
        load = self._file if self._settings.initial_state else None
        return InitialStateSource(catalog, keep, load, self._max_bytes(), self._on_restored, self._on_too_large)

    def feed(self, window: Window) -> None:
        """Write the state that the program began with. A stage of the pipeline; raises OutputError."""
        self._trained = self._trained or window.stage == TRAIN
        state, self._state = self._state, None
        if state is None:
            return
        from traincheck.sources.operations.initial_state import write_state

        path = Path(self._settings.run_folder) / f"{INITIAL_STATE}-{window.rank}-{self._process}.pt"
        try:
            write_state(state, path)
        except (OSError, RuntimeError) as error:  # torch reports a full disk as a RuntimeError
            raise OutputError(path, str(error)) from error

    def close(self) -> None:
        """Say so if the program trained without beginning with the requested state."""
        if self._settings.initial_state and self._trained and not self._restored:
            self._say(
                f"the run did not begin with the state of {self._settings.initial_state}: TrainCheck sets it at the "
                "first call of a model with gradients after an optimizer was built, and there was none"
            )

    def _max_bytes(self) -> float:
        limit = self._settings.keep_recording / SHARE if self._settings.keep_recording else float("inf")
        try:
            return min(limit, MAX_DISK_SHARE * shutil.disk_usage(self._settings.run_folder).free)
        except OSError:
            return limit

    def _keep(self, state: State) -> None:
        self._state = state

    def _file(self) -> Path:
        """The state of this rank; that of the first rank if the earlier run had fewer ranks."""
        files = RunFolder.open(self._settings.initial_state).initial_states()
        return files.get(current_rank_info().rank) or files[min(files)]

    def _on_restored(self, restored: Restored) -> None:
        self._restored = True
        rank, size, _ = current_rank_info()
        if rank and not restored.unset:
            return  # the first rank says the same
        prefix = f"rank {rank}: " if size > 1 else ""
        total = restored.tensors + len(restored.unset)
        self._say(
            f"{prefix}the run begins with the state of {self._settings.initial_state}: {restored.tensors} of {total} "
            f"parameters and buffers, and the random state of {', '.join(restored.streams)}"
        )
        if restored.unset:
            named = [f"{name} ({reason})" for name, reason in list(restored.unset.items())[:MOST_NAMED]]
            more = f" and {len(restored.unset) - len(named)} more" if len(restored.unset) > len(named) else ""
            self._say(f"{prefix}these keep their own values: {', '.join(named)}{more}")

    def _on_too_large(self, size: int) -> None:
        if not current_rank_info().rank:
            most = self._max_bytes() / 1e6
            self._say(
                f"the initial weights ({size / 1e6:,.0f} MB) are not saved, so no run can begin --from this one: they "
                f"may take a quarter of --keep-recording and half of the free space ({most:,.0f} MB)"
            )
