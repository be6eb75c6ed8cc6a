"""Simulated ranks that train one model, rules of their good runs, and a rank that sends over a connection."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from sample_windows import Script
from traincheck.checking.digests import lean, selected, value_digests
from traincheck.checking.rank_comparison import compare_recorded
from traincheck.checking.rank_engine import RankComparison
from traincheck.inference.candidate_selection import select_rules
from traincheck.inference.tally import Tally
from traincheck.inference.tally_runs import tally_ranks
from traincheck.invariants.book import Book
from traincheck.runtime.ranks.rank_protocol import (
    Connection,
    Ended,
    Hello,
    Message,
    ValueDigestsRequest,
    ValuesRequest,
    WindowDigest,
    WindowValueDigests,
    WindowValues,
)
from traincheck.trace.folder import RunFolder
from traincheck.trace.run_notes import Manifest, ProcessNote
from traincheck.trace.writer import TraceWriter
from traincheck.vocab.demand import EVERYTHING
from traincheck.vocab.events import LIVE, Window
from traincheck.vocab.facts import facts
from traincheck.vocab.invariant import Invariant

STEPS = 30
WEIGHTS = ("layers.0.weight", "layers.1.weight")


def updates(rank: int, steps: int = STEPS, *, differs_from: int = 0) -> list[Window]:
    """The windows of a rank that holds what all hold, and from a step on, if given, something else of one weight."""

    def value(name: str, step: int) -> int:
        away = 500_000 if differs_from and step >= differs_from and name == WEIGHTS[1] else 0
        return 1000 * step + WEIGHTS.index(name) + away

    script = Script(rank=rank)
    context = facts(kind="parameter", before="some", requires_grad=True, held="this", owned=True, tied=False)
    for step in range(1, steps + 1):
        script.window().step(
            *(("parameter.used_data", name, value(name, step - 1), LIVE, context) for name in WEIGHTS),
            *(("parameter.used_grad", name, value(name, step) + 7, LIVE, context) for name in WEIGHTS),
            changes=[{"variable": name, "context": context, "fingerprint": value(name, step)} for name in WEIGHTS],
        )
    return script.windows


def learned(trained: Callable[[int], list[Window]] = updates, *, steps: int = STEPS) -> Book:
    """Return the rules of three good runs of two ranks; `trained` gives their windows."""
    tallies = []
    for run in range(3):
        tally = Tally(f"train{run}.py", str(run), str(run))
        tally_ranks([trained(0), trained(1)], tally)
        tally.steps = steps
        tallies.append(tally)
    book, _ = select_rules(tallies)
    assert book.invariants
    return book


def recorded(home: Path, ranks: Mapping[int, Sequence[Window]], rules: Sequence[Invariant]) -> RankComparison:
    """Return the findings of these windows in files."""
    run = RunFolder.create(home / "recorded", Manifest(script="train.py"))
    for rank, windows in ranks.items():
        run.write_note(ProcessNote(rank=rank, process=100 + rank, world_size=len(ranks), job="job"))
        with TraceWriter(run.path, rank, 100 + rank) as writer:
            for window in windows:
                writer.write(window)
    ((comparison,),) = compare_recorded(run, [rules])
    return comparison


def seen(compared: RankComparison) -> list[tuple[object, ...]]:
    """Return the violations, step by step."""
    return [
        (
            violation.step,
            violation.invariant.id,
            violation.occasions,
            violation.variables,
            violation.note,
            violation.differing,
        )
        for violation in compared.outcome.violations
    ]


def wait_for(condition: Callable[[], object], seconds: float = 30) -> None:
    """Wait until it is so."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come"
        time.sleep(0.005)


def our_threads() -> list[str]:
    """The threads of an exchange that run."""
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("traincheck-")]


def _answer(request: ValueDigestsRequest | ValuesRequest, window: Window | None) -> Message:
    if isinstance(request, ValueDigestsRequest):
        digests = None if window is None else value_digests(window, request.sections)
        return WindowValueDigests(request.number, digests)
    return WindowValues(request.number, None if window is None else selected(window, request.selection))


class Peer:
    """A rank at the other end of a connection. `answers` returns the window of an index."""

    def __init__(self, rank: int, port: int, word: str, answers: Callable[[int], Window | None] | None = None) -> None:
        self.line = Connection(socket.create_connection(("127.0.0.1", port), 10))
        self.heard: list[Message] = []
        self._answers = answers
        self.line.send(Hello(rank, word))
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    def tell(self, windows: Iterable[Window], *, end: bool = False) -> None:
        for window in windows:
            self.line.send(WindowDigest(lean(window, EVERYTHING)))
        if end:
            self.line.send(Ended())

    @property
    def is_connected(self) -> bool:
        return self._thread.is_alive()

    def close(self) -> None:
        self.line.close()
        self._thread.join(30)

    def _listen(self) -> None:
        with suppress(OSError):
            while True:
                message = self.line.receive()
                self.heard.append(message)
                if isinstance(message, ValueDigestsRequest | ValuesRequest) and self._answers is not None:
                    self.line.send(_answer(message, self._answers(message.index)))
