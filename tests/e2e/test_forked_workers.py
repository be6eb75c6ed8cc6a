"""Forked workers of data loaders report their random states and give the same batches."""

from __future__ import annotations

import gc
import multiprocessing
import os
import random
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset, get_worker_info

import warm_commands
from observed_process import Seen, observing
from traincheck.sources.data import loader_workers
from traincheck.vocab.demand import Demand

NEXT = "torch.utils.data.DataLoader.__next__"
STREAMS = ("random.python", "random.numpy", "random.torch")
DEMAND = Demand.of_readings(*("worker." + name for name in loader_workers.ATTRIBUTES))

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="workers are forked")


class Noise(Dataset[torch.Tensor]):
    """Draws from every random stream, and from its own generator if it has one."""

    def __init__(self, count: int = 12, own: Any = None) -> None:
        self.count = count
        self.own = own

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> torch.Tensor:
        drawn = [float(index), random.random(), np.random.rand(), torch.rand(1).item()]
        if isinstance(self.own, torch.Generator):
            drawn.append(torch.rand(1, generator=self.own).item())
        elif self.own is not None:
            drawn.append(self.own.random())
        return torch.tensor(drawn)


def same_numpy(worker: int) -> None:
    np.random.seed(0)


def states(seen: Seen, attribute: str) -> dict[str, list[object]]:
    """The states of each worker, in order."""
    assert seen.faults == [] and seen.missing == []
    values = defaultdict(list)
    for window in seen.windows:
        for reading in window.readings:
            if (reading.kind, reading.attribute) == ("worker", attribute):
                values[reading.variable].append(reading.value)
    return dict(values)


def missed(seen: Seen) -> list[str]:
    """Return the reasons for unobserved events."""
    (recorder,) = {source._recorder for source in seen.sources if source.name == "loaders"}  # type: ignore[attr-defined]
    return recorder.unobservable  # type: ignore[no-any-return]


def observed(loader: DataLoader[Any], passes: int = 1) -> Seen:
    torch.manual_seed(0)
    with observing(DEMAND) as seen:
        for _ in range(passes):
            for _ in loader:
                pass
    return seen


def rounds(seen: Seen, attribute: str) -> list[set[object]]:
    """The k-th states of all workers, for each k."""
    return [set(round_) for round_ in zip(*states(seen, attribute).values(), strict=True)]


# -- what is told ----------------------------------------------------------------------------------------------------


def test_workers_that_torch_seeds_differ() -> None:
    seen = observed(DataLoader(Noise(), batch_size=2, num_workers=2))
    for attribute in STREAMS:
        assert list(states(seen, attribute)) == ["DataLoader#1 worker 0", "DataLoader#1 worker 1"]
        assert [len(round_) for round_ in rounds(seen, attribute)] == [2, 2, 2]
        assert len(set().union(*rounds(seen, attribute))) == 6
    assert states(seen, "random.dataset") == {}


def test_workers_with_the_same_seed_draw_the_same_numbers() -> None:
    seen = observed(DataLoader(Noise(), batch_size=2, num_workers=2, worker_init_fn=same_numpy))
    assert [len(round_) for round_ in rounds(seen, "random.numpy")] == [1, 1, 1]
    assert len(set().union(*rounds(seen, "random.numpy"))) == 3
    assert [len(round_) for round_ in rounds(seen, "random.torch")] == [2, 2, 2]


class Chain:
    def __init__(self, *transforms: Any) -> None:
        self.transforms = list(transforms)

    def __call__(self, value: torch.Tensor) -> torch.Tensor:
        for transform in self.transforms:
            value = transform(value)
        return value


class Flip:
    def __init__(self, generator: Any) -> None:
        self.generator = generator

    def __call__(self, value: torch.Tensor) -> torch.Tensor:
        return value.flip(0) if self.generator.random() < 0.5 else value


class Flipped(Noise):
    def __init__(self, transform: Any) -> None:
        super().__init__()
        self.transform = transform

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.transform(torch.tensor([float(index), 1.0]))


MODULE_GENERATOR = np.random.default_rng(0)


class OfModule(Noise):
    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor(MODULE_GENERATOR.random())


HELD: dict[str, Callable[[], Dataset[Any]]] = {
    "numpy generator": lambda: Noise(own=np.random.default_rng(0)),
    "numpy random state": lambda: Noise(own=np.random.RandomState(0)),
    "python": lambda: Noise(own=random.Random(0)),
    "torch": lambda: Noise(own=torch.Generator()),
    "in a subset": lambda: Subset(Noise(own=np.random.default_rng(0)), range(12)),
    "in a chain of transforms": lambda: Flipped(Chain(Flip(np.random.default_rng(0)))),
    "in a module": OfModule,
    "in a closure": lambda: Flipped((lambda own: lambda value: value * own.random())(random.Random(0))),
}


@pytest.mark.parametrize("held", HELD)
def test_a_generator_that_the_data_set_holds_is_copied_into_each_worker(held: str) -> None:
    seen = observed(DataLoader(HELD[held](), batch_size=2, num_workers=2))
    assert [len(round_) for round_ in rounds(seen, "random.dataset")] == [1, 1, 1]
    assert len(set().union(*rounds(seen, "random.dataset"))) == 3


def test_an_unused_generator_is_not_reported() -> None:
    data = Noise()
    data.made_with = np.random.default_rng(0)  # type: ignore[attr-defined]
    data.of_the_system = random.SystemRandom()  # type: ignore[attr-defined]
    assert states(observed(DataLoader(data, batch_size=2, num_workers=2)), "random.dataset") == {}


@pytest.mark.filterwarnings("ignore:This DataLoader will create")
def test_states_are_reported_in_the_call_that_completes_their_round() -> None:
    seen = observed(DataLoader(Noise(), batch_size=1, num_workers=3))
    fetches = [call.seq for call in seen.named(NEXT)]
    by_fetch = defaultdict(list)
    for window in seen.windows:
        for reading in window.readings:
            by_fetch[fetches.index(reading.call)].append((reading.variable[-1], reading.attribute))
    assert list(by_fetch) == [2, 5, 8, 11]
    for reported in by_fetch.values():
        assert reported == [(str(worker), attribute) for worker in range(3) for attribute in STREAMS]


# -- loops and loaders -----------------------------------------------------------------------------------------------


def test_persistent_workers_continue() -> None:
    seen = observed(DataLoader(Noise(), batch_size=3, num_workers=2, persistent_workers=True), passes=3)
    assert [len(round_) for round_ in rounds(seen, "random.numpy")] == [2] * 6
    assert len(set().union(*rounds(seen, "random.numpy"))) == 12
    assert missed(seen) == []


def test_an_abandoned_pass_of_persistent_workers_is_reported_when_the_next_begins() -> None:
    with observing() as seen:
        loader = DataLoader(Noise(), batch_size=1, num_workers=2, persistent_workers=True)
        for number, _ in enumerate(loader, start=1):
            if number == 3:
                break
        for _ in loader:
            pass
    ends = [reading for window in seen.windows for reading in window.readings if reading.attribute == "batches"]
    assert [(reading.value, reading.context) for reading in ends] == [
        (3, (("last_batch", False),)),
        (12, (("last_batch", True),)),
    ]
    begins = [call.seq for call in seen.named("torch.utils.data.DataLoader.__iter__")]
    assert begins[0] < begins[1] < ends[0].seq < ends[1].seq
    assert [len(round_) for round_ in rounds(seen, "random.torch")] == [2] * (1 + 6)
    assert missed(seen) == []


def test_workers_restart_in_a_new_pass() -> None:
    seen = observed(DataLoader(Noise(), batch_size=3, num_workers=2, worker_init_fn=same_numpy), passes=2)
    assert [len(round_) for round_ in rounds(seen, "random.numpy")] == [1] * 4
    assert len(set().union(*rounds(seen, "random.numpy"))) == 2


def test_several_loaders_at_once() -> None:
    torch.manual_seed(0)
    with observing(DEMAND) as seen:
        same_seeds = DataLoader(Noise(), batch_size=2, num_workers=2, worker_init_fn=same_numpy)
        differing = DataLoader(Noise(), batch_size=2, num_workers=2)
        single = DataLoader(Noise(), batch_size=2)
        for _ in zip(same_seeds, differing, single, strict=True):
            pass
    streams = states(seen, "random.numpy")
    assert sorted(streams) == [f"DataLoader#{loader} worker {worker}" for loader in (1, 2) for worker in (0, 1)]
    assert streams["DataLoader#1 worker 0"] == streams["DataLoader#1 worker 1"]
    assert not set(streams["DataLoader#2 worker 0"]) & set(streams["DataLoader#2 worker 1"])
    assert all(len(values) == 3 for values in streams.values())


def test_an_epoch_left_early_records_whole_rounds() -> None:
    with observing(DEMAND) as seen:
        loader = DataLoader(Noise(), batch_size=1, num_workers=2)
        for number, _ in enumerate(loader, start=1):
            if number == 3:
                break
        list(loader)
    assert [len(values) for values in states(seen, "random.torch").values()] == [1 + 6, 1 + 6]


class Stream(IterableDataset[torch.Tensor]):
    """The second worker has less to give."""

    def __iter__(self) -> Iterator[torch.Tensor]:
        info = get_worker_info()
        for _ in range(4 if info is None or info.id == 0 else 2):
            yield torch.rand(1)


@pytest.mark.parametrize("persistent", [True, False])
def test_a_stream_may_end_earlier_in_one_worker(persistent: bool) -> None:
    loader = DataLoader(Stream(), batch_size=1, num_workers=2, persistent_workers=persistent)
    streams = states(observed(loader, passes=2), "random.torch")
    assert [len(values) for values in streams.values()] == [8, 4]
    assert not set(streams["DataLoader#1 worker 0"]) & set(streams["DataLoader#1 worker 1"])


class ReadsALoader(Noise):
    def __getitem__(self, index: int) -> torch.Tensor:
        return next(iter(DataLoader(Noise(2), batch_size=1)))  # type: ignore[no-any-return]


def test_a_loader_inside_a_worker_is_not_the_workers_own() -> None:
    seen = observed(DataLoader(ReadsALoader(), batch_size=2, num_workers=2))
    assert [len(values) for values in states(seen, "random.torch").values()] == [3, 3]


def read_a_loader(worker: int) -> None:
    list(DataLoader(Noise(5), batch_size=1))


def test_a_loader_that_a_worker_reads_to_prepare_itself_is_not_its_own_either() -> None:
    seen = observed(DataLoader(Noise(), batch_size=2, num_workers=2, worker_init_fn=read_a_loader))
    assert [len(values) for values in states(seen, "random.torch").values()] == [3, 3]
    assert missed(seen) == []


class Sometimes(Noise):
    """Draws from its generator for every other batch, which is to say in the first of two workers."""

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor(self.own.random() if index % 4 == 0 else 0.0)


def test_a_generator_that_one_worker_draws_from_has_nothing_to_be_compared_with() -> None:
    seen = observed(DataLoader(Sometimes(own=random.Random(0)), batch_size=2, num_workers=2))
    assert states(seen, "random.dataset") == {}
    assert [len(values) for values in states(seen, "random.torch").values()] == [3, 3]


class Failing(Noise):
    def __getitem__(self, index: int) -> torch.Tensor:
        if index == 5:
            raise LookupError("no such sample")
        return super().__getitem__(index)


def test_a_failing_data_set_in_a_worker_is_handled() -> None:
    with observing(DEMAND) as seen:
        batches = iter(DataLoader(Failing(), batch_size=1, num_workers=2))
        with pytest.raises(LookupError, match="no such sample"):
            for _ in batches:
                pass
        # The traceback holds the iterator; torch waits ten seconds for its workers where the collector finds it later.
        batches._shutdown_workers()  # type: ignore[attr-defined]
    assert [len(values) for values in states(seen, "random.torch").values()] == [2, 2]


@pytest.mark.slow
@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_workers_without_fork_are_reported_as_unobserved(method: str) -> None:
    with observing(DEMAND) as seen:
        batches = list(DataLoader(Noise(4), batch_size=2, num_workers=2, multiprocessing_context=method))
    assert len(batches) == 2 and states(seen, "random.torch") == {}
    assert missed(seen) == [f"workers: data loader workers started by {method} are not observed"]


def test_the_start_method_of_the_program_is_not_settled_by_asking_for_it() -> None:
    text = (
        "import multiprocessing\n"
        "from traincheck.sources.data.loader_workers import _start_method\n"
        "print(_start_method(None), multiprocessing.get_start_method(allow_none=True))\n"
        "multiprocessing.set_start_method('spawn')\n"
        "print(_start_method(None), _start_method(multiprocessing.get_context('fork')))\n"
    )
    done = warm_commands.run([sys.executable, "-c", text], check=True)
    assert done.stdout.splitlines() == [f"{multiprocessing.get_all_start_methods()[0]} None", "spawn fork"]


# -- nothing is hurt -------------------------------------------------------------------------------------------------


def descriptors() -> dict[str, str]:
    links = {}
    for entry in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # the folder that is being listed
            links[entry.name] = str(entry.readlink())
    return links


def at_rest() -> tuple[dict[str, str], int]:
    """Descriptors and number of threads once no loader's queue is being fed; its feeder takes a moment to end."""
    gc.unfreeze()  # see `observing`
    gc.collect()  # the queues of an iterator are in cycles
    for _ in range(100):
        if not any(thread.name == "QueueFeederThread" for thread in threading.enumerate()):
            break
        time.sleep(0.1)
    return descriptors(), threading.active_count()


def settled(before: tuple[dict[str, str], int]) -> bool:
    """Return whether descriptors and threads are soon as before."""
    for _ in range(100):
        if at_rest() == before:
            return True
        time.sleep(0.1)
    return False


def batches_of(loader: DataLoader[Any]) -> list[torch.Tensor]:
    torch.manual_seed(3), random.seed(3), np.random.seed(3)
    batches = [batch.clone() for _ in range(2) for batch in loader]  # what a worker hands over holds a descriptor
    return [*batches, torch.tensor([random.random(), np.random.rand(), torch.rand(1).item()])]


@pytest.mark.parametrize("arguments", [{}, {"persistent_workers": True}, {"shuffle": True, "prefetch_factor": 4}])
def test_batches_are_the_same_to_the_last_bit(arguments: dict[str, Any]) -> None:
    def program() -> list[torch.Tensor]:
        return batches_of(DataLoader(Noise(own=np.random.default_rng(1)), batch_size=2, num_workers=2, **arguments))

    expected, before = program(), at_rest()
    with observing() as seen:
        batches = program()
    assert all(map(torch.equal, batches, expected)) and len(batches) == len(expected)
    assert [len(values) for values in states(seen, "random.numpy").values()] == [6, 6]
    assert settled(before)


def test_a_full_pipe_drops_messages_without_blocking(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loader_workers.LoaderWorkers, "_receive", lambda self: None)
    with observing(DEMAND) as seen:
        count = 80_000 // loader_workers._MESSAGE.size  # more than the 65,536 bytes that a pipe holds
        assert sum(1 for _ in DataLoader(Noise(count), batch_size=1, num_workers=1)) == count
        (source,) = [source for source in seen.sources if source.name == "loaders"]
        pipe = source._workers._pipe  # type: ignore[attr-defined]
        taken = 0
        while data := pipe.read():
            taken += len(data)
    assert 0 < taken < count * loader_workers._MESSAGE.size and taken % loader_workers._MESSAGE.size == 0


def test_descriptors_that_the_program_took_over_are_left_alone(tmp_path: Path) -> None:
    with observing(DEMAND) as seen:
        loader = DataLoader(Noise(), batch_size=2, num_workers=2)
        batches = iter(loader)
        next(batches)
        (source,) = [source for source in seen.sources if source.name == "loaders"]
        theirs = []
        for end in source._workers._pipe.ends:  # type: ignore[attr-defined]
            file = (tmp_path / str(end)).open("w+b")
            os.dup2(file.fileno(), end)
            os.write(end, b"theirs")
            os.lseek(end, 0, os.SEEK_SET)
            theirs.append((file, end))
        assert sum(1 for _ in batches) == 5
    for file, end in theirs:
        assert os.read(end, 100) == b"theirs"
        os.close(end)
        file.close()


PROGRAM = """
import numpy as np, os, random, torch
from torch.utils.data import DataLoader, Dataset

class Noise(Dataset):
    def __init__(self): self.own = np.random.default_rng(0)
    def __len__(self): return 16
    def __getitem__(self, index):
        return torch.tensor([random.random(), np.random.rand(), torch.rand(1).item(), self.own.random()])

torch.manual_seed(0)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for persistent in (False, True):
    loader = DataLoader(Noise(), batch_size=4, num_workers=2, persistent_workers=persistent)
    for epoch in range(2):
        for x in loader:
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
            print(x.tolist(), model.weight.tolist())
next(iter(loader))
held = iter(loader)
next(held)
print("end")
"""


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fork", pytest.param("spawn", marks=pytest.mark.long)])
def test_a_program_with_workers_is_the_same_and_ends_cleanly(tmp_path: Path, method: str) -> None:
    main = "\n".join("    " + line for line in PROGRAM.split("torch.manual_seed(0)\n")[1].splitlines())
    head = PROGRAM.split("torch.manual_seed(0)\n")[0]
    settle = f"    torch.multiprocessing.set_start_method({method!r})\n    torch.manual_seed(0)\n"
    (tmp_path / "program.py").write_text(f"{head}\nif __name__ == '__main__':\n{settle}{main}\n")
    plain = warm_commands.run([sys.executable, "program.py"], cwd=tmp_path, timeout=300)
    command = [sys.executable, "-m", "traincheck", "collect", "-o", "run", "program.py"]
    done = warm_commands.run(command, cwd=tmp_path, timeout=300)
    assert (plain.returncode, done.returncode) == (0, 0), done.stderr
    assert plain.stdout.endswith("end\n") and done.stdout == plain.stdout
    assert "Traceback" not in done.stderr and "no longer observed" not in done.stderr, done.stderr
    assert plain.stderr == ""
    if method == "spawn":
        assert "started by spawn are not observed" in done.stdout + done.stderr + "".join(
            file.read_text() for file in (tmp_path / "run").glob("process-*.json")
        )
