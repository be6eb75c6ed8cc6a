"""Determinism: the settings of a process under which torch computes the same bits each time."""

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
"""What torch says of an operation that has none."""


def settle(seed: int, threads: int) -> dict[str, str]:
    """Settle all that is known to make a difference between two runs, and tell it: setting and value.

    Seeds are those of `random`, numpy (where it is imported) and torch on all devices. An operation that has no
    deterministic implementation gives a warning (`undetermined` collects them) and no error: it is for the comparison
    to say whether it makes a difference.
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
def undetermined() -> Iterator[list[str]]:
    """Collects the names of operations of which torch says in the block that they are not deterministic."""
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
