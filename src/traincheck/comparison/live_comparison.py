"""Compares a run with an earlier one while it trains, from the files that its ranks are writing.

The training processes only write their sketches. The command that started them reads these files on a thread, and
compares each step as soon as all ranks have written it. It holds one step of each file.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from traincheck.comparison.given_names import GivenName
from traincheck.comparison.run_comparison import Comparison, RunComparison, recorded_ranks, steps_in_common
from traincheck.errors import BadOption
from traincheck.trace.folder import RunFolder
from traincheck.trace.growing_files import PAUSE
from traincheck.trace.operation_files import read_operations

PATIENCE = 120.0
"""Seconds that the end of a run waits for the comparison of its last steps."""


class LiveComparison:
    """Compares the run in a folder with an earlier run, step by step, until a step has an origin.

    `on_difference` is called at most once, on the thread of the comparison. Use it as a context manager around the
    run; the results are complete afterwards. It raises nothing: `fault` says why steps were not compared.

    Known limitations: the ranks must write into one folder. Of several processes with the same rank, only one counts.
    """

    def __init__(
        self,
        earlier: Path,
        run: RunFolder,
        on_difference: Callable[[Comparison], None],
        given: Sequence[GivenName] = (),
        pause: float = PAUSE,
    ) -> None:
        self.earlier, self.given = earlier, given
        self.fault = ""
        self._run, self._on_difference, self._pause = run, on_difference, pause
        self._compared = RunComparison(given=given)
        self._over = threading.Event()
        self._abandoned = False
        self._thread = threading.Thread(target=self._compare, name="traincheck-against", daemon=True)

    @property
    def comparison(self) -> Comparison | None:
        """The result, None if no step was compared."""
        return self._compared.comparison if self._compared.steps else None

    def __enter__(self) -> LiveComparison:
        self._thread.start()
        return self

    def __exit__(self, *ended: object) -> None:
        """Compare the remaining steps, and end."""
        self._over.set()
        self._thread.join(PATIENCE)
        if self._thread.is_alive():
            self._abandoned = True
            self._fail(f"that took longer than {PATIENCE:.0f} s")
        elif not self._compared.steps and not self.fault:
            self.fault = "none of its sketched steps is sketched there"

    def _compare(self) -> None:
        try:
            ranks = [read_operations(file, self._over.is_set, self._pause) for file in self._files()]
            for own, other in steps_in_common(recorded_ranks(self.earlier), ranks):
                if self._abandoned:
                    return
                self._compared.add(own, other)
                if self._compared.different is not None:
                    self._on_difference(self._compared.different)
                    return
        except BadOption as error:
            self._fail(str(error))
        except Exception as error:  # a thread must not end silently
            self._fail(f"{type(error).__name__}: {error}")

    def _fail(self, reason: str) -> None:
        comparison = self.comparison
        self.fault = reason if comparison is None else f"none after step {comparison.steps[-1].step}: {reason}"

    def _files(self) -> tuple[Path, ...]:
        """The files of all ranks, once each rank has one. A rank that never writes one is left out at the end."""
        while True:
            last = self._over.is_set()
            files = self._run.first_operation_files()
            ranks = max((note.world_size for note in self._run.notes()), default=1)
            if last or (files and len(files) >= ranks):
                return files
            self._over.wait(self._pause)
