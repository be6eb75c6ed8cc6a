"""Runs trainings and screenings that need one process each, several at a time."""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from typing import Any

from benchmarks.corruption.grid import Point

ALARMS, SCREENING = "alarms", "screening"


def spread(tasks: Sequence[tuple[str, Point]], jobs: int) -> Iterator[tuple[str, Point, dict[str, Any]]]:
    """What each task has found, as it ends; with one job in this process."""
    if jobs <= 1:
        for group, point in tasks:
            yield group, point, run_point(group, point)
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, context, initializer=_deaf) as pool:
        futures = {pool.submit(run_point, group, point): (group, point) for group, point in tasks}
        try:
            for future in as_completed(futures):
                yield (*futures[future], future.result())
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def _deaf() -> None:
    """Ctrl-C is for the process that spreads the work: what is under way here ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def run_point(group: str, point: Point) -> dict[str, Any]:
    """Train or screen one point, in this process."""
    from benchmarks.corruption import screened, trained  # here, for they import torch

    work: Callable[[Point], dict[str, Any]] = trained.train if group == ALARMS else screened.screen
    return work(point)
