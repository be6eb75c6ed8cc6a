"""Set the environment variables that torch needs before its import to compute the same bits in each run.

Imports no torch: the variables must be set before torch is imported or a process is started.
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
"""Names and values of the variables. Values that the user has set stay."""

INSTALL = {"torch": "pip install 'traincheck[torch]'", "jax": "pip install 'traincheck[xla]'"}


def deterministic(environ: Mapping[str, str]) -> dict[str, str]:
    """Return `environ`, completed with the missing variables of `DETERMINISTIC`."""
    return {**DETERMINISTIC, **environ}


def require_torch(feature: str) -> None:
    """Raise MissingExtra if torch is not installed. Does not import torch, which takes seconds."""
    _needs(feature, "torch")


def require_jax(feature: str) -> None:
    """Raise MissingExtra if jax is not installed."""
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


def set_variables() -> None:
    """Set the variables in this process, before torch is imported."""
    os.environ.update(deterministic(os.environ))
