"""Make torch compute the same bits in each run of a process."""

from __future__ import annotations

import os
import random
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from traincheck.sdc.environment import DETERMINISTIC

NOT_DETERMINISTIC = "does not have a deterministic implementation"
"""The text of torch's warning for an operation without a deterministic implementation."""


def make_deterministic(seed: int, threads: int) -> dict[str, str]:
    """Set everything that is known to change results between runs, and return the settings by name.

    This seeds `random`, numpy (if imported) and torch on all devices. An operation without a deterministic
    implementation warns instead of raising; `nondeterministic_operations` collects the warnings. The comparison of
    results decides whether the operation matters.
    """
    random.seed(seed)
    numpy_random = sys.modules.get("numpy.random")
    if numpy_random is not None:
        numpy_random.seed(seed % 2**32)
    torch.manual_seed(seed)
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.backends.cudnn.benchmark = False
    torch.backends.cudnn.deterministic = True
    settings = {
        "seeds of random, numpy and torch": str(seed),
        "torch.set_num_threads": str(threads),
        "torch.use_deterministic_algorithms": "True",
        "torch.backends.cudnn.benchmark": "False",
        "torch.backends.cudnn.deterministic": "True",
    }
    return settings | {name: os.environ[name] for name in DETERMINISTIC if name in os.environ}


@contextmanager
def nondeterministic_operations() -> Iterator[list[str]]:
    """Collect the names of operations that torch reports as nondeterministic within the block."""
    names: list[str] = []
    with warnings.catch_warnings():
        warnings.filterwarnings("always", message=f".*{NOT_DETERMINISTIC}")
        shown = warnings.showwarning

        def show(message: Warning | str, *args: object, **kwargs: object) -> None:
            if NOT_DETERMINISTIC in str(message):
                name = str(message).split(NOT_DETERMINISTIC)[0].strip()
                if name not in names:
                    names.append(name)
            else:
                shown(message, *args, **kwargs)  # type: ignore[arg-type]

        warnings.showwarning = show
        yield names
