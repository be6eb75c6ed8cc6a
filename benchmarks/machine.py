"""Describes the machine and the library versions of a measurement."""

from __future__ import annotations

import os
import platform
from importlib.metadata import version

from traincheck.version import __version__


def machine() -> dict[str, object]:
    """Return processor architecture, cores, Python version and the versions of the main packages."""
    return {
        "processor": platform.machine(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        **{name: version(name) for name in ("torch", "pyarrow")},
        "traincheck": __version__,
    }
