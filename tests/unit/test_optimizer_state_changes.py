"""Tests that optimizer state is read once a step, even if the program writes to it, and for few parameters."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from loops import STEP
from observed_process import observing
from traincheck.sources.modules.variables import Variable
from traincheck.sources.optimizers.optimizer_state_changes import representatives
from traincheck.vocab.demand import EVERYTHING, SOME_STATE, Demand
from traincheck.vocab.events import Change

OF_SOME = Demand.of_calls(STEP, changes=(SOME_STATE,))


def changes(
    demand: Demand, between: Callable[[torch.optim.Optimizer], object] = lambda optimizer: None
) -> list[Change]:
    """The changes of optimizer state in four steps; `between` is called before the last one."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.Linear(8, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0, momentum=0.9)
    with observing(demand) as seen:
        for step in range(4):
            if step == 3:
                between(optimizer)
            optimizer.zero_grad()
            model(torch.ones(2, 4)).square().mean().backward()
            optimizer.step()
    assert seen.faults == []
    return [change for window in seen.windows for change in window.changes if change.kind == "optimizer_state"]


def test_few_states_are_recorded_if_a_rule_needs_any_change() -> None:
    every, few = changes(EVERYTHING), changes(OF_SOME)
    assert len({change.variable for change in every}) == 6
    assert len({change.variable for change in few}) == 2, "a vector and a matrix"
    recorded = {(change.seq, change.variable): change for change in few}
    assert [change.before for change in recorded.values()][:2] == ["none", "none"]
    assert all(change.changed for change in few)


def other_memory(optimizer: torch.optim.Optimizer) -> None:
    optimizer.load_state_dict(optimizer.state_dict())


def in_place(optimizer: torch.optim.Optimizer) -> None:
    for state in optimizer.state.values():
        state["momentum_buffer"].zero_()


@pytest.mark.parametrize("between", [other_memory, in_place])
def test_state_written_between_steps_is_read_again(between: Callable[[torch.optim.Optimizer], object]) -> None:
    """With momentum 0 after the third step, the fourth brings it back to a gradient that is always the same."""

    def back_to_the_gradient(optimizer: torch.optim.Optimizer) -> None:
        between(optimizer)
        optimizer.param_groups[0]["momentum"] = 0.0 if between is other_memory else 1e-30

    recorded = changes(EVERYTHING, back_to_the_gradient)
    last = {change.variable: change for change in recorded[-6:]}
    if between is in_place:
        first = {change.variable: change.fingerprint for change in recorded[:6]}
        assert {name: change.fingerprint for name, change in last.items()} == first, "the first gradient once more"
    assert all(change.changed for change in last.values()) is (between is in_place)


def test_representatives_are_small_and_cover_each_number_of_dimensions() -> None:
    held = []
    for shape in ((9, 9), (3, 3), (4,), (2,), (1, 1, 1), (), (2, 2)):
        tensor = torch.zeros(shape)
        held.append((Variable("v", weakref.ref(tensor), owned=True), tensor))
    for variable, _ in held[:-1]:
        variable.hold("SGD", held=True)
    gradients = ["some", "some", "some", "none", "zero", "some", "some"]
    optimizer = SimpleNamespace(state={})
    assert representatives("SGD", optimizer, held, gradients) == [1, 2, 5]
    optimizer.state = {held[0][1]: {"momentum": 1}, held[2][1]: {}}
    assert representatives("SGD", optimizer, held, gradients) == [0], "of the others it keeps nothing, here at least"


def test_readings_of_deleted_optimizers_are_dropped() -> None:
    model = nn.Linear(4, 2)
    with observing() as seen:
        for _ in range(3):
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
            model(torch.ones(2, 4)).sum().backward()
            optimizer.step()
        (source,) = (candidate for candidate in seen.sources if candidate.name == "optimizers")
        assert list(source._state_changes._last_reads) == ["SGD#3"]  # type: ignore[attr-defined]
