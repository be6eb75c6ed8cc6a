"""Count recorded runs on a Ray cluster: each part of a run is a task, and further tasks join the counts in a tree.

Note [Ends of tasks]
Ray restarts a task if its worker or its machine was lost, and one that could not read its file, because networks fail
now and then. A task that is lost repeatedly is an error that names what it was reading.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any

from traincheck import plugins
from traincheck.errors import BadOption, MissingExtra, TraceOutOfReach, TrainCheckError, WorkerLost
from traincheck.version import __version__

INSTALL = "pip install 'traincheck[ray]'"

JOINED_AT_ONCE = 8
"""Tallies that one task joins. With fewer, the tree is deeper and each count is copied more often; with more, one
worker joins alone for longer while the others wait."""

RETRIES = 3
"""How often a lost task is restarted. A recording that ends its worker each time is too large for it."""

ANSWERS_WITHIN = 10.0
"""Seconds to wait for a connection to a cluster."""

AT_HOME = "local"
"""The address of a Ray of our own, on this machine; it ends with this process."""

ONLY_LOOPBACK = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
"""Ray reads this variable when it is imported. Switched off, its processes listen on the loopback device alone, on
every system: nothing outside this machine has to reach them."""

Installed = tuple[str, tuple[str, ...]]
"""The version of TrainCheck and the relations. If they differ, counts do."""


class RayCluster:
    """Tasks on the Ray cluster at `address`, or on a Ray of `workers` processes of this machine if it is empty.

    Use it as a context. Raises MissingExtra; BadOption for an address without a cluster, or with another TrainCheck;
    WorkerLost; and what the work raises.

    Known limitations: in a program that has imported Ray before, a Ray that starts here listens as Ray was configured
    then. A Ray that runs in the program already is used as it is, and goes on.
    """

    def __init__(self, address: str = "", workers: int = 1) -> None:
        self._address = address or os.environ.get("RAY_ADDRESS", "") or AT_HOME
        self._workers = workers
        self._ours = False

    def __enter__(self) -> RayCluster:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # otherwise Ray reports each start to its makers
        if self._address == AT_HOME:
            os.environ.setdefault(ONLY_LOOPBACK, "0")
        try:
            import ray
        except ImportError:
            raise MissingExtra("--ray", "ray", INSTALL) from None
        self._ray = ray
        if not ray.is_initialized():
            self._start()
            self._ours = True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._ours:
            self._ray.shutdown()

    def reduced(
        self,
        work: Callable[[Any], Any],
        joined: Callable[[Sequence[Any]], Any],
        groups: Sequence[Sequence[Any]],
        progress: Callable[[int, int], None],
    ) -> list[Any]:
        """For each group, `work` of each of its members, joined in a tree, in any order and grouping."""
        ray = self._ray
        again = {"max_retries": RETRIES, "retry_exceptions": [TraceOutOfReach]}
        begin = ray.remote(_run_part).options(num_returns=2, **again)
        join = ray.remote(_joined_by_group).options(**again)
        installed = _installed()
        # The largest parts start first, so that no worker is left alone with one at the end.
        parts = [(number, part) for number, group in enumerate(groups) for part in group]
        order = sorted(range(len(parts)), key=lambda index: -getattr(parts[index][1], "size", 0))
        started = {index: begin.remote(work, *parts[index], installed) for index in order}
        names = {started[index][1]: str(parts[index][1]) for index in order}
        level = [started[index][0] for index in range(len(parts))]
        del started
        while len(level) > JOINED_AT_ONCE:
            few = [level[start : start + JOINED_AT_ONCE] for start in range(0, len(level), JOINED_AT_ONCE)]
            level = [join.remote(joined, *some) for some in few]
        self._follow(names, progress)
        whole = _joined_by_group(joined, *self._results_of(level, "what was counted"))
        return [whole[number] for number in range(len(groups))]

    def _start(self) -> None:
        quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
        if self._address == AT_HOME:
            quiet |= {"num_cpus": self._workers, "include_dashboard": False}
        try:
            _check_reachable(self._address)
            self._ray.init(address=self._address, **quiet)
        except Exception as error:  # Ray raises what the layers below it do
            reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
            expected = f"the address of a running Ray cluster, as `ray start --head` prints it ({reason})"
            raise BadOption("--ray", self._address, expected) from error

    def _follow(self, names: dict[Any, str], progress: Callable[[int, int], None]) -> None:
        """Wait for all parts, and raise the error of one as soon as it fails."""
        waiting = list(names)
        while waiting:
            ready, waiting = self._ray.wait(waiting, num_returns=1)
            for reference in ready:
                self._results_of([reference], names[reference])
            progress(len(names) - len(waiting), len(names))

    def _results_of(self, references: Sequence[Any], description: str) -> list[Any]:
        exceptions = self._ray.exceptions
        try:
            return list(self._ray.get(list(references)))
        except exceptions.RayTaskError as error:
            if isinstance(error.cause, TrainCheckError):
                raise error.cause from None
            raise
        except exceptions.RayError as error:
            raise WorkerLost(description, None) from error


def _check_reachable(address: str) -> None:
    """Raise OSError if nobody listens at this host and port: Ray would retry for minutes, with a message in each."""
    host, colon, port = address.rpartition("://")[2].rpartition(":")
    if colon and port.isdigit():
        socket.create_connection((host.strip("[]"), int(port)), ANSWERS_WITHIN).close()


def _installed() -> Installed:
    return __version__, tuple(sorted(plugins.load("traincheck.relations")))


def _run_part(work: Callable[[Any], Any], number: int, part: Any, installed: Installed) -> tuple[dict[int, Any], None]:
    """`work` of a part by the number of its group, and None as a second result, which shows that it is done."""
    ours = _installed()
    if ours != installed:
        there, here = (f"TrainCheck {version} with {', '.join(names)}" for version, names in (ours, installed))
        raise BadOption("--ray", "ray", f"the same TrainCheck on all nodes; one has {there}, this one {here}")
    return {number: work(part)}, None


def _joined_by_group(joined: Callable[[Sequence[Any]], Any], *result_sets: dict[int, Any]) -> dict[int, Any]:
    """Join the results of each group."""
    groups: dict[int, list[Any]] = {}
    for results in result_sets:
        for number, done in results.items():
            groups.setdefault(number, []).append(done)
    return {number: done[0] if len(done) == 1 else joined(done) for number, done in groups.items()}
