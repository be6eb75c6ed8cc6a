"""Demands are united quickly, and each of their parts answers only for itself."""

from __future__ import annotations

import time

from traincheck.vocab.demand import ARGUMENTS, EVERYTHING, NOTHING, NUMBERS, VALUE_KINDS, Demand, union_of

STEP, RELU = "torch.optim.Optimizer.step", "torch.relu"


def test_each_part_answers_for_itself() -> None:
    demand = Demand.of_calls(STEP, changes=("parameter.data",)) | Demand.of_calls(RELU, values=(NUMBERS,))
    assert demand.records_call(("SGD.step", STEP)) and not demand.records_call(("SGD.step",))
    assert demand.observes_state((STEP,), "parameter.data") and not demand.observes_state((STEP,), "parameter.grad")
    assert not demand.observes_state((RELU,), "parameter.data")
    assert [kind for kind in VALUE_KINDS if demand.reads_values((RELU,), kind)] == [NUMBERS]
    assert not demand.reads_values((STEP,), NUMBERS)
    assert demand.named_apis() == {STEP, RELU} and not demand.readings


def test_changes_may_be_observed_around_calls_that_are_not_recorded() -> None:
    demand = Demand.of_changes((STEP, "parameter.data"))
    assert demand.observes_state((STEP,), "parameter.data") and not demand.records_call((STEP,))
    assert demand.named_apis() == {STEP}


def test_readings_are_of_one_attribute_or_of_all() -> None:
    demand = Demand.of_readings("hyperparameter.lr", "run.*")
    assert demand.takes_reading("hyperparameter", "lr") and not demand.takes_reading("hyperparameter", "momentum")
    assert demand.takes_reading("run", "steps") and demand.takes_readings("run") and not demand.takes_readings("module")
    assert demand.has_other_than("run") and not Demand.of_readings("run.steps").has_other_than("run")


def test_coverage_of_demands() -> None:
    part, whole = Demand.of_calls(RELU), Demand.of_calls(RELU, STEP, values=(ARGUMENTS,))
    assert whole.covers(part) and not part.covers(whole) and EVERYTHING.covers(whole) and whole.covers(NOTHING)
    assert NOTHING.is_empty and not part.is_empty and not EVERYTHING.is_empty


def test_the_demands_of_many_rules_are_united_at_once() -> None:
    rules = [
        Demand.of_calls(f"f{number}", changes=("parameter.data",), values=(ARGUMENTS,)) for number in range(10_000)
    ]
    began = time.perf_counter()
    demand = union_of(rules)
    assert time.perf_counter() - began < 1.0
    assert len(demand.calls) == len(demand.state_changes) == len(demand.call_values) == 10_000
    assert union_of([]) == NOTHING and union_of([NOTHING, EVERYTHING]).everything
