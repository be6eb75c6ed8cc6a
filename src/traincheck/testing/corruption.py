"""Inject computation errors into a training, as defective hardware causes them, to test whether a detector notices.

Use it to test your own detectors, and to study how sensitive a model is::

    from traincheck.testing.corruption import Fault, inject

    with inject(model, optimizer, Fault("intermittent", "backward", "*.attention", chance=0.1)) as injected:
        train(model, optimizer)
    print(injected.times, injected.hits[:3])

The same fault (including its seed) hits the same training in the same way. All hooks are removed after the block.
`parse_fault` reads a fault from a text. `docs/sdc.md` explains kinds and sites.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from traincheck.sdc.faults.fault import Fault, parse_fault

if TYPE_CHECKING:
    from traincheck.sdc.faults.inject import Injected

__all__ = ["Fault", "inject", "parse_fault"]


def inject(model: Any, optimizer: Any, fault: Fault) -> AbstractContextManager[Injected]:
    """Inject `fault` while the block trains `model` with `optimizer`; see `traincheck.sdc.faults.inject.inject`."""
    from traincheck.sdc.faults import inject as injection  # here, for it needs torch

    return injection.inject(model, optimizer, fault)
