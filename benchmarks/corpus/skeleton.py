"""The event skeleton of a recorded run: what happens in a step, whatever the sizes, numbers and names are.

Two programs of one skeleton differ in numbers only, so the count of skeletons says how much structure a corpus has.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

from traincheck.trace.folder import RunFolder
from traincheck.vocab.events import PROJECT, TRAIN, Window

STEPS = 4
"""Training steps of each process that a skeleton is taken of: the first ones do what later ones need not do."""


def skeleton_of(folder: Path) -> str:
    """A digest of the calls of the first training steps of a run, with what encloses each and what changed.

    Names of functions of the project are left out, and a call that follows an equal one counts once.
    """
    digest = hashlib.sha256()
    for _, windows in RunFolder.open(folder).windows():
        digest.update(repr(list(_shapes(windows))).encode())
    return digest.hexdigest()[:16]


def _shapes(windows: Iterable[Window]) -> Iterable[tuple[object, ...]]:
    steps = 0
    for window in windows:
        if window.stage == TRAIN:
            steps += 1
        if steps > STEPS:
            return
        names = {call.seq: PROJECT if call.kind == PROJECT else call.name for call in window.calls}
        last: tuple[object, ...] = ()
        for call in window.calls:
            changed = sorted({(change.kind, change.attribute) for change in window.changes if change.call == call.seq})
            shape = (names[call.seq], names.get(call.parent, ""), tuple(changed))
            if shape != last:
                yield shape
            last = shape
