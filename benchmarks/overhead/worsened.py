"""Compares measured ratios with the published ones: one table, and the ratios that are worse."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.table import Table

from benchmarks.overhead.step_times import ratio_text

SHOWN = {"collect": "collect_ratio", "run": "run_ratio", "unwatched": "unwatched_ratio"}
"""By mode: the ratio of its median step."""


def is_worse(measured: Mapping[str, float], published: Mapping[str, float]) -> bool:
    """Whether a ratio is worse by more than its interval: every round was slower than every published one."""
    return measured["least"] > published["most"]


def worsened(measured: Mapping[str, Any], published: Mapping[str, Any]) -> list[str]:
    """A line for each ratio that is worse than the published one of its workload."""
    lines = []
    for workload, result in measured.items():
        for mode, figure in SHOWN.items():
            before = published.get(workload, {}).get(figure)
            if before is not None and is_worse(result[figure], before):
                lines.append(f"{workload} {mode}: {ratio_text(result[figure])}, published {ratio_text(before)}")
    return lines


def table(measured: Mapping[str, Any], published: Mapping[str, Any]) -> Table:
    """A row for each workload and mode: wall clock, TrainCheck's own meter, and what is published."""
    rows = Table("workload", "mode", "step by wall clock", "published", "own meter")
    for workload, result in measured.items():
        for mode, figure in SHOWN.items():
            before = published.get(workload, {}).get(figure)
            metered = result["where"].get(mode)
            rows.add_row(
                workload,
                mode,
                ratio_text(result[figure]),
                ratio_text(before) if before else "-",
                f"{1 + sum(metered['sources_ms'].values()) / result['plain_step_ms']:.2f}x" if metered else "-",
            )
    return rows
