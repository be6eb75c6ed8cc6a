"""The page of the results: docs/sdc-detection.md, and the summary in a terminal."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

PAGE = Path(__file__).resolve().parents[2] / "docs" / "sdc-detection.md"


def summary(result: Mapping[str, Any]) -> str:
    """A line for each detector."""
    lines = []
    for name, one in result["detectors"].items():
        lines.append(f"{name}: {one}")
    return "\n".join(lines)


def write_page(result: Mapping[str, Any]) -> None:
    """Write docs/sdc-detection.md anew."""
