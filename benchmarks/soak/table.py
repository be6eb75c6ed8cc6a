"""The table of the soak benchmark, from its data."""

from __future__ import annotations

from typing import Any

PLAIN = "plain"


def text(found: dict[str, Any]) -> str:
    """The figures as a table in Markdown."""
    lines = [
        "| program | mode | memory after 5%, at the end | growth | largest run folder | step time, first third, last |",
        "|---|---|---|---|---|---|",
    ]
    for name, of_workload in found["workloads"].items():
        for mode, one in of_workload["modes"].items():
            memory, ratio = one["memory_mb"], one["ratio"]
            disk = f"{one['most_bytes'] / 1e6:,.1f} MB" if mode != PLAIN else "-"
            cost = (
                f"{ratio['early']:.2f}x, {ratio['late']:.2f}x" if mode != PLAIN else f"{one['step_ms']['early']:.2f} ms"
            )
            steps = of_workload["steps"]
            lines.append(
                f"| {name}, {steps:,} steps | `{mode}` | {memory['warm']:.1f} MB, {memory['end']:.1f} MB "
                f"| {memory['end'] - memory['warm']:+.1f} MB | {disk} | {cost} |"
            )
    return "\n".join(lines) + "\n"
