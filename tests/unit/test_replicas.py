"""Rules about replicas: the inputs of an update on each rank, the definition of replicas, and their batches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import pytest
import torch
import torch.distributed as dist

from observed_process import observing
from sample_windows import ReadingFields, Script
from traincheck.relations.consistent.ranks.replicas import THOUGH_KEPT
from traincheck.relations.consistent.relation import Consistent
from traincheck.testing.readable_traces import from_text
from traincheck.vocab.demand import Demand
from traincheck.vocab.events import Reading, Window
from traincheck.vocab.facts import facts, merged, value_of
from traincheck.vocab.occasion import Occasion, Property, Subject

USED_DATA, USED_GRAD, DATA = "parameter.used_data", "parameter.used_grad", "parameter.data"


class Update(NamedTuple):
    """The effect of an update on a parameter, by fingerprints; `zero` lists all-zero parts (data, grad), and `wrapped`
    says whether a wrapper averages the gradient. `held` says which optimizer holds the parameter."""

    data: int
    grad: int
    left: int
    zero: str = ""
    wrapped: bool = False
    held: str = "this"


def ranks(*steps: tuple[Mapping[str, Update], ...]) -> list[tuple[Window, ...]]:
    """In each step what each rank does to its parameters."""
    scripts = [Script(rank=rank) for rank in range(len(steps[0]))]
    for step in steps:
        for script, held in zip(scripts, step, strict=True):
            script.window().step(*_reads(held), changes=[_change(name, update) for name, update in held.items()])
    return list(zip(*(script.windows for script in scripts), strict=True))


def _reads(held: Mapping[str, Update]) -> Iterator[ReadingFields]:
    for name, update in held.items():
        for attribute, value in (("data", update.data), ("grad", update.grad)):
            state = "zero" if attribute in update.zero else "some"
            context = facts(kind="parameter", before=state)
            if update.wrapped and attribute == "grad":
                context = merged(context, data_parallel=True)
            yield f"parameter.used_{attribute}", name, value, "live", context


def _change(name: str, update: Update) -> dict[str, Any]:
    context = facts(requires_grad=True, attributes="", held=update.held)
    return {"variable": name, "fingerprint": update.left, "changed": update.left != update.data, "context": context}


def across(windows: list[tuple[Window, ...]], quantity: str) -> list[Occasion]:
    relation = Consistent()
    subject = Subject(quantity, "ranks")
    return [occasion for together in windows for occasion in relation.across(together) if occasion.subject == subject]


def verdicts(occasions: list[Occasion], **required: Any) -> list[bool]:
    """Return for the occasions with these facts whether both ranks agree."""
    return [
        bool(occasion.held)
        for occasion in occasions
        if all(value_of(occasion.context, name) == required[name] for name in required)
    ]


def test_equal_parameters_have_equal_gradients_in_an_update() -> None:
    first = {"a": Update(1, 5, 2)}
    assert verdicts(across(ranks((first, first)), USED_GRAD), same_before=True, copies=True) == [True]
    second = {"a": Update(1, 6, 3)}
    assert verdicts(across(ranks((first, second)), USED_GRAD), same_before=True, copies=True) == [False]
    shard = {"a": Update(9, 6, 3)}
    assert verdicts(across(ranks((first, shard)), USED_GRAD), same_before=False, copies=False) == [False]


def test_gradients_say_whether_a_wrapper_is_to_average_them() -> None:
    """Local SGD without a wrapper has other gradients on each rank, on purpose."""
    alone, wrapped = Update(1, 5, 2), Update(1, 5, 2, wrapped=True)
    other = Update(1, 6, 3, wrapped=True)
    assert verdicts(across(ranks(({"a": wrapped}, {"a": other})), USED_GRAD), data_parallel=True) == [False]
    assert verdicts(across(ranks(({"a": alone}, {"a": other})), USED_GRAD), data_parallel=None) == [False]


def test_parameters_equal_after_an_update_become_replicas() -> None:
    before, after = {"a": Update(1, 5, 2), "s": Update(3, 7, 4)}, {"a": Update(1, 5, 2), "s": Update(8, 7, 9)}
    later = {"a": Update(2, 5, 3), "s": Update(4, 7, 5)}, {"a": Update(2, 6, 4), "s": Update(9, 7, 6)}
    occasions = across(ranks((before, after), later), USED_GRAD)
    assert [
        (occasion.variables, bool(occasion.held)) for occasion in occasions if value_of(occasion.context, "copies")
    ] == [(("a",), False)]
    assert verdicts(occasions, copies=False) == [True, True, True]


def test_parameters_with_the_same_gradient_are_the_same_on_ranks() -> None:
    """A zero gradient gives no evidence, nor does a bias that begins at zero."""
    whole = {"a": Update(1, 5, 2)}
    lost = {"a": Update(7, 5, 8)}
    assert verdicts(across(ranks((whole, lost)), USED_DATA), same_grad=True, before="some") == [False]
    nothing = {"a": Update(1, 5, 2, zero="grad")}, {"a": Update(7, 5, 8, zero="grad")}
    assert verdicts(across(ranks(nothing), USED_DATA), same_grad=True) == []
    zeros = {"a": Update(0, 5, 2, zero="data")}
    assert verdicts(across(ranks((zeros, zeros)), USED_DATA), before="zero") == [True]


def test_equal_values_and_gradients_leave_equal_values() -> None:
    first, second = {"a": Update(1, 5, 2)}, {"a": Update(1, 5, 3)}
    assert verdicts(across(ranks((first, second)), DATA), same_before=True, same_grad=True) == [False]
    assert verdicts(across(ranks((first, first)), DATA), same_before=True, same_grad=True) == [True]


def test_an_optimizer_divided_over_the_ranks_updates_a_parameter_on_one_of_them() -> None:
    """The value is compared before the next update, when the others have received it."""
    first, second = {"a": Update(1, 5, 2)}, {"a": Update(1, 5, 1, held="none")}
    assert across(ranks((first, second)), DATA) == []
    lost = {"a": Update(2, 5, 3)}, {"a": Update(1, 5, 1, held="none")}
    assert verdicts(across(ranks((first, second), lost), USED_DATA), same_grad=True, before="some") == [True, False]


def test_optimizer_settings_are_compared_before_the_first_step() -> None:
    def built(**values: int) -> Window:
        reads = "".join(f"    reading parameter.first_data {name} {value}\n" for name, value in values.items())
        call = "  lifecycle torch.optim.SGD.__init__ < torch.optim.Optimizer.__init__ receiver=SGD\n"
        return from_text(f"window setup step=0\n{call}{reads}")[0]

    occasions = across([(built(a=1, b=2, c=3), built(a=1, b=9))], "parameter.first_data")
    assert [(occasion.variables, bool(occasion.held), occasion.seq) for occasion in occasions] == [
        (("a",), True, 0),
        (("b",), False, 0),
    ]


# -- batches -----------------------------------------------------------------------------------------------------------


def trained_on(batches: tuple[int, ...], data: int, frozen: int = 0) -> str:
    reads = "".join(
        f"    reading module.batch Net {batch}\n    reading module.frozen Net {frozen}\n" for batch in batches
    )
    used = f'    reading {USED_DATA} Net.a {data} context={{"before":"some"}}\n'
    update = "  lifecycle torch.optim.SGD.step < torch.optim.Optimizer.step receiver=SGD\n"
    return (
        f"window train step=1\n  module train.Net.forward < torch.nn.Module.forward receiver=Net\n{reads}{update}{used}"
    )


def test_copies_of_a_model_are_trained_on_different_batches() -> None:
    def of(*bodies: str) -> list[Occasion]:
        windows = tuple(from_text(body)[0] for body in bodies)
        return across([tuple(window for window in windows)], "module.batch")

    (occasion,) = of(trained_on((1, 2), data=5), trained_on((3, 4), data=5))
    assert (
        occasion.held == {Property("differs on ranks", "module.batch")}
        and value_of(occasion.context, "all_same") is True
    )
    (occasion,) = of(trained_on((1, 2), data=5), trained_on((3, 2), data=5))
    assert not occasion.held and occasion.failed
    (occasion,) = of(trained_on((1,), data=5), trained_on((1,), data=6))
    assert not occasion.held and value_of(occasion.context, "all_same") is False
    (occasion,) = of(trained_on((1,), data=5, frozen=3), trained_on((1,), data=5, frozen=4))
    assert not occasion.held and value_of(occasion.context, "all_same") is False, "parts of a model that is frozen"
    assert of(trained_on((), data=5), trained_on((), data=5)) == []


# -- parts of one model ------------------------------------------------------------------------------------------------


def updated_twice(copy: float, *, part: int, batch: int = 1, loss: float = 0.7, left: int = 0) -> str:
    """The second update of a rank: the norm of the first gradient of a copy, and how its part began."""
    kept = f'"random":true,"loss":{loss}'
    ones = f'"random":false,"loss":{loss}'
    return (
        "window train step=2\n  module train.Net.forward < torch.nn.Module.forward receiver=Net\n"
        f"    reading module.batch Net {batch}\n"
        "  lifecycle torch.optim.SGD.step < torch.optim.Optimizer.step receiver=SGD\n"
        f'    reading parameter.replica stem {left} context={{"first":5,"norm":{copy},{kept}}}\n'
        f'    reading parameter.replica bias {left} context={{"first":6,"norm":{copy},{ones}}}\n'
        f'    reading parameter.replica block {left} context={{"first":{part},"norm":{copy},{kept}}}\n'
    )


def drifted(first: str, second: str) -> list[tuple[str, ...]]:
    windows = tuple(replace(from_text(body)[0], rank=rank) for rank, body in enumerate((first, second)))
    return [occasion.variables for occasion in across([windows], "parameter.replica")]


def test_copies_that_ranks_of_one_model_hold_are_to_have_one_gradient() -> None:
    one = updated_twice(0.5, part=1, left=1)
    assert drifted(one, updated_twice(0.9, part=2, left=2)) == [("stem",)]
    assert drifted(one, updated_twice(0.9, part=2, left=1)) == [], "reduced within the update"
    assert drifted(one, updated_twice(0.5001, part=2, left=2)) == [], "additions in another order"
    assert drifted(one, updated_twice(0.9, part=1, left=2)) == [], "no part is known"
    assert drifted(one, updated_twice(0.9, part=2, left=2, loss=0.8)) == [], "models of their own"
    assert drifted(one, updated_twice(0.9, part=2, left=2, batch=2)) == [], "data of their own"


# -- what is read ------------------------------------------------------------------------------------------------------


@pytest.fixture
def job(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A job of two ranks, of which this is one."""
    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    monkeypatch.setattr(dist, "get_world_size", lambda group=None: 2)
    yield


def trained(demand: Demand) -> list[Reading]:
    with observing(demand) as seen:
        model = torch.nn.Linear(8, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(3):
            loss = model(torch.full((4, 8), float(step))).sum() * (step > 0)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    assert seen.faults == []
    return seen.readings


def demanding(*quantities: str) -> Demand:
    update = Demand.of_calls("torch.optim.Optimizer.step", changes=(DATA,))
    return update | Demand.of_calls("torch.nn.Module.forward") | Demand.of_readings(*quantities)


@pytest.mark.usefixtures("job")
def test_update_inputs_are_read_before_the_update() -> None:
    windows = trained(demanding(USED_DATA, USED_GRAD))
    of = {
        attribute: [
            (r.value, value_of(r.context, "before"))
            for r in windows
            if (r.attribute, r.variable) == (attribute, "Linear.weight")
        ]
        for attribute in ("used_data", "used_grad")
    }
    assert [before for _, before in of["used_grad"]] == ["zero", "some", "some"]
    data = [value for value, _ in of["used_data"]]
    assert data[0] == data[1] != data[2], "the first update had gradients of zero, and changed nothing"


@pytest.mark.usefixtures("job")
def test_gradients_that_are_not_finite_count_as_zero() -> None:
    with observing(demanding(USED_GRAD)) as seen:
        model = torch.nn.Linear(8, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for factor in (1.0, float("nan")):
            optimizer.zero_grad()
            (model(torch.ones(4, 8)).sum() * factor).backward()
            optimizer.step()
    states = [value_of(r.context, "before") for r in seen.readings if r.attribute == "used_grad"]
    assert seen.faults == [] and states == ["some", "some", "zero", "zero"]


@pytest.mark.usefixtures("job")
def test_each_batch_of_the_model_is_read() -> None:
    batches = [reading.value for reading in trained(demanding("module.batch")) if reading.attribute == "batch"]
    assert len(batches) == len(set(batches)) == 3


@pytest.mark.usefixtures("job")
def test_optimizer_settings_are_read() -> None:
    demand = Demand.of_calls("torch.optim.Optimizer.__init__") | Demand.of_readings("parameter.first_data")
    assert [reading.variable for reading in trained(demand)] == ["Linear.weight", "Linear.bias"]


def test_a_single_process_reads_nothing_of_it() -> None:
    assert trained(demanding(USED_DATA, USED_GRAD, "module.batch")) == []


@pytest.mark.parametrize(
    ("grads", "note", "differ"),
    [
        ((7, 7, 8, 7), "rank 2 differs from ranks 0, 1, 3", (2,)),
        ((7, 8), "rank 0 and rank 1 differ", (0, 1)),
        ((7, 7, 8, 8), "ranks 0, 1 and ranks 2, 3 differ", (0, 1, 2, 3)),
    ],
)
def test_the_rank_that_differs_from_most_is_named(grads: tuple[int, ...], note: str, differ: tuple[int, ...]) -> None:
    step = tuple({"w": Update(1, grad, 10 + grad)} for grad in grads)
    occasions = across(ranks(step), USED_GRAD)
    notes = {occasion.note for occasion in occasions if occasion.failed}
    assert notes == {f"{note} in the gradient that the update used"}
    assert {occasion.differing for occasion in occasions if occasion.failed} == {(differ, len(grads))}
    assert all(occasion.note == "" for occasion in occasions if occasion.held)


def test_only_equal_shards_are_compared() -> None:
    """Ranks 0 to 2 hold one half of a parameter, ranks 3 to 5 the other one."""
    updates = ((1, 7, 20), (1, 8, 21), (1, 7, 20), (2, 9, 30), (2, 9, 30), (2, 9, 30))
    occasions = across(ranks(tuple({"w": Update(*update)} for update in updates)), USED_GRAD)
    failed = [occasion for occasion in occasions if occasion.failed and value_of(occasion.context, "same_before")]
    assert {occasion.differing for occasion in failed} == {((1,), 3)}
    assert {occasion.note for occasion in failed} == {
        "rank 1 differs from ranks 0, 2 in the gradient that the update used"
    }


def mesh(*shards: Update) -> tuple[Mapping[str, Update], ...]:
    return tuple({"w": shard} for shard in shards)


def test_shards_that_are_replicated_are_compared_with_their_replicas() -> None:
    """On a mesh of 2 x 2 the last rank has no replica in the first one, nor in the one before it."""
    good = mesh(Update(1, 5, 2), Update(11, 6, 12), Update(1, 5, 2), Update(11, 6, 12))
    diverged = mesh(Update(2, 5, 3), Update(12, 6, 13), Update(2, 5, 3), Update(99, 6, 98))
    assert verdicts(across(ranks(good), USED_GRAD), same_before=True) == [True, True]
    occasions = [
        occasion
        for occasion in across(ranks(good, diverged), USED_DATA)
        if occasion.failed and occasion.note.endswith(THOUGH_KEPT)
    ]
    (note,) = {occasion.note for occasion in occasions}
    assert note.endswith(" in the value before the update, though an earlier update left the same")


def test_differing_updates_with_equal_inputs_have_a_note() -> None:
    occasions = across(ranks(({"a": Update(1, 5, 2)}, {"a": Update(1, 5, 3)})), DATA)
    assert [occasion.note.rpartition(", ")[2] for occasion in occasions] == [
        "though value and gradient were the same before it"
    ]
