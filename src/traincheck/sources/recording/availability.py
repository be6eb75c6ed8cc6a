"""Tracks which sources are disabled, and leaves out the windows in which that changed.

See Note [Silence is not absence] in vocab/availability.py. A disabled source stays attached, and `Recorder.guarded`
skips its functions: calls that it had opened end unrecorded, and it can be switched on again at any time.
"""

from __future__ import annotations

from traincheck.vocab.events import FAILED, MISSING, NO_CALL, OFF, SOURCE, SWITCHED_OFF, Reading


class SourceAvailability:
    """The sources of one recorder that record nothing now: `disabled` holds the reason for each."""

    def __init__(self) -> None:
        self.disabled: dict[str, str] = {}
        self._disabled_at_start: dict[str, str] = {}  # when the open window began
        self._switch_seqs: list[int] = []

    def mark_missing(self, source: str) -> None:
        """A source could not attach."""
        self.disabled[source] = self._disabled_at_start[source] = MISSING

    def mark_failed(self, source: str, *seqs: int) -> bool:
        """Disable a source for good, see `switch_off`."""
        return self.switch_off(source, *seqs, reason=FAILED)

    def switch_off(self, source: str, *seqs: int, reason: str = SWITCHED_OFF) -> bool:
        """Disable a source and leave out the windows with these positions; False where it is disabled already."""
        if source in self.disabled:
            return False
        self.disabled[source] = reason
        self._switch_seqs.extend(seqs)
        return True

    def switch_on(self, source: str, *seqs: int) -> bool:
        """Enable a source that was switched off; False for one that failed, is missing or is enabled."""
        if self.disabled.get(source) != SWITCHED_OFF:
            return False
        del self.disabled[source]
        self._switch_seqs.extend(seqs)
        return True

    def close_window(self, seq: int) -> tuple[Reading, ...] | None:
        """A reading for each source that was disabled in the window before `seq`; None leaves that window out."""
        if not self._switch_seqs and not self._disabled_at_start and not self.disabled:
            return ()
        incomplete = any(switched < seq for switched in self._switch_seqs)
        disabled = sorted(self._disabled_at_start.items())
        readings = tuple(Reading(-1, NO_CALL, name, SOURCE, OFF, reason) for name, reason in disabled)
        self._switch_seqs = [switched for switched in self._switch_seqs if switched >= seq]
        self._disabled_at_start = dict(self.disabled)
        return None if incomplete else readings
