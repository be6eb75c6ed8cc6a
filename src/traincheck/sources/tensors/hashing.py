"""Hashing: xxh3-64 of the memory of tensors, by several threads where it is much.

One core reads some 10 GB/s from memory, several read several times that; xxhash gives the interpreter's lock back
meanwhile. We only do so while the program's own thread waits for us, and take no more threads than torch may.
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

MUCH = 4 << 20
"""Bytes in all from which on it is worth to wake a thread (0.4 ms to read them, some 30 µs to wake it)."""

MOST_THREADS = 8
"""Beyond that the memory is the limit, not the cores."""

END_SECONDS = 1.0
"""How long the end waits for a thread; one that reads ends soon."""


class Memory(NamedTuple):
    """Memory to be read. It stays while `owner` does: an interrupt may end the waiting of the one who asked."""

    begins: int
    size: int
    seed: int
    owner: object


_SIZE = itemgetter(Memory._fields.index("size"))


def digest(memory: Memory) -> int:
    """The xxh3-64 of it; of none the seed."""
    if memory.size == 0:
        return memory.seed
    # A view of the memory itself: no copy, no numpy, and it works for bfloat16 as for any other dtype.
    view = (ctypes.c_char * memory.size).from_address(memory.begins)
    found: int = xxhash.xxh3_64_intdigest(view, memory.seed)
    return found


class Done:
    """What was hashed so far in this process: bytes, and the seconds in which somebody waited for it."""

    def __init__(self) -> None:
        self.size = 0
        self.seconds = 0.0


done = Done()


def digests(memories: Sequence[Memory]) -> list[int]:
    """One for each, in their order."""
    began = time.perf_counter()
    size = sum(map(_SIZE, memories))
    if len(memories) < 2 or size < MUCH or (threads := _threads()) < 2:
        found = list(map(digest, memories))
    else:
        found = _crew.work_off(memories, threads)
    done.size += size
    done.seconds += time.perf_counter() - began
    return found


def _threads() -> int:
    """How many threads may read at a time: as many as torch takes for one operation."""
    found: int = torch.get_num_threads()
    return min(found, MOST_THREADS)


class _Task:
    """Memory that is read by whoever has time, the largest first."""

    def __init__(self, memories: Sequence[Memory]) -> None:
        self._memories = memories
        self._found = [0] * len(memories)
        self._failed: list[BaseException] = []
        self._left = sorted(range(len(memories)), key=lambda place: memories[place].size)
        self._done = threading.Semaphore(0)

    def work(self) -> None:
        """Take part until nothing is left to be taken."""
        left, memories, found = self._left, self._memories, self._found
        while True:
            try:
                place = left.pop()  # one of those calls that no thread interrupts
            except IndexError:
                return
            try:
                found[place] = digest(memories[place])
            except BaseException as error:
                self._failed.append(error)
            finally:
                self._done.release()

    def wait(self) -> list[int]:
        """All that was found, once the last one is. Raises what kept anyone from it, an interrupt too."""
        for _ in self._memories:
            self._done.acquire()
        if self._failed:
            raise self._failed[0]
        return self._found


class _Crew:
    """Threads that wait for a task, asleep until there is one, or until they are dismissed."""

    def __init__(self) -> None:
        self._hire_none()

    def _hire_none(self) -> None:
        self._tasks: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []

    def work_off(self, memories: Sequence[Memory], threads: int) -> list[int]:
        """With this thread among them; with it alone where there can be no others."""
        task = _Task(memories)
        with suppress(RuntimeError):  # no more threads
            while len(self._threads) < threads - 1:
                self._threads.append(background(self._serve, f"{NAME}-hashing", self._tasks))
        for _ in range(min(threads - 1, len(self._threads))):
            self._tasks.put(task.work)
        task.work()
        return task.wait()

    def dismiss(self) -> None:
        """End the threads; the next task finds others."""
        tasks, threads = self._tasks, self._threads
        self._hire_none()
        for _ in threads:
            tasks.put(None)
        for thread in threads:
            thread.join(END_SECONDS)

    def forget(self) -> None:
        """In a forked child: the threads are gone."""
        self._hire_none()

    @staticmethod
    def _serve(tasks: queue.SimpleQueue[Callable[[], None] | None]) -> None:
        while (work := tasks.get()) is not None:
            work()


_crew = _Crew()
dismiss = _crew.dismiss
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_crew.forget)
