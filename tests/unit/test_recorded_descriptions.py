"""Descriptions are taken on a schedule, and each one is reported once."""

from __future__ import annotations

from observed_process import observing
from traincheck.sources.recording.descriptions import Descriptions, Schedule


def test_a_schedule_has_the_first_times_and_then_one_of_many() -> None:
    schedule = Schedule(often=3, seldom=10)
    assert [number for number in range(1, 31) if schedule.includes(number)] == [1, 2, 3, 10, 20, 30]


def test_only_a_new_description_is_reported() -> None:
    with observing() as seen:
        forms = Descriptions(seen.recorder, "batch")
        new = [forms.report(-1, model, "form", text) for model, text in (("Net", "a"), ("Net", "a"), ("Net", "b"))]
        others = [forms.report(-1, "Other", "form", "a"), forms.report(-1, "Net", "form", "a", stage="eval")]
        forms.forget()
        again = forms.report(-1, "Net", "form", "a")
    assert (new, others, again) == ([True, False, True], [True, True], True)
    readings = [(reading.variable, reading.value) for reading in seen.readings if reading.kind == "batch"]
    assert readings == [("Net", "a"), ("Net", "b"), ("Other", "a"), ("Net", "a"), ("Net", "a")]


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
