"""Times the steps of a workload, and writes them, and their median and mean, to the file BENCH_OUT.

BENCH_STEPS is the number of steps of a run.
"""

import json
import os
import statistics
import time
from pathlib import Path


class Clock:
    """Call `tick()` at the end of each step; `write_times()` once at the end."""

    def __init__(self, warm_up=10):
        self.warm_up = warm_up
        self.times = []
        self.last = time.perf_counter()

    def steps(self, usual):
        """The number of steps of this run; `usual` without a request."""
        return int(os.environ.get("BENCH_STEPS", usual))

    def tick(self):
        now = time.perf_counter()
        self.times.append(now - self.last)
        self.last = now

    def write_times(self, **others):
        with Path(os.environ["BENCH_OUT"]).open("w") as out:
            times = self.times[self.warm_up :]
            summary = {"median_step": statistics.median(times), "mean_step": statistics.fmean(times)}
            json.dump({**summary, "steps": len(self.times), "times": self.times, **others}, out)
