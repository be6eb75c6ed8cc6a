"""Corruption: makes a training compute wrongly, as defective hardware does, to see whether it is noticed.

For tests of detectors of your own, and to study how sensitive a model is::

    from traincheck.testing.corruption import Fault, inject

    with inject(model, optimizer, Fault("bitflip", "backward", "*.attention", bit="exponent", chance=0.1)) as injected:
        train(model, optimizer)
    print(injected.times, injected.hits[:3])

The same fault (its seed is part of it) strikes the same training at the same places. No hook stays behind the block.
`parse_fault` reads a fault from a text. `docs/sdc.md` tells of kinds and sites.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from traincheck.sdc.faults.fault import Fault, parse_fault

if TYPE_CHECKING:
    from traincheck.sdc.faults.inject import Injected

__all__ = ["Fault", "inject", "parse_fault"]


def inject(model: Any, optimizer: Any, fault: Fault) -> AbstractContextManager[Injected]:
    """Have `fault` strike while the block trains `model` with `optimizer`; see
    `traincheck.sdc.faults.inject.inject`."""
    from traincheck.sdc.faults import inject as injection  # here, for it needs torch

    return injection.inject(model, optimizer, fault)
