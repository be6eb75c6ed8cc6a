"""Pair: two workers that execute the same training, and how the suspect one is told what the trusted one has computed.

Each worker may be a host of N ranks: those below N are the trusted host, and rank i of it makes a pair with rank i of
the suspect one. All goes from the trusted rank of a pair to the suspect one, which compares: so neither waits for an
answer within a step. Over gloo and through the CPU's memory, whatever the device: the way itself is not what is
studied.
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
"""A trusted and a suspect one."""
LEADER = 0
"""The rank that is asked whether to go on, and that tells what was found."""

CLOSING_SECONDS = 0.5
"""Threads of gloo that are still ending abort an interpreter that has ended."""


class Pair:
    """This rank's side, of both its pair and its host."""

    def __init__(self, rank: int, size: int = 1) -> None:
        """`rank` counts over both hosts; each host has `size` ranks."""
        self.rank, self.size, self.trusted = rank, size, rank < size
        self.host = Host(rank % size, size)
        self._partner, self._group = rank % size, None

    def create_groups(self) -> None:
        """The groups in which hosts reduce and pairs compare; each rank is to make each of them."""
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
        """The trusted worker's value, on the CPU, on both of them.

        Raises NotTheSameWork where the suspect is about to compare another thing than the trusted one.
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
        """Raises NotTheSameWork where a number is not the same on both."""
        received = torch.tensor([value], dtype=torch.int64)
        broadcast(received, self._partner, group=self._group)
        if int(received) != value:
            raise NotTheSameWork(name)

    def _agree(self, name: str) -> None:
        self.check_same(name, zlib.crc32(name.encode()))

    def agree_to_continue(self, proceed: bool) -> bool:
        """Whether to go on, as the leader wants it."""
        decision = torch.tensor([int(proceed)])
        broadcast(decision, LEADER)
        return bool(decision)

    def gather(self, value: Any) -> list[Any]:
        """What each rank has to say, by rank, on all. It is JSON: nothing that is received is executed."""
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
        """All have come to the end."""
        barrier()
        dist.destroy_process_group()
        time.sleep(CLOSING_SECONDS)
