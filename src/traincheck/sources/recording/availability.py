"""Absences: which sources observe nothing, since when, and which windows are left out because that changed in them.

See Note [Silence is not absence] in vocab/availability.py. A source is silenced where it is called (see
`Recorder.guarded`):
it stays attached, so that what it had begun ends with nothing being told, and it can go on at any time.
"""

from __future__ import annotations

from traincheck.vocab.events import FAILED, MISSING, NO_CALL, OFF, SOURCE, SWITCHED_OFF, Reading


class Absences:
    """Kept by the recorder. `silent` holds the sources that tell nothing now, with the reason."""

    def __init__(self) -> None:
        self.silent: dict[str, str] = {}
        self._told: dict[str, str] = {}  # as the open window began
        self._spoilt: list[int] = []

    def begin_without(self, source: str) -> None:
        """Note that a source could not attach."""
        self.silent[source] = self._told[source] = MISSING

    def fails(self, source: str, *places: int) -> bool:
        """As `silence`, for good."""
        return self.silence(source, *places, why=FAILED)

    def silence(self, source: str, *places: int, why: str = SWITCHED_OFF) -> bool:
        """From now on a source tells nothing; the windows of these places (of events) are left out."""
        if source in self.silent:
            return False
        self.silent[source] = why
        self._spoilt.extend(places)
        return True

    def resume(self, source: str, *places: int) -> bool:
        """A source that was switched off tells again."""
        if self.silent.get(source) != SWITCHED_OFF:
            return False
        del self.silent[source]
        self._spoilt.extend(places)
        return True

    def cut(self, seq: int) -> tuple[Reading, ...] | None:
        """What the window that ends before `seq` says of sources; None for one that is to be left out."""
        if not self._spoilt and not self._told and not self.silent:
            return ()
        spoilt = any(place < seq for place in self._spoilt)
        told = tuple(Reading(-1, NO_CALL, name, SOURCE, OFF, why) for name, why in sorted(self._told.items()))
        self._spoilt = [place for place in self._spoilt if place >= seq]
        self._told = dict(self.silent)
        return None if spoilt else told
