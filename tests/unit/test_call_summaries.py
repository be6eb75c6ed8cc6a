"""Tests of the summaries of a call's arguments and results: names, memory, changes, and when values are read."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from observed_process import Seen, observing
from small_trainings import Model
from traincheck.sources.tensors.call_summaries import FIRST_STEPS, MAX_NESTED_TENSORS, MAX_READ_CALLS, READ_INTERVAL
from traincheck.vocab.demand import ARGUMENTS, CONTENTS, NUMBERS, ROWS, TENSOR_VALUES, TENSORS, Demand, ValueKind
from traincheck.vocab.events import Call, TensorSummary
from traincheck.vocab.facts import value_of

LINEAR = "torch.nn.functional.linear"


def by_role(call: Call) -> dict[str, TensorSummary]:
    return {tensor.role: tensor for tensor in call.tensors}


def only(seen: Seen, name: str) -> Call:
    (call,) = seen.named(name)
    return call


def fact_of(tensor: TensorSummary, fact: str) -> object:
    return value_of(tensor.facts, fact)


# -- names and plain values ------------------------------------------------------------------------------------------


def test_positional_and_keyword_arguments_have_the_same_names() -> None:
    x = torch.randn(2, 3)
    with observing() as seen:
        F.softmax(x, 1, 3, torch.float64)
        F.softmax(input=x, dim=1, _stacklevel=3, dtype=torch.float64)
    first, second = seen.named("torch.nn.functional.softmax")
    assert first.args == second.args == (("_stacklevel", 3), ("dim", 1), ("dtype", "float64"))
    assert [tensor.role for tensor in first.tensors] == ["input", "result"]
    assert first.tensors == second.tensors[:1] + first.tensors[1:]


def test_equal_numbers_of_different_types_stay_distinct() -> None:
    with observing() as seen:
        x = torch.ones(2, 2)
        for value in (1, True, 1.0, 0, False, -0.0):
            x.mul(value)
    factors = [value_of(call.args, "other") for call in seen.named("torch.Tensor.mul")]
    assert [type(value) for value in factors] == [int, bool, float, int, bool, float]


def test_sequences_are_recorded_by_length_and_first_tensors() -> None:
    many = [torch.ones(2) for _ in range(MAX_NESTED_TENSORS + 3)]
    with observing() as seen:
        torch.cat(many, 0)
        torch.chunk(torch.ones(4), 2)
    cat = only(seen, "torch.cat")
    assert dict(cat.args) == {"len(tensors)": len(many), "dim": 0}
    assert [tensor.role for tensor in cat.tensors] == [*(f"tensors[{n}]" for n in range(MAX_NESTED_TENSORS)), "result"]
    chunk = only(seen, "torch.chunk")
    assert dict(chunk.result) == {"length": 2}
    assert [tensor.role for tensor in chunk.tensors] == ["input", "result[0]", "result[1]"]


def test_arguments_without_a_name_get_a_number() -> None:
    with observing() as seen:
        x = torch.zeros(2, 3)
        x.to("cpu").new_ones(1)
    assert dict(only(seen, "torch.zeros").args) == {"arg0": 2, "arg1": 3}
    assert dict(only(seen, "torch.Tensor.to").args) == {
        "arg1": "cpu"
    }  # and no dtype, though that is what is first there


# -- memory ----------------------------------------------------------------------------------------------------------


def test_views_share_a_storage_name_and_other_tensors_do_not() -> None:
    with observing() as seen:
        x = torch.ones(6)
        y = x.view(2, 3)
        z = y.clone()
        for tensor in (x, y.t(), y.detach(), y.data, z):
            tensor.sum()
    x, view, detached, data, clone = (by_role(call)["self"].storage for call in seen.named("torch.Tensor.sum"))
    assert x == view == detached == data != clone
    assert x.startswith("~") and clone.startswith("~")


def test_reused_memory_gets_another_name() -> None:
    addresses, held = set(), []
    with observing() as seen:
        for _ in range(50):
            tensor = torch.ones(1000)
            addresses.add(tensor.data_ptr())
            held.append(tensor.view(10, 100))
            del tensor
            if len(held) > 3:
                held.clear()
    made = [call.tensors[0].storage for call in seen.named("torch.ones")]
    assert len(addresses) < 50 == len(set(made))
    assert made == [by_role(call)["self"].storage for call in seen.named("torch.Tensor.view")]


def test_parameters_and_their_views_have_the_parameter_name() -> None:
    with observing() as seen:
        model = Model()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model(torch.ones(4, 4)).sum().backward()
        optimizer.step()
        model.head.weight.data.mul_(1.0)
        model.head.weight[0].detach().add_(0.0)
    linear = by_role(seen.named(LINEAR)[-1])
    assert (linear["weight"].storage, linear["bias"].storage) == ("Model.head.weight", "Model.head.bias")
    written = by_role(seen.named("torch.Tensor.mul_")[-1]), by_role(seen.named("torch.Tensor.add_")[-1])
    assert [call["self"].storage for call in written] == ["Model.head.weight"] * 2


def test_initialised_parameters_get_their_names_during_setup() -> None:
    with observing() as seen:
        model = Model()
        with torch.no_grad():
            nn.init.xavier_uniform_(model.head.weight, gain=2.0)
            nn.init.normal_(model.head.weight, 0.0, 0.02)
            model.head.bias.data.normal_(0.0, 0.02)
        model(torch.ones(4, 4)).sum().backward()
    assert seen.windows[0].stage == "setup"
    xavier, normal = only(seen, "torch.nn.init.xavier_uniform_"), only(seen, "torch.nn.init.normal_")
    assert dict(xavier.args)["gain"] == 2.0 and dict(normal.args)["std"] == 0.02
    filled = by_role(seen.named("torch.Tensor.normal_")[-1])["self"]
    assert by_role(xavier)["tensor"].storage == by_role(normal)["tensor"].storage == "Model.head.weight"
    assert filled.storage == "Model.head.bias" and fact_of(filled, "changed") is True
    inner = [call for call in seen.named("torch.Tensor.uniform_") if call.parent == xavier.seq]
    assert inner or any(call.parent == xavier.seq for call in seen.named("torch.no_grad"))


def turns(number: int) -> None:
    """A program whose steps have no known end until later: two optimizers take turns, one of them twice."""
    layer, other = nn.Linear(3, 1), nn.Linear(3, 1)
    first, second = (torch.optim.SGD(model.parameters(), lr=0.1) for model in (layer, other))
    held = []
    for _ in range(number):
        for model, optimizer in ((layer, first), (other, second), (other, second)):
            x = torch.randn(2, 3)
            y = model(x)
            loss = y.square().sum()
            held += [x, y, loss]
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


def test_a_name_refers_to_one_storage_within_a_window() -> None:
    with observing() as seen:
        turns(6)
    assert len(seen.windows) > 8
    for window in seen.windows:
        # Everything that is made in the loop stays alive, so no two results lie in the same memory.
        made = [call for call in window.calls if call.name in ("torch.randn", LINEAR, "torch.Tensor.sum")]
        names = [by_role(call)["result"].storage for call in made]
        assert len(names) == len(set(names))
        for call in window.calls:
            if call.name == "torch.Tensor.square":
                assert by_role(call)["self"].storage in names
    numbers = [int(t.storage[1:]) for call in seen.calls for t in call.tensors if t.storage.startswith("~")]
    assert max(numbers) < 40  # they start again in each window


# -- changes and values ----------------------------------------------------------------------------------------------


def test_changes_of_arguments_are_recorded() -> None:
    with observing() as seen:
        x, y = torch.ones(3), torch.ones(3)
        x.add_(y)
        x.mul_(1.0)
        with torch.inference_mode():
            z = torch.ones(3)
            z.sub_(1)
    changed = {
        call.name.rsplit(".", 1)[1]: [fact_of(tensor, "changed") for tensor in call.tensors]
        for call in seen.named("torch.Tensor.add_") + seen.named("torch.Tensor.mul_") + seen.named("torch.Tensor.sub_")
    }
    assert changed == {"add_": [True, False, None], "mul_": [False, None], "sub_": [True, None]}


def behind_the_back(x: torch.Tensor) -> torch.Tensor:
    x.detach().numpy()[0] = 5.0  # no version counter sees this
    return x


def test_a_write_that_torch_does_not_count_is_detected() -> None:
    with observing() as seen:
        behind_the_back(torch.ones(3))
    x, result = only(seen, "test_call_summaries.behind_the_back").tensors
    assert fact_of(x, "changed") is True and x.fingerprint != result.fingerprint


def test_arguments_are_read_before_the_call_and_results_after() -> None:
    with observing() as seen:
        x = torch.ones(4)
        x.zero_()
        F.softmax(torch.randn(2, 5), -1)
    x, result = only(seen, "torch.Tensor.zero_").tensors
    assert (fact_of(x, "zero"), fact_of(x, "norm"), fact_of(result, "zero")) == (False, 2.0, True)
    logits, probabilities = only(seen, "torch.nn.functional.softmax").tensors
    assert (fact_of(logits, "rows_sum_to_one"), fact_of(probabilities, "rows_sum_to_one")) == (False, True)


def test_values_of_uninitialized_memory_are_not_recorded() -> None:
    with observing() as seen:
        x = torch.empty(4)
        x.view(2, 2)
        x.fill_(2.0)
        x.view(2, 2)
    empty, view, fill, again = (by_role(call) for call in seen.calls if call.kind == "function")
    assert not empty["result"].facts and value_of(view["self"].facts, "norm") is None
    assert fact_of(fill["self"], "changed") is True and fact_of(fill["self"], "norm") is None
    assert fact_of(fill["result"], "norm") == fact_of(again["self"], "norm") == 4.0


def steps(number: int) -> None:
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(number):
        optimizer.zero_grad()
        x = torch.ones(2, 3)
        (model(x) + F.linear(x, model.weight) + F.linear(x, model.weight)).sum().backward()
        optimizer.step()


def read(call: Call) -> bool:
    return any(tensor.facts for tensor in call.tensors)


def test_a_full_collection_reads_a_sample_of_a_fixed_schedule() -> None:
    with observing() as seen:
        steps(2 * READ_INTERVAL + 1)
    readings_by_step = {}
    for window in seen.windows:
        calls = [call for call in window.calls if call.name == LINEAR]
        if calls:
            assert len(calls) == 3 and all(len(call.tensors) in (3, 4) for call in calls)
            readings_by_step[window.step] = [read(call) for call in calls]
    sampled = [True] * MAX_READ_CALLS + [False] * (3 - MAX_READ_CALLS)
    for step, readings in readings_by_step.items():
        assert readings == (sampled if step <= FIRST_STEPS or step % READ_INTERVAL == 0 else [False] * 3)


def test_evaluation_values_are_read_in_every_step() -> None:
    with observing() as seen:
        steps(FIRST_STEPS + 1)
        model = nn.Linear(3, 1).eval()
        with torch.no_grad():
            model(torch.ones(2, 3))
    (window,) = [window for window in seen.windows if window.stage == "eval"]
    assert [read(call) for call in window.calls if call.name == LINEAR] == [True]


def test_large_tensors_are_recorded_but_their_values_are_not_read() -> None:
    with observing() as seen:
        torch.zeros((1 << 20) + 1).add_(1)
    x, result = only(seen, "torch.Tensor.add_").tensors
    assert x.shape == ((1 << 20) + 1,) and dict(x.facts) == {"changed": True}
    assert result.facts == () and result.fingerprint is None


# -- demand ----------------------------------------------------------------------------------------------------------


def demanding(*kinds: ValueKind) -> Demand:
    return Demand.of_calls(LINEAR, values=kinds)


def test_only_demanded_facts_are_recorded() -> None:
    recorded = {}
    for kinds in ((), (ARGUMENTS,), (TENSORS,), (NUMBERS,), (ROWS,), (CONTENTS,)):
        with observing(demanding(*kinds)) as seen:
            F.linear(torch.ones(2, 3), torch.ones(1, 3), bias=None)
        call = only(seen, LINEAR)
        recorded[kinds] = (
            call.args,
            len(call.tensors),
            [name for name, _ in call.tensors[0].facts] if call.tensors else [],
        )
        prints = [tensor.fingerprint is not None for tensor in call.tensors]
        assert all(prints) if kinds == (CONTENTS,) else not any(prints)
        assert dict(call.result) == {"dtype": "float32", "requires_grad": False}
    assert recorded == {
        (): ((), 0, []),
        (ARGUMENTS,): ((("bias", None),), 0, []),
        (TENSORS,): ((), 3, []),
        (NUMBERS,): ((), 3, ["finite", "norm", "zero"]),
        (ROWS,): ((), 3, ["rows_sum_to_one"]),
        (CONTENTS,): ((), 3, ["changed"]),
    }


def test_a_selective_run_records_the_same_and_reads_every_call() -> None:
    def run(demand: Demand | None) -> list[Call]:
        torch.manual_seed(0)
        with observing(*([demand] if demand else [])) as seen:
            steps(READ_INTERVAL)
        return seen.named(LINEAR)

    full, selective = run(None), run(demanding(ARGUMENTS, *TENSOR_VALUES))
    assert len(full) == len(selective) and all(map(read, selective)) and not all(map(read, full))
    for expected, call in zip(full, selective, strict=True):
        assert (expected.args, expected.context, expected.result) == (call.args, call.context, call.result)
        if read(expected):
            assert [t._replace(storage="") for t in expected.tensors] == [t._replace(storage="") for t in call.tensors]
