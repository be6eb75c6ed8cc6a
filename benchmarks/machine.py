"""Describes the machine and the library versions of a measurement."""

from __future__ import annotations

import os
import platform
from importlib.metadata import version


def machine() -> dict[str, object]:
    """Processor architecture, cores, Python and the versions that matter."""
    return {
        "processor": platform.machine(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        **{name: version(name) for name in ("torch", "pyarrow", "traincheck")},
    }
