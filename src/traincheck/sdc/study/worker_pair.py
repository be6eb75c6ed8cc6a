"""Connect the trusted and the suspect worker of a study, and send trusted values to the suspect.

Each worker may be a host of N ranks. Ranks below N are the trusted host; its rank i is paired with rank i of the
suspect host. Data flows only from the trusted rank to the suspect rank, which compares, so neither waits for an answer
within a step. Transfers use gloo and CPU memory on every device: the study does not test the transfer.
"""

from __future__ import annotations

import json
import time
import zlib
from typing import Any

import torch
import torch.distributed as dist

# By name, now: a fault that is injected into communication hits the workload's collectives, not ours.
from torch.distributed import barrier, broadcast, new_group

from traincheck.errors import NotTheSameWork
from traincheck.sdc.study.host import Host

HOSTS = 2
"""The trusted and the suspect host."""
LEADER = 0
"""The rank that decides whether to continue, and that reports the results."""

CLOSING_SECONDS = 0.5
"""Gloo threads that are still ending can abort an interpreter that exits earlier."""


class Pair:
    """The connection of this rank to its pair and its host."""

    def __init__(self, rank: int, size: int = 1) -> None:
        """`rank` counts over both hosts; each host has `size` ranks."""
        self.rank, self.size, self.trusted = rank, size, rank < size
        self.host = Host(rank % size, size)
        self._partner, self._group = rank % size, None

    def create_groups(self) -> None:
        """Create the process groups of hosts and pairs; every rank must create each of them."""
        if self.size == 1:
            return
        for first in (0, self.size):
            made = new_group(range(first, first + self.size), backend="gloo")
            if first <= self.rank < first + self.size:
                self.host.group = made
        for rank in range(self.size):
            made = new_group([rank, self.size + rank], backend="gloo")
            if rank == self._partner:
                self._group = made

    def trusted_value(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        """Return the trusted worker's value, on the CPU, on both workers.

        Raises NotTheSameWork if the suspect is about to compare another tensor.
        """
        self._agree(f"{name} of shape {tuple(tensor.shape)} and {tensor.dtype}")
        here = tensor.detach().to("cpu").contiguous()
        if here.numel() == 0:
            return here
        if not self.trusted:
            here = torch.empty_like(here)
        # As bytes: gloo does not know every type.
        broadcast(here.reshape(-1).view(torch.uint8), self._partner, group=self._group)
        return here

    def check_same(self, name: str, value: int) -> None:
        """Raise NotTheSameWork if the number differs between the workers."""
        received = torch.tensor([value], dtype=torch.int64)
        broadcast(received, self._partner, group=self._group)
        if int(received) != value:
            raise NotTheSameWork(name)

    def _agree(self, name: str) -> None:
        self.check_same(name, zlib.crc32(name.encode()))

    def agree_to_continue(self, proceed: bool) -> bool:
        """Return the leader's decision on whether to continue."""
        decision = torch.tensor([int(proceed)])
        broadcast(decision, LEADER)
        return bool(decision)

    def gather(self, value: Any) -> list[Any]:
        """Return the values of all ranks, by rank, on each of them. Values travel as JSON: received data is never
        executed."""
        return [self._broadcast_from(rank, value) for rank in range(HOSTS * self.size)]

    def _broadcast_from(self, rank: int, value: Any) -> Any:
        text = json.dumps(value).encode() if self.rank == rank else b""
        size = torch.tensor([len(text)])
        broadcast(size, rank)
        data = torch.zeros(int(size), dtype=torch.uint8)
        if text:
            data = torch.frombuffer(bytearray(text), dtype=torch.uint8)
        broadcast(data, rank)
        return json.loads(bytes(data.tolist()))

    def close(self) -> None:
        """Wait for all ranks and end the connection."""
        barrier()
        dist.destroy_process_group()
        time.sleep(CLOSING_SECONDS)
