"""Tests that collectives are recorded as calls, with their inputs and results."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel

from observed_process import Seen, observing
from traincheck.sources.recording.frames import local_values
from traincheck.vocab.collectives import is_member, ranks_as_text
from traincheck.vocab.demand import NUMBERS, ROWS, TENSORS, Demand
from traincheck.vocab.events import LIFECYCLE, Call
from traincheck.vocab.facts import FactValue, value_of

pytestmark = pytest.mark.skipif(not dist.is_available(), reason="this build of torch has no torch.distributed")


@pytest.fixture(autouse=True)
def one_rank() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def only(seen: Seen, name: str) -> Call:
    (call,) = seen.named(f"torch.distributed.{name}")
    return call


def norms(call: Call) -> dict[str, FactValue]:
    return {tensor.role: value_of(tensor.facts, "norm") for tensor in call.tensors}


def test_an_in_place_reduction_records_its_input_and_result() -> None:
    with observing() as seen:
        x = torch.full((4,), 2.0)
        dist.all_reduce(x, op=dist.ReduceOp.SUM)
        dist.broadcast(x, src=0)
        dist.barrier()
    call = only(seen, "all_reduce")
    assert call.kind == LIFECYCLE and call.end > call.seq
    assert dict(call.args) == {} and norms(call) == {"tensor": 4.0, "result": 4.0}
    assert len({tensor.storage for tensor in call.tensors}) == 1
    assert dict(only(seen, "broadcast").args) == {"src": 0}
    assert only(seen, "barrier").tensors == ()


def test_collectives_that_answer_other_ranks_in_join_are_not_recorded() -> None:
    model = DistributedDataParallel(torch.nn.Linear(2, 1))
    with observing() as seen:
        with Join([model]):
            dist.all_reduce(torch.ones(4))
        dist.barrier()
    assert len(seen.named("torch.distributed.all_reduce")) == 1
    assert len(seen.named("torch.distributed.barrier")) == 1


def test_lists_of_tensors_have_a_length_and_roles() -> None:
    with observing() as seen:
        gathered = [torch.zeros(2)]
        dist.all_gather(gathered, torch.ones(2))
        dist.all_to_all_single(torch.zeros(2), torch.ones(2))
    gather = only(seen, "all_gather")
    assert dict(gather.args)["len(tensor_list)"] == 1
    assert [tensor.role for tensor in gather.tensors] == ["tensor_list[0]", "tensor", "result[0]"]
    facts = {tensor.role: dict(tensor.facts) for tensor in gather.tensors}
    assert facts["tensor_list[0]"]["zero"] is True and facts["tensor_list[0]"]["changed"] is True
    assert facts["result[0]"]["zero"] is False and facts["tensor"]["changed"] is False
    assert [tensor.role for tensor in only(seen, "all_to_all_single").tensors] == ["output", "input", "result"]


def test_an_asynchronous_operation_has_no_result_at_return() -> None:
    with observing() as seen:
        x = torch.ones(3)
        work = dist.all_reduce(x, async_op=True)
        work.wait()
    call = only(seen, "all_reduce")
    before, after = call.tensors
    assert dict(call.args) == {"async_op": True}
    assert value_of(before.facts, "norm") is not None and value_of(before.facts, "changed") is None
    assert after.role == "result" and after.facts == () and after.fingerprint is None


def test_collected_operations_have_no_result_at_return() -> None:
    """They begin where the block ends."""
    with observing() as seen:
        x = torch.ones(3)
        with dist.distributed_c10d._coalescing_manager():
            dist.all_reduce(x)
    (call,) = seen.named("torch.distributed.all_reduce")[:1]
    before, after = call.tensors
    assert value_of(before.facts, "norm") is not None and value_of(before.facts, "changed") is None
    assert after.role == "result" and after.facts == () and after.fingerprint is None


def test_collectives_of_objects_are_one_call() -> None:
    with observing() as seen:
        gathered = [None]
        dist.all_gather_object(gathered, {"rank": 0})
    assert gathered == [{"rank": 0}]
    assert [call.name for call in seen.calls if call.name.startswith("torch.distributed")] == [
        "torch.distributed.all_gather_object"
    ]


def test_names_are_put_back_and_a_failure_is_the_programs_own() -> None:
    before = {name: getattr(dist, name) for name in ("all_reduce", "all_gather", "send")}
    with observing() as seen:
        assert dist.all_reduce is not before["all_reduce"]
        with pytest.raises((TypeError, ValueError, RuntimeError)):
            dist.all_reduce("no tensor")  # type: ignore[arg-type]
    assert only(seen, "all_reduce").end == -1 and seen.faults == []
    assert {name: getattr(dist, name) for name in before} == before


def test_only_demanded_calls_are_wrapped_and_read() -> None:
    original = dist.broadcast
    api = "torch.distributed.all_reduce"
    for state, length in ((TENSORS, 0), (NUMBERS, 3), (ROWS, 1)):
        with observing(Demand.of_calls(api, values=(state,))) as seen:
            assert dist.broadcast is original
            dist.all_reduce(torch.ones(4))
        call = only(seen, "all_reduce")
        assert [tensor.role for tensor in call.tensors] == ["tensor", "result"]
        assert len(call.tensors[1].facts) == length and call.args == ()


# -- messages that are only started ------------------------------------------------------------------------------------


@pytest.fixture
def starting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace `isend` by another asynchronous operation, because there is no peer."""

    def isend(tensor: Any, dst: Any = None, group: Any = None, tag: int = 0, group_dst: Any = None) -> Any:
        return dist.all_reduce(torch.ones(1), async_op=True)

    monkeypatch.setattr(dist, "isend", isend)


def sent(call: Call) -> tuple[str, FactValue]:
    (tensor,) = call.tensors
    return tensor.role, value_of(tensor.facts, "changed")


@pytest.mark.usefixtures("starting")
def test_a_sent_tensor_is_read_again_at_the_wait() -> None:
    with observing() as seen:
        kept, reused = torch.ones(8), torch.ones(8)
        works = [dist.isend(tensor, 3, tag=5) for tensor in (kept, reused)]
        reused.zero_()
        for work in works:
            work.wait()
        dist.all_reduce(kept, async_op=True).wait()
        work = dist.isend(kept, 3)
    assert [sent(call) for call in seen.named("torch.distributed.Work.wait")] == [("sent", False), ("sent", True)]
    starts = seen.named("torch.distributed.isend")
    assert [dict(call.result) for call in starts] == [
        {"number": 1, "peer": 3},
        {"number": 2, "peer": 3},
        {"number": 1, "peer": 3},
    ]
    assert seen.faults == []
    work.wait()


@pytest.mark.usefixtures("starting")
def test_a_sent_tensor_may_change_after_a_successful_poll() -> None:
    with observing() as seen:
        buffer = torch.ones(8)
        work = dist.isend(buffer, 3)
        while not work.is_completed():
            pass
        buffer.zero_()
        work.wait()
        gone = weakref.ref(lost := torch.ones(8))
        work = dist.isend(lost, 3)
        del lost
        assert gone() is None, "we keep nothing alive"
        work.wait()
    assert [sent(call) for call in seen.named("torch.distributed.Work.wait")] == [("sent", None), ("sent", None)]
    assert seen.faults == []


def test_a_collective_records_its_caller_and_group() -> None:
    def norm_of(group: str, count: int) -> None:
        dist.all_reduce(torch.ones(2))

    with observing() as seen:
        norm_of("experts", 3)
        norm_of("no word", 3)
    purposes = [value_of(call.result, "purpose") for call in seen.named("torch.distributed.all_reduce")]
    name = "test_a_collective_records_its_caller_and_group"
    assert [str(purpose).removeprefix(f"{name}.<locals>.") for purpose in purposes[:2]] == [
        # Python 3.10 would keep the arguments alive, so their words are left out there.
        "norm_of(group=experts)" if sys.version_info >= (3, 11) else "norm_of()",
        "norm_of()",
    ]


def test_the_names_of_a_module_are_left_alone() -> None:
    """The locals of a module are its namespace itself, not a copy."""
    namespace: dict[str, Any] = {"look": lambda: local_values(sys._getframe(1), ("here",))}
    exec("here = 1\nseen = look()", namespace)
    assert namespace["here"] == 1 and namespace["seen"] == {}


@pytest.mark.parametrize(
    ("ranks", "text"), [([0, 1, 2, 3], "0-3"), ([4, 0, 2], "0+2+4"), ([0, 1, 5], "0-1+5"), ([7], "7")]
)
def test_groups_have_short_names(ranks: list[int], text: str) -> None:
    assert ranks_as_text(ranks) == text
    assert [rank for rank in range(9) if is_member(rank, text)] == sorted(ranks)
