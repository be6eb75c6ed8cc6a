"""Pair: two workers that execute the same training, and how the suspect one is told what the trusted one has computed.

All goes from the trusted worker (rank 0) to the suspect one (rank 1), which compares: so neither waits for an answer
within a step. Over gloo and through the CPU's memory, whatever the device: the way itself is not what is studied.
"""

from __future__ import annotations

import json
import time
import zlib
from typing import Any

import torch
import torch.distributed as dist

# By name, now: a fault that is injected into communication hits the workload's collectives, not ours.
from torch.distributed import barrier, broadcast

from traincheck.errors import NotTheSameWork

TRUSTED, SUSPECT = 0, 1
NAMES = ("trusted", "suspect")

CLOSING_SECONDS = 0.5
"""Threads of gloo that are still ending abort an interpreter that has ended."""


class Pair:
    """This worker's side."""

    def __init__(self, rank: int) -> None:
        self.rank, self.trusted = rank, rank == TRUSTED

    def shared(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        """The trusted worker's value, on the CPU, on both of them.

        Raises NotTheSameWork where the suspect is about to compare another thing than the trusted one.
        """
        self._agree(f"{name} of shape {tuple(tensor.shape)} and {tensor.dtype}")
        here = tensor.detach().to("cpu").contiguous()
        if here.numel() == 0:
            return here
        if not self.trusted:
            here = torch.empty_like(here)
        broadcast(here.reshape(-1).view(torch.uint8), TRUSTED)  # as bytes: gloo does not know every type
        return here

    def same(self, name: str, value: int) -> None:
        """Raises NotTheSameWork where a number is not the same on both."""
        found = torch.tensor([value], dtype=torch.int64)
        broadcast(found, TRUSTED)
        if int(found) != value:
            raise NotTheSameWork(name)

    def _agree(self, name: str) -> None:
        self.same(name, zlib.crc32(name.encode()))

    def goes_on(self, wanted: bool) -> bool:
        """Whether to go on, as the trusted worker wants it."""
        found = torch.tensor([int(wanted)])
        broadcast(found, TRUSTED)
        return bool(found)

    def told(self, value: Any) -> Any:
        """What the suspect worker has to say, on both. It is JSON: nothing that is received is executed."""
        text = json.dumps(value).encode() if not self.trusted else b""
        size = torch.tensor([len(text)])
        broadcast(size, SUSPECT)
        data = torch.zeros(int(size), dtype=torch.uint8)
        if text:
            data = torch.frombuffer(bytearray(text), dtype=torch.uint8)
        broadcast(data, SUSPECT)
        return json.loads(bytes(data.tolist()))

    def close(self) -> None:
        """Both have come to the end."""
        barrier()
        dist.destroy_process_group()
        time.sleep(CLOSING_SECONDS)
