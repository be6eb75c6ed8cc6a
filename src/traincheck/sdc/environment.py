"""Environment: variables that have to stand before torch is imported, so that it computes the same each time.

Knows nothing of torch, as it is set for processes that are started, or before the import in this one.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Mapping

from traincheck.errors import MissingExtra

DETERMINISTIC: Mapping[str, str] = {
    "CUBLAS_WORKSPACE_CONFIG": ":4096:8",  # without it cuBLAS picks other kernels for streams that run side by side
    "PYTHONHASHSEED": "0",  # the order in sets of strings, by which some programs order their parameters
    "NCCL_ALGO": "Ring",  # the order in which ranks are summed
    "NCCL_LAUNCH_MODE": "GROUP",
    "MKL_CBWR": "COMPATIBLE",  # MKL's own way to the same bits, whatever the alignment of memory
}
"""Variables and what they are set to; what the user has set stays."""

INSTALL = {"torch": "pip install 'traincheck[torch]'", "jax": "pip install 'traincheck[xla]'"}


def deterministic(environ: Mapping[str, str]) -> dict[str, str]:
    """`environ` with what it lacks of `DETERMINISTIC`."""
    return {**DETERMINISTIC, **environ}


def needs_torch(feature: str) -> None:
    """Raises MissingExtra where torch is not installed. Does not import it, which takes seconds."""
    _needs(feature, "torch")


def needs_jax(feature: str) -> None:
    """The same of jax."""
    _needs(feature, "jax")


def _needs(feature: str, package: str) -> None:
    try:
        installed = importlib.util.find_spec(package) is not None
    except ImportError:
        installed = False
    except ValueError:  # it is imported already, and by no loader
        installed = True
    if not installed:
        raise MissingExtra(feature, package, INSTALL[package])


def settle_here() -> None:
    """Set the variables in this process, which has not imported torch yet."""
    os.environ.update(deterministic(os.environ))
