"""Tests the readings of data loaders: names, epochs, batches, and random states of the process."""

from __future__ import annotations

import gc
import random
import weakref
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, DistributedSampler, IterableDataset, Sampler, TensorDataset

from loops import net, sgd, stages, train, work
from observed_process import Seen, observing
from traincheck.vocab.demand import TENSORS, Demand
from traincheck.vocab.events import FUNCTION, NO_CALL, Call, Reading, TensorSummary

NEXT, ITER = "torch.utils.data.DataLoader.__next__", "torch.utils.data.DataLoader.__iter__"


def numbers(count: int = 6) -> TensorDataset:
    return TensorDataset(torch.arange(count * 2.0).view(count, 2))


def readings(seen: Seen, kind: str = "loader", attribute: str = "") -> list[Reading]:
    """Return the readings of a kind, in order."""
    assert seen.faults == []
    all_readings = [reading for window in seen.windows for reading in window.readings]
    return [reading for reading in all_readings if reading.kind == kind and attribute in ("", reading.attribute)]


def values_of(seen: Seen, attribute: str) -> list[tuple[str, object]]:
    return [(reading.variable, reading.value) for reading in readings(seen, attribute=attribute)]


def ends(seen: Seen) -> list[tuple[object, object]]:
    """Return, for each epoch, the number of fetched batches and whether the loader was exhausted."""
    return [(reading.value, dict(reading.context)["last_batch"]) for reading in readings(seen, attribute="batches")]


class Halves(Dataset[torch.Tensor]):
    """A custom data set."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((2,), index / 2)


def test_functions_inside_torch_loader_code_are_not_recorded() -> None:
    with observing() as seen:
        for data in (numbers(4), Halves()):
            for batch in DataLoader(data, batch_size=2):
                batch = batch[0]
    names = [call.name for call in seen.calls if call.kind == FUNCTION]
    assert names.count("torch.full") == 4  # of the data set; the loader stacks what it returns
    assert names.count("torch.Tensor.__getitem__") == 2  # not those of TensorDataset
    assert "torch.stack" not in names


# -- names -----------------------------------------------------------------------------------------------------------


def test_loaders_over_one_data_set_have_separate_names() -> None:
    data = numbers()
    with observing() as seen:
        first, second = DataLoader(data, batch_size=2), DataLoader(data, batch_size=3)
        for loader in (first, second, first):
            list(loader)
    assert [call.receiver for call in seen.named(ITER)] == ["DataLoader#1", "DataLoader#2", "DataLoader#1"]
    assert [call.receiver for call in seen.named(NEXT)] == 4 * ["DataLoader#1"] + 3 * ["DataLoader#2"] + 4 * [
        "DataLoader#1"
    ]


def test_iterators_that_take_turns_belong_to_their_loaders() -> None:
    with observing() as seen:
        data = numbers(4)
        list(zip(DataLoader(data, batch_size=2), DataLoader(data, batch_size=2), strict=False))
    assert [call.receiver for call in seen.named(NEXT)][:4] == ["DataLoader#1", "DataLoader#2"] * 2


class Counted(Dataset[torch.Tensor]):
    """A data set that computes its length with functions of the program and of torch."""

    requests = 0

    def __len__(self) -> int:
        self.requests += 1
        return int(torch.ones(4).sum())

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor(float(index))


def test_length_queries_of_traincheck_are_not_recorded() -> None:
    alone, data = Counted(), Counted()
    list(DataLoader(alone, batch_size=2))
    with observing() as seen:
        list(DataLoader(data, batch_size=2))
    assert values_of(seen, "dataset_size") == [("DataLoader#1", 4)]
    assert data.requests > alone.requests  # by us
    assert len(seen.named("test_loaders.Counted.__len__")) == len(seen.named("torch.Tensor.sum")) == alone.requests


def test_a_rebuilt_loader_keeps_its_name() -> None:
    with observing() as seen:
        train_data, test_data = numbers(), numbers()
        for _ in range(3):
            for data, size in ((train_data, 2), (test_data, 6), (train_data, 6)):
                list(DataLoader(data, batch_size=size))
    names = [call.receiver for call in seen.named(ITER)]
    assert names == ["DataLoader#1", "DataLoader#2", "DataLoader#3"] * 3


def test_loaders_that_live_side_by_side_never_share_a_name() -> None:
    with observing() as seen:
        data = numbers()
        loaders = [DataLoader(data, batch_size=2) for _ in range(2)]
        for _ in range(2):
            for loader in loaders:
                list(loader)
    assert [call.receiver for call in seen.named(ITER)] == ["DataLoader#1", "DataLoader#2"] * 2


def test_a_list_may_be_the_data_set() -> None:
    with observing() as seen:
        data = [torch.zeros(2) for _ in range(4)]
        list(DataLoader(data, batch_size=2))  # type: ignore[arg-type]
        list(DataLoader(data, batch_size=4))  # type: ignore[arg-type]
    assert [call.receiver for call in seen.named(ITER)] == ["DataLoader#1", "DataLoader#2"]
    assert values_of(seen, "dataset_size") == [("DataLoader#1", 4), ("DataLoader#2", 4)]


def test_an_iterator_from_before_has_no_length_to_fall_short_of() -> None:
    before = iter(DataLoader(numbers(), batch_size=2))
    next(before)
    with observing() as seen:
        assert len(list(before)) == 2
    assert {call.receiver for call in seen.named(NEXT)} == {"DataLoader"}
    assert readings(seen, attribute="batches") == []


# -- the settings of a loader -----------------------------------------------------------------------------------------


class Turned(DistributedSampler[Any]):
    """A sampler of a program."""


def test_a_loader_says_what_chooses_its_samples() -> None:
    data = numbers()
    share = {"num_replicas": 1, "rank": 0}
    loaders = [
        DataLoader(data),
        DataLoader(data, shuffle=True, batch_size=2, drop_last=True),
        DataLoader(data, sampler=Turned(data, shuffle=False, **share)),  # type: ignore[arg-type]
        DataLoader(data, batch_sampler=[[0, 1], [2]]),
    ]
    with observing() as seen:
        for loader in loaders:
            list(loader)
    samplers = [value for _, value in values_of(seen, "sampler")]
    assert samplers == ["SequentialSampler", "RandomSampler", "Turned (shuffle=False)", "list"]
    assert [value for _, value in values_of(seen, "drop_last")] == [False, True, False, False]


# -- what a loader announces, and what comes of it -------------------------------------------------------------------


def test_a_complete_epoch_is_recorded_at_its_end() -> None:
    with observing() as seen:
        loader = DataLoader(numbers(7), batch_size=2)
        for _ in range(2):
            list(loader)
    begins, last = seen.named(ITER), [call for call in seen.named(NEXT) if dict(call.result)["last_batch"]]
    assert values_of(seen, "length") == [("DataLoader#1", 4)] * 2
    assert values_of(seen, "batch_size") == [("DataLoader#1", 2)] * 2
    assert values_of(seen, "dataset_size") == [("DataLoader#1", 7)] * 2
    assert ends(seen) == [(4, True)] * 2
    assert {reading.role for reading in readings(seen, attribute="length")} == {"announced"}
    assert {reading.role for reading in readings(seen, attribute="batches")} == {"live"}
    assert [reading.call for reading in readings(seen, attribute="length")] == [call.seq for call in begins]
    assert [reading.call for reading in readings(seen, attribute="batches")] == [call.seq for call in last]
    for reading in readings(seen):
        call = next(call for call in seen.calls if call.seq == reading.call)
        assert call.seq < reading.seq < call.end


def test_an_abandoned_epoch_is_recorded_when_the_program_leaves_it() -> None:
    with observing() as seen:
        loader = DataLoader(numbers(), batch_size=2)
        for _ in loader:
            break
        torch.zeros(1).sum()
        held = iter(loader)
        next(held), next(held)
    assert ends(seen) == [(1, False), (2, False)]
    first, second = readings(seen, attribute="batches")
    assert first.call == second.call == NO_CALL
    (between,) = seen.named("torch.Tensor.sum")
    assert first.seq < between.seq < second.seq
    assert second in seen.windows[-1].readings


def test_an_iterator_without_a_fetch_is_no_epoch() -> None:
    with observing() as seen:
        iter(DataLoader(numbers(), batch_size=2))
    assert ends(seen) == []


def test_an_exhausted_iterator_records_nothing_new() -> None:
    with observing() as seen:
        batches = iter(DataLoader(numbers(2), batch_size=2))
        next(batches)
        for _ in range(3):
            assert next(batches, None) is None
    assert ends(seen) == [(1, True)]


class Stream(IterableDataset[torch.Tensor]):
    """Announces too short a length; a loader that computes it would warn."""

    def __len__(self) -> int:
        return 2

    def __iter__(self) -> Iterator[torch.Tensor]:
        return iter(torch.arange(6.0).view(6, 1))


@pytest.mark.filterwarnings("error")
def test_the_length_of_a_stream_loader_is_not_read() -> None:
    with observing() as seen:
        assert sum(1 for _ in DataLoader(Stream(), batch_size=2)) == 3
    assert values_of(seen, "length") == []
    assert values_of(seen, "dataset_size") == [("DataLoader#1", 2)]
    assert ends(seen) == [(3, True)]
    assert len(values_of(seen, "order")) == 1


class Vague(Sampler[int]):
    """Has no known length."""

    def __iter__(self) -> Iterator[int]:
        return iter(range(4))

    def __len__(self) -> int:
        raise RuntimeError("unknown")


def test_an_unknown_length_is_not_recorded() -> None:
    with observing() as seen:
        for _ in DataLoader(numbers(), sampler=Vague(), batch_size=None):
            pass
        list(DataLoader(numbers(), batch_sampler=[[0, 1], [2]]))  # type: ignore[arg-type]
    assert values_of(seen, "length") == [("DataLoader#2", 2)]
    assert values_of(seen, "batch_size") == []
    assert ends(seen) == [(4, True), (2, True)]


def test_a_data_set_that_raises_leaves_an_unfinished_pass() -> None:
    class Broken(Dataset[int]):
        def __len__(self) -> int:
            return 4

        def __getitem__(self, index: int) -> int:
            if index == 2:
                raise KeyError(index)
            return index

    with observing() as seen:
        with pytest.raises(KeyError):
            list(DataLoader(Broken(), batch_size=1))
        gc.collect()
    assert ends(seen) == [(2, False)]
    assert [call.end >= 0 for call in seen.named(NEXT)] == [True, True, False]


# -- order -----------------------------------------------------------------------------------------------------------


def orders(**arguments: Any) -> list[object]:
    """Return the orders of three epochs."""
    torch.manual_seed(0)
    with observing() as seen:
        loader = DataLoader(numbers(64), batch_size=32, **arguments)
        for _ in range(3):
            list(loader)
    return [value for _, value in values_of(seen, "order")]


def test_the_order_of_a_pass() -> None:
    fixed, shuffled = orders(), orders(shuffle=True)
    assert len(fixed) == len(shuffled) == 3
    assert len(set(fixed)) == 1
    assert len(set(shuffled)) == 3
    assert orders(shuffle=True) == shuffled
    generator = torch.Generator()

    class Again(Sampler[int]):
        def __iter__(self) -> Iterator[int]:
            generator.manual_seed(0)
            return iter(torch.randperm(64, generator=generator))

    assert len(set(orders(sampler=Again()))) == 1


def test_the_order_of_a_data_set_that_changes_its_samples_is_that_of_its_indices() -> None:
    class Noise(Dataset[torch.Tensor]):
        def __len__(self) -> int:
            return 8

        def __getitem__(self, index: int) -> torch.Tensor:
            return torch.rand(2)

    with observing() as seen:
        loader = DataLoader(Noise(), batch_size=4)
        for _ in range(2):
            list(loader)
    assert len({value for _, value in values_of(seen, "order")}) == 1
    fingerprints = [call.tensors[0].fingerprint for call in seen.named(NEXT) if call.tensors]
    assert len(set(fingerprints)) == len(fingerprints) == 4


# -- batches ---------------------------------------------------------------------------------------------------------


def first_batch(data: list[Any], demand: Demand | None = None, **arguments: Any) -> Call:
    with observing(*([demand] if demand else [])) as seen:
        next(iter(DataLoader(data, **arguments)))  # type: ignore[arg-type]
    assert seen.faults == []
    return seen.named(NEXT)[0]


def test_the_tensors_of_a_batch() -> None:
    sample = {"images": torch.ones(3, 2), "target": (torch.tensor(1), [torch.zeros(2), "text"])}
    call = first_batch([sample] * 4, batch_size=4)
    assert [tensor._replace(fingerprint=None, facts=()) for tensor in call.tensors] == [
        TensorSummary("result[images]", "float32", (4, 3, 2)),
        TensorSummary("result[target][0]", "int64", (4,)),
        TensorSummary("result[target][1][0]", "float32", (4, 2)),
    ]
    assert len({tensor.fingerprint for tensor in call.tensors} - {None}) == 3
    assert [dict(tensor.facts)["zero"] for tensor in call.tensors] == [False, False, True]
    assert ("finite", True) in call.tensors[0].facts
    again, other = (
        first_batch([{"images": torch.full((3, 2), value)}] * 4, batch_size=4).tensors[0] for value in (1.0, 2.0)
    )
    assert again.fingerprint == call.tensors[0].fingerprint != other.fingerprint


def test_a_batch_that_is_a_tensor_or_holds_none() -> None:
    assert [tensor.role for tensor in first_batch([torch.ones(2)] * 2, batch_size=2).tensors] == ["result"]
    assert first_batch(["a", "b"], batch_size=2).tensors == ()
    assert first_batch([{"a": object()}] * 2, batch_size=None).tensors == ()


def test_a_batch_of_many_tensors_is_recorded_in_part() -> None:
    many: list[Any] = [[torch.ones(1)] * 500]
    many[0].append(many)  # and holds itself
    assert 0 < len(first_batch([many], batch_size=None, collate_fn=lambda sample: sample).tensors) <= 64


def test_values_are_read_only_where_they_are_demanded() -> None:
    data = [torch.ones(2)] * 2
    structure = Demand.of_calls(NEXT, values=(TENSORS,))
    assert first_batch(data, structure).tensors == (TensorSummary("result", "float32", (1, 2)),)
    assert first_batch(data, Demand.of_calls(NEXT)).tensors == ()


def test_only_demanded_readings_are_taken() -> None:
    np.random.seed(0)
    demand = Demand.of_readings("loader.batches", "random.numpy")
    with observing(demand) as seen:
        list(DataLoader(numbers(), batch_size=2))
    kinds = [(reading.kind, reading.attribute) for window in seen.windows for reading in window.readings]
    assert kinds == [("random", "numpy"), ("loader", "batches")]
    with observing(Demand.of_calls("torch.optim.Optimizer.step")) as seen:
        list(DataLoader(numbers(), batch_size=2))
    assert seen.calls == [] and not any(window.readings for window in seen.windows)


# -- random states ---------------------------------------------------------------------------------------------------


def test_random_states_are_recorded_at_the_start_of_an_epoch_and_not_modified() -> None:
    def program() -> list[tuple[float, ...]]:
        random.seed(0), np.random.seed(0), torch.manual_seed(0)
        loader = DataLoader(numbers(), batch_size=2, shuffle=True)
        drawn = []
        for _ in range(2):
            drawn += [batch.sum().item() for (batch,) in loader]
            drawn += [random.random(), np.random.rand()]
        return [*drawn, random.gauss(0, 1), np.random.randn(), torch.rand(1).item()]  # type: ignore[return-value]

    expected = program()
    states = []
    for _ in range(2):
        with observing() as seen:
            assert program() == expected
        states_read = readings(seen, kind="random")
        assert [reading.attribute for reading in states_read] == ["python", "numpy", "torch"] * 2
        assert {reading.variable for reading in states_read} == {"process"}
        assert {reading.call for reading in states_read} == {call.seq for call in seen.named(ITER)}
        states.append([reading.value for reading in states_read])
        assert len(set(states[-1])) == 6
    assert states[0] == states[1]


# -- steps and the end of a run --------------------------------------------------------------------------------------


def test_the_end_of_a_loader_belongs_to_the_previous_step() -> None:
    with observing() as seen:
        model = net()
        optimizer = sgd(model)
        loader = DataLoader(TensorDataset(torch.randn(4, 4)), batch_size=2)
        for _ in range(2):
            model.train()
            for (x,) in loader:
                work(model, optimizer, x)
            model.eval()
            with torch.no_grad():
                for (x,) in loader:
                    model(x)
    assert stages(seen.windows) == ["setup 0", "train 1", "train 2", "eval 2", "train 3", "train 4", "eval 4", "end 4"]
    for window in seen.windows[1:-1]:
        fetches = [dict(call.result)["last_batch"] for call in window.calls if NEXT in call.levels]
        assert fetches == {"train 1": [False], "train 3": [False], "eval 2": [False, False, True]}.get(
            f"{window.stage} {window.step}", [False, True] if window.stage == "train" else [False, False, True]
        )
        switches = [call.levels[-1] for call in window.calls if call.levels[-1].endswith((".train", ".eval"))]
        assert switches == {"eval": ["torch.nn.Module.eval"], "train": ["torch.nn.Module.train"]}[window.stage] * (
            window.step != 1 and fetches != [False, True]
        )
    finished = [window for window in seen.windows for reading in window.readings if reading.attribute == "batches"]
    assert [f"{window.stage} {window.step}" for window in finished] == ["train 2", "eval 2", "train 4", "eval 4"]


def test_a_data_set_that_calls_a_model_does_not_split_its_fetch() -> None:
    class Played(IterableDataset[torch.Tensor]):
        def __init__(self, policy: nn.Module) -> None:
            self.policy = policy

        def __iter__(self) -> Iterator[torch.Tensor]:
            for _ in range(3):
                yield self.policy(torch.randn(4)).detach().expand(4)

    with observing() as seen:
        model = net()
        optimizer = sgd(model)
        for x in DataLoader(Played(model), batch_size=None):
            work(model, optimizer, x)
    assert stages(seen.windows) == ["setup 0", *train(3), "end 3"]
    for window in seen.windows[1:-1]:
        (fetch,) = [call for call in window.calls if NEXT in call.levels and not dict(call.result)["last_batch"]]
        inside = [call for call in window.calls if fetch.seq < call.seq < fetch.end]
        assert [call.receiver for call in inside if call.kind == "module"][:1] == ["Sequential"]


def test_a_loader_within_a_loader() -> None:
    class Inner(IterableDataset[torch.Tensor]):
        def __iter__(self) -> Iterator[torch.Tensor]:
            for (x,) in DataLoader(TensorDataset(torch.randn(3, 4)), batch_size=1):
                yield x

    with observing() as seen:
        model = net()
        optimizer = sgd(model)
        for x in DataLoader(Inner(), batch_size=None):
            work(model, optimizer, x)
    assert stages(seen.windows) == ["setup 0", *train(3), "end 3"]
    assert [len([call for call in window.calls if NEXT in call.levels]) for window in seen.windows[1:4]] == [2, 2, 4]


def test_the_run_ends_with_the_number_of_its_steps() -> None:
    def steps(unfinished: bool) -> list[tuple[object, bool]]:
        with observing() as seen:
            model = net()
            optimizer = sgd(model)
            for _ in range(3):
                work(model, optimizer)
            if unfinished:
                model(torch.randn(2, 4)).mean().backward()
        return [
            (reading.value, window is seen.windows[-1])
            for window in seen.windows
            for reading in window.readings
            if (reading.kind, reading.attribute) == ("run", "steps")
        ]

    assert steps(unfinished=False) == steps(unfinished=True) == [(3, True)]


# -- loaders of others, and what is left -----------------------------------------------------------------------------


class Wrapping(DataLoader[Any]):
    """Builds batches with its own iterator, as loaders of some libraries do."""

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        for batch in self._get_iterator():
            yield [tensor + 1 for tensor in batch]


def test_a_subclass_that_iterates_by_itself() -> None:
    with observing() as seen:
        assert len(list(Wrapping(numbers(), batch_size=2))) == 3
    assert seen.named(ITER) == []
    assert values_of(seen, "length") == [("DataLoader#1", 3)]
    assert [reading.call for reading in readings(seen, attribute="length")] == [NO_CALL]
    assert ends(seen) == [(3, True)]


def test_a_loader_that_accelerate_prepared() -> None:
    accelerate = pytest.importorskip("accelerate")
    prepared = accelerate.Accelerator(cpu=True).prepare(DataLoader(numbers(), batch_size=2, shuffle=True))
    with observing() as seen:
        for _ in range(2):
            assert len(list(prepared)) == 3
    assert values_of(seen, "length") == [("DataLoader#1", 3)] * 2
    assert values_of(seen, "batch_size") == [("DataLoader#1", 2)] * 2
    assert ends(seen) == [(3, True)] * 2
    assert len({value for _, value in values_of(seen, "order")}) == 2


def test_loaders_and_their_data_are_not_kept_alive() -> None:
    with observing() as seen:
        data = numbers()
        loader = DataLoader(data, batch_size=2, collate_fn=lambda samples: samples)
        batches = iter(loader)
        next(batches)
        gone = [weakref.ref(value) for value in (data, loader, batches, loader.collate_fn)]
        del data, loader, batches
        gc.collect()
        assert [reference() for reference in gone] == [None] * 4
        with suppress(StopIteration):
            next(iter(DataLoader(numbers(), batch_size=2)))
    assert [call.receiver for call in seen.named(ITER)] == ["DataLoader#1", "DataLoader#2"]
