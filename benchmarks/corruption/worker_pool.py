"""Run trainings and screenings in worker processes."""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from typing import Any

from benchmarks.corruption.grid import Point

ALARMS, SCREENING = "alarms", "screening"


def spread(tasks: Sequence[tuple[str, Point]], jobs: int) -> Iterator[tuple[str, Point, dict[str, Any]]]:
    """Yield the outcome of each task as it ends. With one job, run the tasks in this process."""
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
    """Ignore Ctrl-C: the main process handles it, and running tasks end normally."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def run_point(group: str, point: Point) -> dict[str, Any]:
    """Train or screen a point in this process."""
    from benchmarks.corruption import alarm_training, screening  # imported late, because they import torch

    work: Callable[[Point], dict[str, Any]] = alarm_training.train if group == ALARMS else screening.screen
    return work(point)
