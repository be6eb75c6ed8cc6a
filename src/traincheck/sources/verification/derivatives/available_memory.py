"""How much memory an experiment may use."""

from __future__ import annotations

import os

import torch


def available_memory(device: torch.device) -> int:
    """Return the bytes on a device that nobody uses. They include those that torch keeps for later use."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return int(free) + int(torch.cuda.memory_reserved(device)) - int(torch.cuda.memory_allocated(device))
    try:
        return int(os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    except (ValueError, OSError, AttributeError):  # not on this system
        return 2 * 1024**3
