"""Descriptions are taken on a schedule, and each one is reported once."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from observed_process import Seen, observing
from traincheck.sources.gradients import graphs
from traincheck.sources.recording.descriptions import Descriptions, Schedule
from traincheck.vocab.demand import EVERYTHING


def test_a_schedule_has_the_first_times_and_then_one_of_many() -> None:
    schedule = Schedule(often=3, seldom=10)
    assert [number for number in range(1, 31) if schedule.includes(number)] == [1, 2, 3, 10, 20, 30]


def test_only_a_new_description_is_reported() -> None:
    with observing() as seen:
        forms = Descriptions(seen.recorder, "batch")
        new = [forms.report(-1, model, "form", text) for model, text in (("Net", "a"), ("Net", "a"), ("Net", "b"))]
        others = [forms.report(-1, "Other", "form", "a"), forms.report(-1, "Net", "form", "a", stage="eval")]
    assert (new, others) == ([True, False, True], [True, True])
    readings = [(reading.variable, reading.value) for reading in seen.readings if reading.kind == "batch"]
    assert readings == [("Net", "a"), ("Net", "b"), ("Other", "a"), ("Net", "a")]


def test_a_description_may_be_reported_several_times() -> None:
    with observing() as seen:
        twice = Descriptions(seen.recorder, "batch", most_reports=2)
        assert [twice.report(-1, "Net", "form", "a") for _ in range(3)] == [True, True, False]


def test_variables_of_one_kind_are_reported_together() -> None:
    with observing() as seen:
        graphs = Descriptions(seen.recorder, "graph")
        graphs.report_together(-1, "layers.*", "operations", {"a": "layers.0", "b": "layers.1"})
        graphs.report_together(-1, "layers.*", "operations", {"b": "layers.0", "a": "layers.1"})
        graphs.report_together(-1, "layers.*", "operations", {"b": "layers.0"})
    assert [reading.variable for reading in seen.readings if reading.kind == "graph"] == [
        "layers.0",
        "layers.1",
        "layers.0",
    ]


KINDS = ("batch", "graph", "model", "no_grad")
NOT_DESCRIBED = ("described_all", "magnitudes")
"""Attributes of these kinds that are no description: they are reported each time."""


def described(after_step: Callable[[Seen, int], object], watches: Callable[[int], bool]) -> list[tuple[str, str, str]]:
    """The descriptions of a training of twenty steps."""
    with observing(EVERYTHING, watches=watches) as seen:
        net = nn.Linear(8, 2)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for step in range(1, 21):
            x = torch.ones(4, 8).mul(0.5)
            optimizer.zero_grad()
            net(x).square().mean().backward()
            optimizer.step()
            after_step(seen, step)
    assert seen.faults == []
    readings = [
        reading for reading in seen.readings if reading.kind in KINDS and reading.attribute not in NOT_DESCRIBED
    ]
    return [(reading.variable, reading.attribute, str(reading.value)) for reading in readings]


def nothing(seen: Seen, step: int) -> None:
    """Do nothing after a step."""


def test_a_gap_is_no_reason_to_report_again() -> None:
    everything = described(nothing, lambda step: True)
    in_part = described(nothing, lambda step: step < 6 or step % 4 < 2)
    assert set(in_part) == set(everything)
    assert len(in_part) <= len(everything)


@pytest.mark.parametrize("gap", (False, True))
def test_descriptions_of_a_dropped_window_are_reported_again(gap: bool) -> None:
    def drop(seen: Seen, step: int) -> None:
        if step < 3:
            seen.recorder.drop_window()

    again = described(drop, (lambda step: step % 4 < 3) if gap else lambda step: True)
    assert set(again) == set(described(nothing, lambda step: True))


def test_a_reader_that_begins_later_gets_all_descriptions() -> None:
    def begin(seen: Seen, step: int) -> None:
        if step == 10:
            seen.recorder.repeat_reports()

    once = [description for description in described(nothing, lambda step: True) if description[1] == "parameters"]
    twice = [description for description in described(begin, lambda step: True) if description[1] == "parameters"]
    assert len(once) == 1
    assert twice == once * 2


@pytest.mark.parametrize(("alternates", "again"), [(False, 1), (True, 5)])
def test_graphs_that_were_all_the_same_are_described_once_for_a_later_reader(
    monkeypatch: pytest.MonkeyPatch, alternates: bool, again: int
) -> None:
    """Graphs of one size that differed are described as often as at first."""
    described_in: list[int] = []
    describe = graphs.describe
    monkeypatch.setattr(graphs, "describe", lambda *args: described_in.append(step) or describe(*args))
    net = nn.Linear(8, 2)
    with observing() as seen:
        for step in range(1, 21):
            outputs = net(torch.ones(4, 8))
            (outputs.sigmoid() if alternates and step % 2 else outputs.tanh()).mean().backward()
            if step == 10:
                seen.recorder.repeat_reports()
    assert seen.faults == []
    # The size of the first graph is unknown: operations before it count.
    assert described_in == [1, *range(2, 7), *range(11, 11 + again)]


def test_the_model_of_a_new_optimizer_is_described_at_once() -> None:
    def train(net: nn.Module) -> None:
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for _ in range(8):
            net(torch.ones(4, 8)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()

    with observing(EVERYTHING) as seen:
        train(nn.Linear(8, 2))
        train(nn.Sequential(nn.Linear(8, 2)))
    assert seen.faults == []
    readings = [reading for reading in seen.readings if (reading.kind, reading.attribute) == ("model", "modules")]
    assert [reading.variable for reading in readings] == ["Linear", "Sequential"]
