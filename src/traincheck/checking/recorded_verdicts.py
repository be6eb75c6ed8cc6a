"""Recalled: the verdicts on the invariants of a run that is over, from what its processes left in the run folder."""

from __future__ import annotations

from pathlib import Path

from traincheck.checking.run_status import Watcher
from traincheck.errors import TrainCheckError
from traincheck.vocab.invariant import Invariant


def verdicts_of(folder: Path) -> tuple[tuple[Invariant, str], ...]:
    """Each invariant that was deployed on the run, with its verdict; none where the folder does not tell any more."""
    watcher = Watcher(folder)
    try:
        watcher.look()
        checked = watcher.report()
    except TrainCheckError:
        return ()
    return () if checked is None else checked.verdicts
