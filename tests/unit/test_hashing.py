"""Tests that hashing on several threads gives the result of one thread, and survives forks and interrupts."""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Iterator

import pytest
import torch
import xxhash

from observed_process import observing
from traincheck.background_threads import NAME
from traincheck.sources.tensors import hashing
from traincheck.sources.tensors.hashing import PARALLEL_BYTES, Memory, digests
from traincheck.sources.tensors.reading import fingerprints


@pytest.fixture(autouse=True)
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)
    hashing.stop_threads()


def memories(sizes: list[int]) -> list[Memory]:
    tensors = [torch.randint(0, 255, (size,), dtype=torch.uint8) for size in sizes]
    return [Memory(tensor.data_ptr(), tensor.numel(), seed, tensor) for seed, tensor in enumerate(tensors)]


def test_each_is_the_digest_of_its_own_bytes() -> None:
    chunks = memories([random.Random(number).randrange(PARALLEL_BYTES // 4) for number in range(40)])
    assert sum(chunk.size for chunk in chunks) > PARALLEL_BYTES
    assert digests(chunks) == [xxhash.xxh3_64_intdigest(bytes(chunk.owner.tolist()), chunk.seed) for chunk in chunks]  # type: ignore[attr-defined]
    assert any(thread.name.startswith(f"{NAME}-hashing") for thread in threading.enumerate())


def test_two_threads_may_hash_at_the_same_time() -> None:
    chunks = memories([PARALLEL_BYTES // 8] * 16)
    expected, results = [hashing.digest(chunk) for chunk in chunks], []

    def ask() -> None:
        results.extend(digests(chunks) == expected for _ in range(20))

    threads = [threading.Thread(target=ask) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [True] * 60


def test_an_error_in_a_thread_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    chunks = memories([PARALLEL_BYTES] * 4)
    digest = hashing.digest

    def failing(memory: Memory) -> int:
        if memory.seed == 2:
            raise MemoryError
        return digest(memory)

    monkeypatch.setattr(hashing, "digest", failing)
    with pytest.raises(MemoryError):
        digests(chunks)
    monkeypatch.undo()
    assert digests(chunks) == [digest(chunk) for chunk in chunks], "the threads are still there"


def test_an_interrupt_is_raised_when_the_others_have_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    chunks = memories([PARALLEL_BYTES] * 2)
    alive = [threading.Event(), threading.Event()]
    digest, main = hashing.digest, threading.get_ident()

    def slow(memory: Memory) -> int:
        if threading.get_ident() == main:
            alive[0].wait(10)
            raise KeyboardInterrupt
        alive[0].set()
        alive[1].wait(10)
        return digest(memory)

    monkeypatch.setattr(hashing, "digest", slow)
    threading.Timer(0.2, alive[1].set).start()
    with pytest.raises(KeyboardInterrupt):
        digests(chunks)
    assert alive[1].is_set()


def test_no_thread_stays_when_observation_ends() -> None:
    before = threading.enumerate()
    model = torch.nn.Linear(2048, 2048)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    with observing() as seen:
        for _ in range(2):
            optimizer.zero_grad()
            model(torch.ones(1, 2048)).sum().backward()
            optimizer.step()
        meanwhile = [thread.name for thread in threading.enumerate() if thread not in before]
    assert seen.faults == [] and meanwhile == [f"{NAME}-hashing"]
    assert threading.enumerate() == before


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_a_forked_child_has_threads_of_its_own() -> None:
    chunks = [torch.randn(PARALLEL_BYTES // 4) for _ in range(4)]
    before = fingerprints(chunks)
    child = os.fork()
    if child == 0:
        os._exit(0 if fingerprints(chunks) == before else 1)
    assert os.waitpid(child, 0)[1] == 0
