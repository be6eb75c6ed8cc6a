"""Descriptions of a program as lines of text: they are taken seldom, and each one is reported once.

Note [Descriptions after a gap]
Relations judge a description by itself, and learn what the descriptions of a run showed, so a gap between windows that
are watched is no reason to report one again: it would only be taken again in each of these windows. A description is
reported again if its window was dropped, and for a reader of windows that begins later.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from traincheck.sources.recording.recorder import Recorder
from traincheck.vocab.events import LIVE, Reading
from traincheck.vocab.facts import facts


class Schedule(NamedTuple):
    """When to describe what happens again and again: at the first `often` times, then at one in `seldom`."""

    often: int
    seldom: int

    def includes(self, number: int) -> bool:
        """Whether to describe time `number`, counted from 1."""
        return number <= self.often or number % self.seldom == 0


class Descriptions:
    """Records a reading of `kind` for each description that is new.

    A description belongs to a variable and an attribute. It is reported up to `most_reports` times.
    """

    def __init__(self, recorder: Recorder, kind: str, most_reports: int = 1) -> None:
        self._recorder = recorder
        self._kind = kind
        self._context = facts(kind=kind)
        self._most_reports = most_reports
        self._reported: dict[tuple[object, ...], list[int]] = {}  # where

    def forget_unread(self) -> bool:
        """Report descriptions again that no reader of windows has got, see Note [Descriptions after a gap]; whether
        there are any. Call it in a `reset`, see `Recorder.after_gap`."""
        was_read = self._recorder.was_handed_on
        reported, self._reported = self._reported, {}
        for key, seqs in reported.items():
            read = [seq for seq in seqs if was_read(seq)]
            if read:
                self._reported[key] = read
        return self._reported != reported

    def report(
        self,
        call: int,
        variable: str,
        attribute: str,
        text: str,
        role: str = LIVE,
        *,
        stage: str = "",
        next_seq: Callable[[], int] | None = None,
    ) -> bool:
        """Report a description if it is new, or new in this stage; whether it is.

        `next_seq` returns the position of the reading, by default the next one.
        """
        seqs = self._reported.setdefault((variable, attribute, text, role, stage), [])
        new = len(seqs) < self._most_reports
        if new:
            seqs.append(self._record(call, variable, attribute, text, role, next_seq))
        return new

    def report_together(
        self, call: int, kind: str, attribute: str, variables: Mapping[str, str], role: str = LIVE
    ) -> None:
        """Report the variables of one kind, by their texts, if variables of this kind never had just these texts."""
        seqs = self._reported.setdefault((kind, attribute, frozenset(variables), role), [])
        if len(seqs) < self._most_reports:
            recorded = [self._record(call, variable, attribute, text, role) for text, variable in variables.items()]
            seqs += recorded[-1:]

    def _record(
        self,
        call: int,
        variable: str,
        attribute: str,
        text: str,
        role: str,
        next_seq: Callable[[], int] | None = None,
    ) -> int:
        seq = (next_seq or self._recorder.next_seq)()
        self._recorder.record_reading(Reading(seq, call, variable, self._kind, attribute, text, role, self._context))
        return seq
