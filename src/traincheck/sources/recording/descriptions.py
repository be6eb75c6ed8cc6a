"""Descriptions of a program as lines of text: they are taken seldom, and each one is reported once."""

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
        self._reported: dict[tuple[object, ...], int] = {}  # how often

    def forget(self) -> None:
        """Report descriptions again that were reported before."""
        self._reported.clear()

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
        if not self._is_new((variable, attribute, text, role, stage)):
            return False
        self._record(call, variable, attribute, text, role, next_seq)
        return True

    def report_together(self, call: int, kind: str, attribute: str, variables: Mapping[str, str]) -> None:
        """Report the variables of one kind, by their texts, if variables of this kind never had just these texts."""
        if self._is_new((kind, attribute, frozenset(variables))):
            for text, variable in variables.items():
                self._record(call, variable, attribute, text, LIVE, None)

    def _is_new(self, key: tuple[object, ...]) -> bool:
        times = self._reported.get(key, 0)
        if times < self._most_reports:
            self._reported[key] = times + 1
        return times < self._most_reports

    def _record(
        self, call: int, variable: str, attribute: str, text: str, role: str, next_seq: Callable[[], int] | None
    ) -> None:
        seq = (next_seq or self._recorder.next_seq)()
        self._recorder.record_reading(Reading(seq, call, variable, self._kind, attribute, text, role, self._context))
