"""`Consistent` on hand-written windows: good and bad cases, and legitimate exceptions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from sample_windows import Script, occasions, verdicts
from traincheck.relations.consistent.configuration import SETTINGS
from traincheck.relations.consistent.learning_rates import FIRST_STEPS
from traincheck.relations.consistent.relation import Consistent
from traincheck.relations.parts import FORWARD
from traincheck.vocab.events import LOADED, SAVED, Window
from traincheck.vocab.facts import facts, value_of
from traincheck.vocab.occasion import Occasion, Property, Subject

SAVE, STATE_DICT = "torch.save", "torch.nn.Module.state_dict"
FRESH = facts(kind="parameter", requires_grad=True, fresh=True)


def of(script: Script, subject: Subject) -> list[Occasion]:
    return occasions(Consistent, script.windows, subject)


# -- saved and loaded --------------------------------------------------------------------------------------------------


def saving(*variables: str, wrong: str = "", missing: str = "", dtype: str = "float32", api: str = SAVE) -> Script:
    """A run that saves these parameters; of one the saved value is wrong, one is not saved."""
    script = Script().window("end")
    reads: list[Any] = []
    for number, name in enumerate(variables):
        reads += [
            ("parameter.data", name, number, "live", FRESH),
            ("parameter.dtype", name, "float32", "live", FRESH),
            ("parameter.shape", name, "4x8", "live", FRESH),
            ("parameter.present", name, name != missing, SAVED, FRESH),
        ]
        if name != missing:
            reads += [
                ("parameter.data", name, 99 if name == wrong else number, SAVED, FRESH),
                ("parameter.dtype", name, dtype, SAVED, FRESH),
                ("parameter.shape", name, "4x8", SAVED, FRESH),
            ]
    script.call(api, reads=reads)
    return script


SAVED_DATA = Property("saved equals live", "data")


def test_saved_values_equal_live_ones() -> None:
    (occasion,) = of(saving("Net.a", "Net.b"), Subject(SAVE, "parameter.saved"))
    assert occasion.held == {SAVED_DATA, *(Property("saved equals live", of) for of in ("dtype", "shape"))} | {
        Property("is saved", "parameter")
    }
    assert not occasion.failed and occasion.variables == ("Net.a", "Net.b")
    assert value_of(occasion.context, "fresh") is True and value_of(occasion.context, "stage") is None


def test_a_state_that_was_corrupted_on_the_way_to_the_file() -> None:
    good, bad = of(saving("Net.a", "Net.b", wrong="Net.b"), Subject(SAVE, "parameter.saved"))
    assert SAVED_DATA in good.held and good.variables == ("Net.a",)
    assert bad.failed == {SAVED_DATA} and bad.variables == ("Net.b",)


def test_a_parameter_that_is_missing_from_the_checkpoint() -> None:
    occasions = of(saving("Net.a", "Net.frozen", missing="Net.frozen"), Subject(SAVE, "parameter.saved"))
    missing = Property("is saved", "parameter")
    assert [(occasion.variables, missing in occasion.held) for occasion in occasions] == [
        (("Net.a",), True),
        (("Net.frozen",), False),
    ]
    # Its value was not saved, so it is not judged.
    assert SAVED_DATA not in occasions[1].held and SAVED_DATA not in (occasions[1].failed or ())


def parts(*files: dict[str, bool]) -> list[bool]:
    """Return whether parameters are saved by a run that writes these files at once: names, and presence."""
    script = Script().window("end")
    for file in files:
        script.call(SAVE, reads=[("parameter.present", name, there, SAVED, FRESH) for name, there in file.items()])
    return verdicts(of(script, Subject(SAVE, "parameter.saved")), Property("is saved", "parameter"))


def test_a_checkpoint_in_several_files_is_complete_if_they_are_together() -> None:
    assert parts({"a": True, "b": False}, {"a": False, "b": True}) == [True, True]
    assert parts({"a": True, "b": False, "c": False}, {"a": False, "b": True, "c": False}).count(False) == 2
    # Two checkpoints, of which one lacks something, are no parts of one.
    assert False in parts({"a": True, "b": False}, {"a": True, "b": True})


def test_values_in_another_precision_are_not_compared() -> None:
    (occasion,) = of(saving("Net.a", wrong="Net.a", dtype="bfloat16"), Subject(SAVE, "parameter.saved"))
    assert occasion.failed == {Property("saved equals live", "dtype")}
    assert SAVED_DATA not in occasion.held
    assert Consistent.is_optional_practice(
        Property("saved equals live", "dtype")
    ) and not Consistent.is_optional_practice(SAVED_DATA)


def test_saving_is_offered_at_every_level_of_the_call() -> None:
    script = Script().window("end")
    reads: list[Any] = [("buffer.data", "Net.m", 1, role) for role in ("live", SAVED)]
    script.call("train.Net.state_dict", STATE_DICT, reads=reads)
    for level in ("train.Net.state_dict", STATE_DICT):
        (occasion,) = of(script, Subject(level, "buffer.saved"))
        assert occasion.held == {SAVED_DATA}


def test_a_save_that_raised_is_no_occasion() -> None:
    script = Script().window("end")
    script.call(SAVE, ended=False, reads=[("parameter.data", "Net.a", 1), ("parameter.data", "Net.a", 2, SAVED)])
    assert of(script, Subject(SAVE, "parameter.saved")) == []


def test_live_values_after_a_load_equal_loaded_ones() -> None:
    script = Script().window("setup")
    load = "torch.nn.Module.load_state_dict"
    reads: list[Any] = [
        *[("parameter.data", "Net.a", 1, role) for role in (LOADED, "live")],
        ("parameter.data", "Net.b", 1, LOADED),
        ("parameter.data", "Net.b", 2, "live"),
        *[("parameter.dtype", "Net.c", dtype, role) for dtype, role in (("float16", LOADED), ("float32", "live"))],
        ("parameter.data", "Net.c", 1, LOADED),
        ("parameter.data", "Net.c", 2, "live"),
    ]
    script.call(load, reads=reads)
    good, bad = of(script, Subject(load, "parameter.loaded"))
    assert good.held == {Property("live equals loaded", "data")} and good.variables == ("Net.a",)
    assert bad.failed == good.held and bad.variables == ("Net.b",)  # c was cast, and says nothing


def test_an_optimizer_that_loses_entries_when_it_is_loaded() -> None:
    load = "torch.optim.Optimizer.load_state_dict"
    group = "SGD.param_groups[0]"
    script = Script().window("setup")
    for live in ("initial_lr+lr", "lr"):
        reads: list[Any] = [
            ("hyperparameter.keys", group, "initial_lr+lr", LOADED),
            ("hyperparameter.keys", group, live),
        ]
        script.call(load, receiver="SGD", reads=reads)
    occasions = of(script, Subject(load, "hyperparameter.loaded"))
    assert verdicts(occasions, Property("live equals loaded", "keys")) == [True, False]


# -- from update to update ---------------------------------------------------------------------------------------------

TRAINABLE = facts(kind="parameter", requires_grad=True)
STAYS_TRAINABLE = Property("stays", "parameter.requires_grad")
STAYS_FROZEN = Property("stays", "parameter.requires_grad", "frozen")
OVER_TIME = Subject("parameter.requires_grad", "time")


def trainable(name: str, value: bool) -> Any:
    return ("parameter.requires_grad", name, value, "live", facts(kind="parameter", requires_grad=value))


def test_trainable_parameters_stay_trainable() -> None:
    script = Script()
    script.window().step(trainable("Net.a", True), trainable("Net.b", False))
    script.window().step()
    script.window().step(trainable("Net.a", False))
    script.window().step()
    occasions = of(script, OVER_TIME)
    outcomes = [(occasion.variables, bool(occasion.held)) for occasion in occasions]
    assert outcomes == [
        (("Net.a",), True),
        (("Net.b",), True),
        (("Net.a",), False),
        (("Net.b",), True),
        (("Net.a", "Net.b"), True),
    ]
    assert value_of(occasions[2].context, "requires_grad") is True  # as it was before
    assert occasions[2].failed == {STAYS_TRAINABLE} and occasions[1].held == {STAYS_FROZEN}
    assert Consistent.is_optional_practice(STAYS_FROZEN) and not Consistent.is_optional_practice(STAYS_TRAINABLE)


def test_each_optimizer_has_its_own_state() -> None:
    """A program that freezes the critic while the generator learns is correct."""
    script = Script()
    for number in range(4):
        script.window()
        script.step(trainable("D.w", True), receiver="Adam")
        script.step(trainable("D.w", False), receiver="Adam#2")
        assert [bool(occasion.held) for occasion in of(script, OVER_TIME)] == [True] * 2 * number
    script.window().step(trainable("D.w", False), receiver="Adam")
    assert verdicts(of(script, OVER_TIME), STAYS_TRAINABLE)[-1] is False


def test_a_new_variable_has_no_past() -> None:
    script = Script()
    script.window().step(trainable("Net.a", True))
    script.window().step(trainable("Net.b", True))
    script.window().step(trainable("Net.b", False))
    assert [occasion.variables for occasion in of(script, OVER_TIME)] == [("Net.a",), ("Net.b",), ("Net.a",)]


def test_optimizer_settings_stay() -> None:
    decay, subject = Property("stays", "hyperparameter.weight_decay"), Subject("hyperparameter.weight_decay", "time")
    group = "AdamW.param_groups[0]"

    def run(between: Callable[[Script], object]) -> list[bool]:
        script = Script()
        script.window().step(("hyperparameter.weight_decay", group, 0.1), receiver="AdamW")
        script.window().step(receiver="AdamW")
        script.window()
        between(script)
        script.step(("hyperparameter.weight_decay", group, 0.2), receiver="AdamW")
        script.window().step(receiver="AdamW")
        return verdicts(of(script, subject), decay)

    assert run(lambda script: None) == [True, False, True]
    assert run(lambda script: script.schedule()) == [True, True]  # a scheduler may cycle it
    load = "torch.optim.Optimizer.load_state_dict"
    assert run(lambda script: script.call(load, receiver="AdamW")) == [True, True]
    assert run(lambda script: script.call(load, receiver="SGD")) == [True, False, True]


def test_a_setting_that_changes_in_each_step_is_a_schedule() -> None:
    decay, subject = Property("stays", "hyperparameter.weight_decay"), Subject("hyperparameter.weight_decay", "time")
    script = Script()
    for step in range(6):
        script.window().step(("hyperparameter.weight_decay", "AdamW.param_groups[0]", 0.1 + step), receiver="AdamW")
    script.window().step(receiver="AdamW")  # it ends
    assert False not in verdicts(of(script, subject), decay)


def test_settings_without_a_scheduler_stay() -> None:
    quantity, group = "hyperparameter.momentum", "SGD.param_groups[0]"

    def run(*values: float) -> list[bool]:
        script = Script()
        for value in values:
            script.window().step((quantity, group, value))
            script.schedule()
        return verdicts(of(script, Subject(quantity, "time")), Property("stays", quantity))

    assert run(0.9, 0.9, 0.9, 0.9, 0.9, 0.5, 0.5) == [True, False, True]
    assert run(0.9, 0.8, 0.7, 0.8, 0.9, 0.9, 0.9, 0.9, 0.9, 0.8) == []  # it is cycled


def test_entries_of_a_parameter_group_do_not_vanish() -> None:
    keys, subject, group = "hyperparameter.keys", Subject("hyperparameter.keys", "time"), "SGD.param_groups[0]"
    script = Script()
    script.window().step((keys, group, "lr+momentum"))
    script.window().step((keys, group, "initial_lr+lr+momentum"))
    script.window().step()
    script.window().call("torch.optim.Optimizer.load_state_dict", receiver="SGD", reads=[(keys, group, "lr+momentum")])
    script.step()
    assert verdicts(of(script, subject), Property("keeps", keys)) == [True, True, False, True]


def test_tied_weights_stay_tied() -> None:
    tied = Property("stays", "parameter.tied")
    script = Script()
    for still_tied in (True, True, False, False):
        context = facts(requires_grad=True, tied=still_tied)
        script.window().step(changes=[{"variable": "GPT.wte.weight", "context": context, "owner": "SGD"}])
    assert verdicts(of(script, Subject("parameter.tied", "time")), tied) == [True, False]


def test_state_is_reset_when_windows_are_dropped() -> None:
    script = Script()
    script.window().step(trainable("Net.a", True))
    script.window()
    script.window().step(trainable("Net.a", False))
    windows = script.windows
    assert verdicts(occasions(Consistent, windows, OVER_TIME), STAYS_TRAINABLE) == [False]
    assert occasions(Consistent, [windows[0], windows[2]], OVER_TIME) == []


# -- evaluation --------------------------------------------------------------------------------------------------------


def validated(*, back: bool, frozen_norm: bool = False) -> Script:
    script = Script()
    norm = not frozen_norm
    script.window().forward(("module.training", "Net", True), ("module.training", "Net.norm", norm))
    script.step()
    evaluation = [("module.training", "Net", False), ("module.training", "Net.norm", False)]
    script.window("eval").forward(*evaluation[: 1 if frozen_norm else 2], grad=False)
    again = [("module.training", "Net", True), ("module.training", "Net.norm", True)] if back else []
    script.window().forward(*again[: 1 if frozen_norm else 2])
    script.step()
    return script


def test_a_validation_gives_the_training_mode_back() -> None:
    restores, subject = Property("restores", "module.training"), Subject("module.training", "evaluation")
    (good,) = of(validated(back=True), subject)
    assert good.held == {restores} and good.variables == ("Net", "Net.norm")
    (bad,) = of(validated(back=False), subject)
    assert bad.failed == {restores} and bad.variables == ("Net", "Net.norm")
    (frozen,) = of(validated(back=True, frozen_norm=True), subject)
    assert frozen.held == {restores} and frozen.variables == ("Net",)


@pytest.mark.parametrize("updated", ["Net.a", "Temperature.a"])
def test_a_model_that_is_not_trained_any_more_may_stay_in_evaluation_mode(updated: str) -> None:
    """A program may fit some numbers of its own after the training of the model."""
    script = Script()
    script.window().forward(("module.training", "Net", True))
    script.step(changes=[{"variable": "Net.a"}])
    script.window("eval").forward(("module.training", "Net", False), grad=False)
    script.window().forward()
    script.step(changes=[{"variable": updated}])
    found = of(script, Subject("module.training", "evaluation"))
    assert [occasion.failed is not None for occasion in found] == [True] * (updated == "Net.a")


def test_other_and_untrained_models_are_not_judged() -> None:
    script = Script()
    script.window().forward(("module.training", "Net", True))
    script.window("eval").forward(("module.training", "Teacher", False), receiver="Teacher", grad=False)
    script.window().forward()
    script.forward(receiver="Teacher", grad=False)
    assert of(script, Subject("module.training", "evaluation")) == []


# -- learning rates ----------------------------------------------------------------------------------------------------

GROUP = "SGD.param_groups[0]"
AGREES = Property("agrees with", "scheduler.lr")
SCHEDULED = Subject("hyperparameter.lr", "schedule")


def rate(value: float, receiver: str = "SGD") -> Any:
    return ("hyperparameter.lr", f"{receiver}.param_groups[0]", value)


def test_the_optimizer_uses_the_rate_that_the_scheduler_set() -> None:
    script = Script()
    script.window().step(rate(0.1))
    script.schedule(("scheduler.lr", "StepLR", 0.05))
    script.window().step(rate(0.05))
    script.window().step()
    script.window().step(rate(0.1))
    assert verdicts(of(script, SCHEDULED), AGREES) == [True, True, False]


def test_several_schedulers_or_optimizers_give_no_rate() -> None:
    script = Script()
    script.window().step(rate(0.1))
    script.schedule(("scheduler.lr", "StepLR", 0.05))
    script.schedule(("scheduler.lr", "ExponentialLR", 0.01), receiver="ExponentialLR")
    script.window().step(rate(0.01))
    assert of(script, SCHEDULED) == []
    script = Script()
    script.window().step(rate(0.1))
    script.step(rate(0.3, "Adam"), receiver="Adam")
    script.schedule(("scheduler.lr", "StepLR", 0.05))
    script.window().step(rate(0.05))
    assert of(script, SCHEDULED) == []


def test_an_optimizer_that_steps_first_need_not_have_the_scheduler() -> None:
    script = Script()
    script.window()
    script.schedule(("scheduler.lr", "StepLR", 0.05))
    script.step(rate(0.3, "Adam"), receiver="Adam")
    script.step(rate(0.05))
    script.window().step(rate(0.3, "Adam"), receiver="Adam")
    script.step(rate(0.05))
    assert False not in verdicts(of(script, SCHEDULED), AGREES)


def behind_a_gap(script: Script, lost: int) -> list[bool]:
    """Return the verdicts on a script with one missing window."""
    windows = [window for window in script.windows if window.index != lost]
    return verdicts(occasions(Consistent, windows, SCHEDULED), AGREES)


def test_after_a_gap_a_rate_needs_an_agreeing_scheduler() -> None:
    script = Script()
    script.window().step(rate(0.1))
    script.schedule(("scheduler.lr", "StepLR", 0.05))
    script.window().step(rate(0.05))
    script.window().step()
    script.window().step(rate(0.05))
    script.schedule(("scheduler.lr", "StepLR", 0.02))
    script.window().step(rate(0.05))
    assert behind_a_gap(script, lost=2) == [True, False]


def test_after_a_gap_a_scheduler_may_have_an_unseen_optimizer() -> None:
    """Another optimizer steps in missing windows, or was seen before, so the owner of the rate is unknown."""
    script = Script()
    script.window().step(rate(0.1))
    script.window().step(rate(0.3, "Adam"), receiver="Adam")
    script.window().step(rate(0.1))
    script.schedule(("scheduler.lr", "StepLR", 0.2))
    script.window().step(rate(0.1))
    assert behind_a_gap(script, lost=1) == []
    script = Script()
    script.window().step(rate(0.1))
    script.step(rate(0.3, "Adam"), receiver="Adam")
    script.window()
    script.window().step(rate(0.1))
    script.schedule(("scheduler.lr", "StepLR", 0.1))
    script.window().step(rate(0.1))
    assert behind_a_gap(script, lost=1) == []


def test_schedulers_inside_another_do_not_count() -> None:
    script = Script()
    script.window().step(rate(0.1))
    outer = script.schedule(("scheduler.lr", "SequentialLR", 0.05), receiver="SequentialLR")
    script.schedule(("scheduler.lr", "LinearLR", 0.05), receiver="LinearLR", inside=outer)
    script.window().step(rate(0.05))
    assert verdicts(of(script, SCHEDULED), AGREES) == [True]


def test_a_first_step_with_the_rate_before_the_warm_up() -> None:
    start, begins = Subject("hyperparameter.lr", "start"), Property("does not halve", "hyperparameter.lr")

    def run(*rates: float) -> list[bool]:
        script = Script()
        for value in rates:
            script.window().step(rate(value))
        return verdicts(of(script, start), begins)

    assert run(0.1, 0.0, 0.001) == [False, True]
    assert run(0.0, 0.001, 0.002) == [True, True]
    assert run(0.1, 0.08, 0.06, 0.04) == [True] * 3
    assert run(*[0.1] * FIRST_STEPS, 0.01) == [True] * (FIRST_STEPS - 1)  # a drop later on is a schedule


def loading(*present: bool, kind: str = "parameter", also: Sequence[Any] = ()) -> Occasion:
    """The occasion of a load that has these of the parameters of a model."""
    script = Script().window("setup")
    reads: list[Any] = [
        (f"{kind}.present", f"Net.{number}", is_present, LOADED) for number, is_present in enumerate(present)
    ]
    script.call("torch.nn.Module.load_state_dict", receiver="Net", reads=[*also, *reads])
    (occasion,) = of(script, Subject("torch.nn.Module.load_state_dict", "model.loaded"))
    return occasion


def test_a_load_takes_something() -> None:
    takes = Property("takes something", "model")
    assert loading(True, False).held == loading(False, True, kind="buffer").held == {takes}
    nothing = loading(False, False, also=[("buffer.present", "Net.counted", True, LOADED)])
    assert nothing.failed == {takes} and nothing.variables == ("Net.0", "Net.1")
    assert not Consistent.is_optional_practice(takes)
    assert Consistent.needs(nothing.subject, takes).takes_reading("buffer", "present")
    sentence = "a call of Module.load_state_dict finds something of the model in what it loads"
    assert Consistent.describe(nothing.subject, takes) == sentence


# -- configuration -----------------------------------------------------------------------------------------------------


def test_settings_are_recorded_once_with_their_value() -> None:
    script = Script()
    reads = [("hyperparameter.lr", f"SGD.param_groups[{number}]", 0.1 * number) for number in (1, 2)]
    script.window().step(*reads, ("optimizer.class", "SGD", "torch.optim.SGD"))
    script.window().step(("hyperparameter.lr", "SGD.param_groups[1]", 0.7))
    (first,), (second,) = (
        of(script, Subject("hyperparameter.lr", f"setting {position} of SGD")) for position in (1, 2)
    )
    assert first.held == {Property("is", "hyperparameter.lr", "0.1")} and first.failed is None
    assert second.held == {Property("is", "hyperparameter.lr", "0.2")}
    (chosen,) = of(script, Subject("optimizer.class", "setting 1"))
    (prop,) = chosen.held
    assert Consistent.is_setting(prop) and not Consistent.is_setting(SAVED_DATA)
    assert Consistent.describe(chosen.subject, prop) == "the class of the optimizer is torch.optim.SGD"
    assert Consistent.describe(second.subject, *second.held) == "the learning rate (number 2) is 0.2"


def test_a_number_is_one_setting_however_it_is_written() -> None:
    written = []
    for value in (1, 1.0, True, None, "1"):
        script = Script()
        script.window().step(("hyperparameter.x", "SGD.param_groups[0]", value))
        (occasion,) = of(script, Subject("hyperparameter.x", "setting 1 of SGD"))
        written += [prop.detail for prop in occasion.held]
    assert written == ["1", "1", "True", "None", "1"]


def test_settings_of_a_loaded_state_are_not_this_programs() -> None:
    script = Script().window("setup")
    script.call("torch.optim.Optimizer.load_state_dict", receiver="SGD", reads=[rate(0.5)])
    script.window().step(rate(0.1))
    (occasion,) = of(script, Subject("hyperparameter.lr", "setting 1 of SGD"))
    assert occasion.held == {Property("is", "hyperparameter.lr", "0.1")}


def test_the_number_of_ranks_is_a_setting() -> None:
    (occasion,) = of(Script().window().read("run.ranks", "run", 2), Subject("run.ranks", "setting 1"))
    assert Consistent.describe(occasion.subject, *occasion.held) == "the number of ranks is 2"
    assert SETTINGS.takes_reading("run", "ranks") and not SETTINGS.takes_reading("run", "steps")


def test_the_precision_of_the_first_training_is_a_setting() -> None:
    script = Script()
    script.window("eval").call(FORWARD, receiver="Net", context=facts(autocast="off"))
    for cast in ("bfloat16", "off"):
        script.window().call(FORWARD, receiver="Net", context=facts(autocast=cast))
    (occasion,) = of(script, Subject("module.autocast", "setting 1"))
    assert occasion.held == {Property("is", "module.autocast", "bfloat16")}
    assert (
        Consistent.describe(occasion.subject, *occasion.held)
        == "the precision that autocast gives the model is bfloat16"
    )
    demand = Consistent.needs(occasion.subject, *occasion.held)
    assert demand.records_call([FORWARD]) and not demand.takes_readings("module")


def test_all_settings_of_a_run_can_be_requested() -> None:
    assert all(SETTINGS.takes_reading("hyperparameter", name) for name in ("lr", "anything"))
    assert SETTINGS.takes_reading("optimizer", "class") and SETTINGS.takes_reading("loader", "batch_size")
    assert not SETTINGS.takes_reading("optimizer", "anything") and not SETTINGS.takes_reading("parameter", "dtype")


def test_after_a_gap_no_setting_is_the_first() -> None:
    script = Script()
    script.window().step()
    script.window()
    script.window().step(rate(0.1))
    windows = script.windows
    assert occasions(Consistent, [windows[0], windows[2]], Subject("hyperparameter.lr", "setting 1 of SGD")) == []


# -- ranks -------------------------------------------------------------------------------------------------------------

SAME_DATA = Property("same on ranks", "parameter.data")


def ranks(*fingerprints: dict[str, int], contexts: dict[str, Any] | None = None) -> list[list[Window]]:
    """One step on several ranks; each has these parameters with these fingerprints."""
    windows = []
    for rank, held in enumerate(fingerprints):
        script = Script(rank=rank).window()
        changes = [
            {"variable": name, "fingerprint": value, "context": (contexts or {}).get(name, facts(requires_grad=True))}
            for name, value in held.items()
        ]
        script.step(changes=changes)
        windows.append(script.windows)
    return windows


def across(windows_by_rank: Sequence[Sequence[Window]], subject: Subject) -> list[Occasion]:
    relation = Consistent()
    return [
        occasion
        for windows in zip(*windows_by_rank, strict=True)
        for occasion in relation.across(windows)
        if occasion.subject == subject
    ]


def test_replicas_have_the_same_values() -> None:
    occasions = across(ranks({"Net.a": 1, "Net.b": 2}, {"Net.a": 1, "Net.b": 3}), Subject("parameter.data", "ranks"))
    outcomes = {occasion.variables: SAME_DATA in occasion.held for occasion in occasions}
    assert outcomes == {("Net.a",): True, ("Net.b",): False}
    assert value_of(occasions[0].context, "same_name") is True and value_of(occasions[0].context, "same_rank") is False


def test_few_ranks_are_compared_pairwise() -> None:
    subject = Subject("parameter.data", "ranks")
    occasions = across(ranks({"a": 1}, {"a": 1}, {"a": 2}, {"a": 2}), subject)
    assert sorted(verdicts(occasions, SAME_DATA)) == [False, False, False, False, True, True]
    assert across(ranks({"a": 1}), subject) == []


def test_facts_tell_shards_from_replicas() -> None:
    contexts = {
        "norm": facts(attributes="", requires_grad=True),
        "shard": facts(attributes="tensor_model_parallel", requires_grad=True),
    }
    occasions = across(
        ranks({"norm": 1, "shard": 1}, {"norm": 1, "shard": 2}, contexts=contexts), Subject("parameter.data", "ranks")
    )
    outcomes = {value_of(occasion.context, "attributes"): SAME_DATA in occasion.held for occasion in occasions}
    assert outcomes == {"": True, "tensor_model_parallel": False}


def test_values_of_a_single_rank_are_not_compared() -> None:
    assert across(ranks({"a": 1}, {"b": 2}), Subject("parameter.data", "ranks")) == []


def test_learning_rates_are_carried_on_when_ranks_are_compared() -> None:
    windows_by_rank = []
    for rank, last in enumerate((0.05, 0.1)):
        script = Script(rank=rank)
        script.window().step(rate(0.1))
        script.window().step()
        script.window().step(*([rate(last)] if last != 0.1 else []))
        windows_by_rank.append(script.windows)
    occasions = across(windows_by_rank, Subject("hyperparameter.lr", "ranks"))
    assert verdicts(occasions, Property("same on ranks", "hyperparameter.lr")) == [True, False]
    # What a rank said before a gap is not believed after it.
    gap = [[windows[0], replace(windows[2], index=7)] for windows in windows_by_rank]
    assert verdicts(
        across(gap, Subject("hyperparameter.lr", "ranks")), Property("same on ranks", "hyperparameter.lr")
    ) == [True]


# -- the relation as a whole -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("grain", ["time", "schedule", "setting 1 of SGD"])
def test_an_interest_limits_the_work(grain: str) -> None:
    script = Script()
    script.window().step(rate(0.1), trainable("Net.a", True))
    script.schedule(("scheduler.lr", "StepLR", 0.1))
    script.window().step()
    whole = Consistent()
    everything = [occasion for window in script.windows for occasion in whole.occasions(window)]
    assert {occasion.subject.grain for occasion in everything} >= {"time", "schedule", "setting 1 of SGD"}
    subjects = frozenset(occasion.subject for occasion in everything if occasion.subject.grain == grain)
    relation = Consistent(subjects)
    limited = [occasion for window in script.windows for occasion in relation.occasions(window)]
    assert {occasion.subject for occasion in limited} == subjects
    instance = Consistent(subjects)
    assert [
        occasion
        for windows in zip(script.windows, script.windows, strict=True)
        for occasion in instance.across(windows)
    ] == []
