"""The table of the soak benchmark, from its data."""

from __future__ import annotations

from typing import Any

PLAIN = "plain"


def text(results: dict[str, Any]) -> str:
    """The figures as a table in Markdown."""
    lines = [
        "| program | mode | memory after 5%, at the end | growth | largest run folder | step time, first third, last |",
        "|---|---|---|---|---|---|",
    ]
    for name, of_workload in results["workloads"].items():
        for mode, mode_result in of_workload["modes"].items():
            memory, ratio = mode_result["memory_mb"], mode_result["ratio"]
            disk = f"{mode_result['most_bytes'] / 1e6:,.1f} MB" if mode != PLAIN else "-"
            cost = (
                f"{ratio['early']:.2f}x, {ratio['late']:.2f}x"
                if mode != PLAIN
                else f"{mode_result['step_ms']['early']:.2f} ms"
            )
            steps = of_workload["steps"]
            lines.append(
                f"| {name}, {steps:,} steps | `{mode}` | {memory['warm']:.1f} MB, {memory['end']:.1f} MB "
                f"| {memory['end'] - memory['warm']:+.1f} MB | {disk} | {cost} |"
            )
    return "\n".join(lines) + "\n"
