"""Telling: what this process tells the other ranks of its job, in a file beside its events, and over the exchange."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from traincheck.checking.digests import lean
from traincheck.checking.outcome_files import save_compared
from traincheck.checking.rank_engine import Compared, comparable, told_demand
from traincheck.runtime.ranks.rank_info import RankInfo
from traincheck.trace.folder import RunFolder
from traincheck.trace.format import TOLD
from traincheck.trace.rotation import RotatingWriter
from traincheck.trace.run_notes import StopAsked
from traincheck.vocab.events import Window
from traincheck.vocab.finding import Finding
from traincheck.vocab.invariant import Invariant
from traincheck.vocab.option_values import EXCHANGE, FILES, OFF

if TYPE_CHECKING:
    from traincheck.runtime.ranks.rank_client import RankClient

SAVE_EVERY = 500
"""Windows between two savings of what ranks that tell each other found: what a killed process loses of its counts."""


class Telling:
    """A stage of the pipeline. What needs a rank is begun with the first window: by then it is known."""

    def __init__(
        self,
        folder: RunFolder,
        process: int,
        rules: Sequence[Invariant],
        how: str,
        *,
        on_decided: Callable[[], None],
        on_finding: Callable[[Finding], None],
        on_stop: Callable[[StopAsked], None],
        on_fault: Callable[[str, BaseException], None],
        keep: int = 0,
    ) -> None:
        self._keep = keep
        if os.environ.get("WORLD_SIZE", "1") != "1":  # a job may be over before it would be imported beside it
            import traincheck.runtime.ranks.rank_client  # noqa: F401
        self._folder = folder
        self._process = process
        self._rules = [] if how == OFF else comparable(rules)
        self._demand = told_demand(self._rules)
        self._how = how
        self._on_decided = on_decided
        self._on_finding = on_finding
        self._on_stop = on_stop
        self._on_fault = on_fault
        self._writer: RotatingWriter | None = None
        self._exchange: RankClient | None = None
        self._muted: Mapping[str, str] = {}
        self._windows = 0
        self.exchanging = False
        """Whether the ranks compare themselves, as far as that is known."""
        self.sent: dict[str, int] = {}
        """Messages, and bytes in them, that went to the first rank; known at the end."""

    def feed(self, window: Window, place: RankInfo) -> None:
        """Tell a window."""
        if not self._rules or place.world_size < 2:
            return
        if self._writer is None:
            self._writer = RotatingWriter(self._folder.path, window.rank, self._process, self._keep, TOLD)
            if self._how != FILES:
                self._begin(place)
        told = lean(window, self._demand)
        self._writer.write(told)
        if self._exchange is not None:
            self._exchange.tell(window, told)
            if self.exchanging and self._windows % SAVE_EVERY == 0:
                self._save(self._exchange.compared())
            self._windows += self.exchanging

    def close(self) -> None:
        """Tell what is left, and end. Raises OutputError where it cannot be written."""
        if self._exchange is not None:
            self._save(self._exchange.close())
            self.sent = self._exchange.sent
            if self.exchanging and self._exchange.left_out:
                why = "it could not keep up, or they hold numbers of more than 64 bits"
                told = f"{self._exchange.left_out} windows were not told to the first rank: {why}"
                self._on_fault("ranks", RuntimeError(told))
        if self._writer is not None:
            self._writer.close()

    def by_files(self, place: RankInfo) -> bool:
        """Whether the ranks are compared by their event files, while these are written, as far as that is known."""
        return bool(self._rules) and place.world_size > 1 and not self.exchanging

    def mute(self, muted: Mapping[str, str]) -> None:
        """From now on these rules are not judged where this process compares the ranks."""
        self._muted = muted
        if self._exchange is not None:
            self._exchange.mute(muted)

    def ask_to_stop(self, because: StopAsked) -> None:
        """Ask the other ranks to stop, where this one compares them."""
        if self._exchange is not None:
            self._exchange.stop_all(because)

    def _begin(self, place: RankInfo) -> None:
        from traincheck.runtime.ranks.rank_client import (
            RankClient,  # most programs have a single rank, and need none of it
        )

        self._exchange = RankClient(
            place,
            "" if self._how == EXCHANGE else self._folder.manifest.id,
            self._rules,
            self._demand,
            on_decided=self._decided,
            on_finding=self._found,
            on_stop=self._on_stop,
            on_fault=self._on_fault,
        )
        self._exchange.mute(self._muted)

    def _decided(self) -> None:
        self.exchanging = True
        self._on_decided()

    def _found(self, finding: Finding) -> None:
        self._on_finding(finding)
        if self._exchange is not None:
            self._save(self._exchange.compared())

    def _save(self, compared: Compared | None) -> None:
        """Store what was found, where this is the rank that compares: a killed process loses what came after it."""
        if compared is not None:
            save_compared(self._folder.path, self._process, compared)
