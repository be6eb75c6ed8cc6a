"""Hashes the memory of tensors by xxh3-64, on several threads for large amounts.

One core reads about 10 GB/s from memory, several cores read a multiple of that, and xxhash releases the GIL meanwhile.
TrainCheck uses threads only while the thread of the program waits for the result, and no more than torch may use.
"""

from __future__ import annotations

import ctypes
import os
import queue
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from operator import itemgetter
from typing import NamedTuple

import torch
import xxhash

from traincheck.background_threads import NAME, background

PARALLEL_BYTES = 4 << 20
"""Total bytes from which extra threads pay off: 0.4 ms to read them, about 30 µs to wake a thread."""

MAX_THREADS = 8
"""With more threads, memory bandwidth is the limit."""

JOIN_SECONDS = 1.0
"""How long `stop_threads` waits for each thread."""


class Memory(NamedTuple):
    """Memory to be hashed. `owner` keeps it alive, because an interrupt may end the wait of the caller."""

    address: int
    size: int
    seed: int
    owner: object


_SIZE = itemgetter(Memory._fields.index("size"))


def digest(memory: Memory) -> int:
    """The xxh3-64 of some memory; of empty memory the seed."""
    if memory.size == 0:
        return memory.seed
    # A view of the memory itself: no copy, no numpy, and it works for bfloat16 as for any other dtype.
    view = (ctypes.c_char * memory.size).from_address(memory.address)
    value: int = xxhash.xxh3_64_intdigest(view, memory.seed)
    return value


class HashingTotals:
    """The bytes hashed in this process, and the seconds that callers waited for it."""

    def __init__(self) -> None:
        self.size = 0
        self.seconds = 0.0


totals = HashingTotals()


def digests(memories: Sequence[Memory]) -> list[int]:
    """The digest of each memory, in order."""
    began = time.perf_counter()
    size = sum(map(_SIZE, memories))
    if len(memories) < 2 or size < PARALLEL_BYTES or (threads := _thread_count()) < 2:
        values = list(map(digest, memories))
    else:
        values = _pool.run(memories, threads)
    totals.size += size
    totals.seconds += time.perf_counter() - began
    return values


def _thread_count() -> int:
    """How many threads may read at a time: as many as torch uses for one operation."""
    allowed: int = torch.get_num_threads()
    return min(allowed, MAX_THREADS)


class _Task:
    """Memories that several threads hash together, the largest first."""

    def __init__(self, memories: Sequence[Memory]) -> None:
        self._memories = memories
        self._digests = [0] * len(memories)
        self._failed: list[BaseException] = []
        self._remaining = sorted(range(len(memories)), key=lambda index: memories[index].size)
        self._done = threading.Semaphore(0)

    def work(self) -> None:
        """Take part until no memory remains."""
        remaining, memories, values = self._remaining, self._memories, self._digests
        while True:
            try:
                index = remaining.pop()  # atomic under the GIL
            except IndexError:
                return
            try:
                values[index] = digest(memories[index])
            except BaseException as error:
                self._failed.append(error)
            finally:
                self._done.release()

    def wait(self) -> list[int]:
        """Return all digests, once the last is computed. Raises what a thread raised, including an interrupt."""
        for _ in self._memories:
            self._done.acquire()
        if self._failed:
            raise self._failed[0]
        return self._digests


class _ThreadPool:
    """Threads that sleep until there is a task, or until they are stopped."""

    def __init__(self) -> None:
        self._reset()

    def _reset(self) -> None:
        self._tasks: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []

    def run(self, memories: Sequence[Memory], threads: int) -> list[int]:
        """Hash by this thread and others; by this thread alone if no other can be started."""
        task = _Task(memories)
        with suppress(RuntimeError):  # the process cannot start more threads
            while len(self._threads) < threads - 1:
                self._threads.append(background(self._serve, f"{NAME}-hashing", self._tasks))
        for _ in range(min(threads - 1, len(self._threads))):
            self._tasks.put(task.work)
        task.work()
        return task.wait()

    def stop_threads(self) -> None:
        """End the threads. The next task starts new ones."""
        tasks, threads = self._tasks, self._threads
        self._reset()
        for _ in threads:
            tasks.put(None)
        for thread in threads:
            thread.join(JOIN_SECONDS)

    def forget(self) -> None:
        """Drop the threads in a forked child, where they do not exist."""
        self._reset()

    @staticmethod
    def _serve(tasks: queue.SimpleQueue[Callable[[], None] | None]) -> None:
        while (work := tasks.get()) is not None:
            work()


_pool = _ThreadPool()
stop_threads = _pool.stop_threads
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_pool.forget)
