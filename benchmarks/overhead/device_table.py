"""The cost of observation on an accelerator, as a section of docs/benchmarks.md."""

from __future__ import annotations

from typing import Any

VERIFY_EVERY, VERIFY_TARGET = 20, 200
"""Steps between the verified steps of the mode `verify`, and those of the run whose cost follows from it."""

HEAD = """
## Cost of observing on an accelerator

`python -m benchmarks.overhead --device cuda` trains language models with bf16 autocast and fused AdamW on random data.
The modes take turns, each in its own process, and every step ends with a synchronization. Mode *run* checks every step
against the shipped packs, *budget* is `run --budget 1%`, *collect* records every step, and *verify* is `run
--verify-every {every}`. The ratios are those of the median step and of the mean step. The next columns count kernels,
their time on the device, copies to the host, and calls that wait for the device, in one step. They show the plain
program, and what a mode adds to it.

| workload | mode | median step | mean step | kernels | device time | copies | waits | peak memory | findings |
|---|---|---|---|---|---|---|---|---|---|
"""

TARGET = """
From the verified steps follows the time of a run with `--verify-every {target}`: {ratios}.
"""


def text(results: dict[str, Any]) -> str:
    """The section with one row for each mode of each workload."""
    measured = {name: workload for name, workload in results["workloads"].items() if "modes" in workload}
    rows = [row for name, workload in measured.items() for row in _rows(name, workload)]
    at_target = [
        f"{workload['modes']['verify']['at_target']:.3f}x ({name})"
        for name, workload in measured.items()
        if "verify" in workload["modes"]
    ]
    verified = TARGET.format(target=VERIFY_TARGET, ratios=", ".join(at_target)) if at_target else ""
    return HEAD.format(every=VERIFY_EVERY) + "".join(rows) + verified + f"\nDevice: {results['machine']['device']}.\n"


def _rows(name: str, workload: dict[str, Any]) -> list[str]:
    plain = workload["plain_counts"]
    rows = [
        f"| {name} ({workload['parameters'] / 1e6:,.0f} M) | plain | {workload['plain_step_ms']:.1f} ms | | "
        f"{plain['kernels']:,.0f} | {plain['kernel_ms']:.1f} ms | {plain['copies_to_host']:.1f} | "
        f"{sum(plain['waits'].values()):.1f} | {workload['plain_peak_mb']:,} MB | |\n"
    ]
    for mode, figures in workload["modes"].items():
        added = figures.get("added")
        counts = (
            f"+{added['kernels']:,.0f} | {added['kernel_ms']:+.1f} ms | {added['copies_to_host']:+.1f} | "
            f"{added['waits']:+.1f}"
            if added
            else "| | | "
        )
        rows.append(
            f"| {name} | {mode} | {_ratio(figures['ratio'])} | {_ratio(figures['mean_ratio'])} | {counts} | "
            f"{figures['added_peak_mb']:+,} MB | {len(figures['findings'])} |\n"
        )
    return [*rows, *(f"| {name} | {mode} | failed | | | | | | | |\n" for mode in workload["failed"])]


def _ratio(ratio: dict[str, float]) -> str:
    return f"{ratio['median']:.3f}x ({ratio['least']:.3f}-{ratio['most']:.3f})"
