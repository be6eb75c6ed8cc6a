"""Publishes the windows of this process for the comparison of ranks, in a file and over the network."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from traincheck.checking.digests import lean
from traincheck.checking.outcome_files import save_comparison
from traincheck.checking.rank_engine import RankComparison, comparable, published_demand
from traincheck.runtime.ranks.rank_info import RankInfo
from traincheck.trace.folder import RunFolder
from traincheck.trace.format import DIGESTS
from traincheck.trace.rotation import RotatingWriter
from traincheck.trace.run_notes import StopRequest
from traincheck.vocab.events import Window
from traincheck.vocab.finding import Finding
from traincheck.vocab.invariant import Invariant
from traincheck.vocab.option_values import EXCHANGE, FILES, OFF

if TYPE_CHECKING:
    from traincheck.runtime.ranks.rank_client import RankClient

SAVE_EVERY = 500
"""Windows after which a comparing rank saves its results; a killed process loses the counts since then."""


class RankPublisher:
    """A stage of the pipeline. It starts with the first window, when the rank is known."""

    def __init__(
        self,
        folder: RunFolder,
        process: int,
        rules: Sequence[Invariant],
        mode: str,
        *,
        on_decided: Callable[[], None],
        on_finding: Callable[[Finding], None],
        on_stop: Callable[[StopRequest], None],
        on_fault: Callable[[str, BaseException], None],
        keep: int = 0,
    ) -> None:
        self._keep = keep
        if os.environ.get("WORLD_SIZE", "1") != "1":  # a short job may end before a later import is done
            import traincheck.runtime.ranks.rank_client  # noqa: F401
        self._folder = folder
        self._process = process
        self._rules = [] if mode == OFF else comparable(rules)
        self._demand = published_demand(self._rules)
        self._mode = mode
        self._on_decided = on_decided
        self._on_finding = on_finding
        self._on_stop = on_stop
        self._on_fault = on_fault
        self._writer: RotatingWriter | None = None
        self._client: RankClient | None = None
        self._muted: Mapping[str, str] = {}
        self._windows = 0
        self.exchanging = False
        """Whether the ranks compare over the network, as far as it is decided."""
        self.sent: dict[str, int] = {}
        """The number of messages to comparing ranks, and their bytes; set at the end."""

    def feed(self, window: Window, rank_info: RankInfo) -> None:
        """Publish a window."""
        if not self._rules or rank_info.world_size < 2:
            return
        if self._writer is None:
            self._writer = RotatingWriter(self._folder.path, window.rank, self._process, self._keep, DIGESTS)
            if self._mode != FILES:
                self._begin(rank_info)
        digest = lean(window, self._demand)
        self._writer.write(digest)
        if self._client is not None:
            self._client.add_window(window, digest)
            if self.exchanging and self._windows % SAVE_EVERY == 0:
                self._save(self._client.compared())
            self._windows += self.exchanging

    def close(self) -> None:
        """Publish the remaining windows, and end. Raises OutputError."""
        if self._client is not None:
            self._save(self._client.close())
            self.sent = self._client.sent
            if self.exchanging and self._client.dropped:
                reason = "they came too fast, or hold numbers of more than 64 bits"
                message = f"{self._client.dropped} windows were not sent to the comparing rank: {reason}"
                self._on_fault("ranks", RuntimeError(message))
        if self._writer is not None:
            self._writer.close()

    def compares_by_files(self, rank_info: RankInfo) -> bool:
        """Whether `traincheck run` compares the ranks by their files, as far as it is decided."""
        return bool(self._rules) and rank_info.world_size > 1 and not self.exchanging

    def mute(self, muted: Mapping[str, str]) -> None:
        """Stop checking these rules, where this process compares the ranks."""
        self._muted = muted
        if self._client is not None:
            self._client.mute(muted)

    def request_stop(self, request: StopRequest) -> None:
        """Request a stop of the other ranks, where this process compares them."""
        if self._client is not None:
            self._client.broadcast_stop(request)

    def _begin(self, rank_info: RankInfo) -> None:
        from traincheck.runtime.ranks.rank_client import (
            RankClient,  # not imported for a single rank
        )

        self._client = RankClient(
            rank_info,
            "" if self._mode == EXCHANGE else self._folder.manifest.id,
            self._rules,
            on_decided=self._on_comparison,
            on_finding=self._on_new_finding,
            on_stop=self._on_stop,
            on_fault=self._on_fault,
        )
        self._client.mute(self._muted)

    def _on_comparison(self) -> None:
        self.exchanging = True
        self._on_decided()

    def _on_new_finding(self, finding: Finding) -> None:
        self._on_finding(finding)
        if self._client is not None:
            self._save(self._client.compared())

    def _save(self, compared: RankComparison | None) -> None:
        """Save the comparison, where this process compares: a killed process loses only later results."""
        if compared is not None:
            save_comparison(self._folder.path, self._process, compared)
