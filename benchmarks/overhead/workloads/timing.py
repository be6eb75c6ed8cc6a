"""Times the steps of a workload, and tells them, and their median and mean, where BENCH_OUT points."""

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

    def tick(self):
        now = time.perf_counter()
        self.times.append(now - self.last)
        self.last = now

    def write_times(self, **others):
        with Path(os.environ["BENCH_OUT"]).open("w") as out:
            times = self.times[self.warm_up :]
            summary = {"median_step": statistics.median(times), "mean_step": statistics.fmean(times)}
            json.dump({**summary, "steps": len(self.times), "times": self.times, **others}, out)
