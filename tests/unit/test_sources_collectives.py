"""Collectives are calls of their own, with what went in and what they wrote."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist

from observing import Seen, observing
from traincheck.vocab.demand import TENSORS, VALUES, Demand
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


def test_a_reduction_in_place_tells_what_it_was_given_and_what_it_wrote() -> None:
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


def test_lists_of_tensors_have_a_length_and_roles() -> None:
    with observing() as seen:
        found = [torch.zeros(2)]
        dist.all_gather(found, torch.ones(2))
        dist.all_to_all_single(torch.zeros(2), torch.ones(2))
    gather = only(seen, "all_gather")
    assert dict(gather.args)["len(tensor_list)"] == 1
    assert [tensor.role for tensor in gather.tensors] == ["tensor_list[0]", "tensor", "result[0]"]
    facts = {tensor.role: dict(tensor.facts) for tensor in gather.tensors}
    assert facts["tensor_list[0]"]["zero"] is True and facts["tensor_list[0]"]["changed"] is True
    assert facts["result[0]"]["zero"] is False and facts["tensor"]["changed"] is False
    assert [tensor.role for tensor in only(seen, "all_to_all_single").tensors] == ["output", "input", "result"]


def test_what_is_only_started_has_no_result_yet() -> None:
    with observing() as seen:
        x = torch.ones(3)
        work = dist.all_reduce(x, async_op=True)
        work.wait()
    call = only(seen, "all_reduce")
    before, after = call.tensors
    assert dict(call.args) == {"async_op": True}
    assert value_of(before.facts, "norm") is not None and value_of(before.facts, "changed") is None
    assert after.role == "result" and after.facts == () and after.fingerprint is None


def test_names_are_put_back_and_a_failure_is_the_programs_own() -> None:
    before = {name: getattr(dist, name) for name in ("all_reduce", "all_gather", "send")}
    with observing() as seen:
        assert dist.all_reduce is not before["all_reduce"]
        with pytest.raises((TypeError, ValueError, RuntimeError)):
            dist.all_reduce("no tensor")  # type: ignore[arg-type]
    assert only(seen, "all_reduce").end == -1 and seen.faults == []
    assert {name: getattr(dist, name) for name in before} == before


def test_only_what_is_demanded_is_wrapped_and_read() -> None:
    original = dist.broadcast
    api = "torch.distributed.all_reduce"
    for what, length in ((TENSORS, 0), (VALUES, 4)):
        with observing(Demand(frozenset((api,)), frozenset(((api, what),)))) as seen:
            assert dist.broadcast is original
            dist.all_reduce(torch.ones(4))
        call = only(seen, "all_reduce")
        assert [tensor.role for tensor in call.tensors] == ["tensor", "result"]
        assert len(call.tensors[1].facts) == length and call.args == ()
