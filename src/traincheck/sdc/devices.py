"""Devices: those that are there, by name, and what makes results of two of them comparable."""

from __future__ import annotations

import torch

from traincheck.errors import BadOption


def device_of(text: str, option: str = "--device") -> torch.device:
    """The device; raises BadOption for a name that is none, and for one that is not there."""
    try:
        found = torch.device(text)
    except RuntimeError:
        raise BadOption(option, text, "the name of a device, such as cpu, cuda or cuda:1") from None
    try:
        torch.empty(1, device=found)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        why = str(error).strip().splitlines()[0]
        raise BadOption(option, text, f"a device that is here ({why}); cpu always is") from None
    return found
