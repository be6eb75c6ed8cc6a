"""Gauges a workload: after each block of steps it tells time and memory, and waits for the word to go on.

So runs can take turns block by block, and a slow spell of the machine falls on all of them. What it keeps does not grow
with the steps.
"""

import json
import os
import statistics
import sys
import time
from pathlib import Path


class Gauge:
    """Call `tick()` at the end of each step. `STEPS` and `BLOCK` are how many steps are made, in all and in a turn."""

    def __init__(self):
        self.steps = int(os.environ.get("SOAK_STEPS", "1000"))
        self.block = int(os.environ.get("SOAK_BLOCK", "250"))
        self.waits = os.environ.get("SOAK_TURNS") == "yes"
        self.step = 0
        self.times = []
        self.wait()
        self.last = time.perf_counter()

    def tick(self):
        now = time.perf_counter()
        self.times.append(now - self.last)
        self.step += 1
        if self.step % self.block == 0:
            self.print_figures()
            now = time.perf_counter()
        self.last = now

    def print_figures(self):
        figures = {
            "step": self.step,
            "median_ms": statistics.median(self.times) * 1e3,
            "mean_ms": statistics.fmean(self.times) * 1e3,
            "rss_kb": resident(),
        }
        self.times.clear()
        print(json.dumps(figures), flush=True)
        self.wait()

    def wait(self):
        if self.waits and not sys.stdin.readline() and self.step < self.steps:
            sys.exit("whoever gave the word is gone")


def resident():
    """Kilobytes of memory that this process holds."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") // 1024
