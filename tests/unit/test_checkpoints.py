"""Tests the readings of parameters and buffers, live and saved, at saves and loads."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file, save_model
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

from observed_process import Seen, observing
from torch_version import TORCH
from traincheck.vocab.demand import EVERYTHING, Demand
from traincheck.vocab.events import Call, Reading
from traincheck.vocab.facts import FACTS, value_of

SAVE, SAVE_FILE = "torch.save", "safetensors.torch.save_file"
STATE_DICT, LOAD = "torch.nn.Module.state_dict", "torch.nn.Module.load_state_dict"


class Plain(nn.Module):
    """Three trained tensors, one frozen, the buffers of a batch norm, and one buffer that is not saved."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(3, 4, bias=False)
        self.norm = nn.BatchNorm1d(4)
        self.head = nn.Linear(4, 4, bias=False)
        self.stem.weight.requires_grad_(False)
        self.register_buffer("scratch", torch.ones(2), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.norm(self.stem(x)))


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.middle, self.out = (nn.Linear(3, 3, bias=False) for _ in range(3))
        self.out.weight = self.embed.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.middle(self.embed(x)))


MEMBERS = {
    "Plain.stem.weight",
    "Plain.norm.weight",
    "Plain.norm.bias",
    "Plain.norm.running_mean",
    "Plain.norm.running_var",
    "Plain.norm.num_batches_tracked",
    "Plain.head.weight",
}


def learn(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int = 1) -> None:
    for _ in range(steps):
        optimizer.zero_grad()
        (model(torch.randn(4, 3)) - 1).square().sum().backward()  # else a norm's bias hardly has a gradient
        optimizer.step()


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)


def saving(program: Callable[[nn.Module], Any], model_class: type[nn.Module] = Plain) -> tuple[Seen, list[Reading]]:
    """Return the readings of one torch.save call in `program`, which receives a model trained for one step."""
    with observing() as seen:
        model = model_class()
        learn(model, sgd(model))
        torch.save(program(model), io.BytesIO())
    assert seen.faults == [] and seen.missing == []
    (call,) = seen.named(SAVE)
    return seen, inside(seen, call)


def inside(seen: Seen, call: Call) -> list[Reading]:
    return [reading for reading in seen.readings if reading.call == call.seq and reading.kind != "checkpoint"]


def different(readings: list[Reading], attribute: str = "data", role: str = "saved") -> set[str]:
    """Return the variables whose copy differs from the live value; check that all pairs are compared."""
    values: dict[str, dict[str, list[object]]] = {}
    for reading in readings:
        if reading.attribute == attribute:
            values.setdefault(reading.variable, {}).setdefault(reading.role, []).append(reading.value)
    pairs = {name: roles for name, roles in values.items() if {"live", role} <= roles.keys()}
    assert pairs and all(len(roles["live"]) == len(roles[role]) for roles in pairs.values())
    return {name for name, roles in pairs.items() if roles["live"] != roles[role]}


def missing(readings: list[Reading]) -> set[str]:
    return {reading.variable for reading in readings if reading.attribute == "present" and reading.value is False}


def freshness(readings: list[Reading]) -> set[object]:
    return {value_of(reading.context, "fresh") for reading in readings}


def taken(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Copy a state dict into new memory, as helper functions do."""
    return {name: value.clone() for name, value in state.items()}


# -- what was saved --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "program",
    [
        lambda model: model.state_dict(),
        lambda model: taken(model.state_dict()),
        lambda model: {"epoch": 3, "state": {"of": [model.state_dict()]}},
        lambda model: model,
        lambda model: {f"module.{name}": value for name, value in taken(model.state_dict()).items()},
        lambda model: {f"module._orig_mod.{name}": value for name, value in model.state_dict().items()},
    ],
    ids=["state", "copy", "nested", "module", "prefix", "two prefixes"],
)
def test_a_good_save_is_the_live_state(program: Callable[[nn.Module], Any]) -> None:
    _, readings = saving(program)
    assert {reading.variable for reading in readings} == MEMBERS
    assert freshness(readings) == {True}
    for attribute in ("data", "dtype", "shape"):
        assert different(readings, attribute) == set()
    assert missing(readings) == set()
    assert {reading.role for reading in readings if reading.attribute == "present"} == {"saved"}


def test_readings_of_a_saved_variable() -> None:
    seen, readings = saving(lambda model: {"model": model.state_dict()})
    of = {(r.variable, r.attribute, r.role): r for r in readings}
    stem, head = of["Plain.stem.weight", "requires_grad", "live"], of["Plain.head.weight", "requires_grad", "live"]
    assert (stem.value, head.value) == (False, True)
    facts = {name: value_of(head.context, name) for name in ("kind", "requires_grad", "tied", "owned", "held", "fresh")}
    assert facts == {
        "kind": "parameter",
        "requires_grad": True,
        "tied": False,
        "owned": True,
        "held": "this",
        "fresh": True,
    }
    assert value_of(stem.context, "held") == "none"
    assert of["Plain.stem.weight", "shape", "saved"].value == "4x3"
    assert of["Plain.stem.weight", "dtype", "saved"].value == "float32"
    buffers = {r.variable for r in readings if r.kind == "buffer"}
    assert buffers == {f"Plain.norm.{name}" for name in ("running_mean", "running_var", "num_batches_tracked")}
    assert {name for reading in seen.readings for name, _ in reading.context} <= FACTS.keys()


def zero_one(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: torch.zeros_like(value) if name == "head.weight" else value for name, value in state.items()}


@pytest.mark.parametrize("copied", [False, True])
def test_a_helper_that_zeroes_one_entry(copied: bool) -> None:
    _, readings = saving(lambda model: zero_one(taken(model.state_dict()) if copied else model.state_dict()))
    assert freshness(readings) == {True}
    assert different(readings) == {"Plain.head.weight"}
    assert different(readings, "shape") == set()


def test_a_helper_that_transposes_one_entry() -> None:
    _, readings = saving(lambda model: {**model.state_dict(), "head.weight": model.head.weight.detach().t()})
    assert freshness(readings) == {True} and different(readings) == {"Plain.head.weight"}


def test_a_helper_that_reshapes_casts_and_loses() -> None:
    def program(model: nn.Module) -> dict[str, torch.Tensor]:
        state = model.state_dict()
        state["stem.weight"] = state["stem.weight"].t().contiguous()
        state["norm.bias"] = state["norm.bias"].half()
        del state["head.weight"]
        return state

    _, readings = saving(program)
    assert freshness(readings) == {True}
    assert missing(readings) == {"Plain.head.weight"}
    assert {r.role for r in readings if r.variable == "Plain.head.weight" and r.attribute == "data"} == {"live"}
    assert different(readings, "shape") == {"Plain.stem.weight"}
    assert different(readings, "dtype") == {"Plain.norm.bias"}
    assert different(readings) == {"Plain.stem.weight", "Plain.norm.bias"}


def test_a_returned_state_with_all_entries_replaced_is_still_matched() -> None:
    def program(model: nn.Module) -> dict[str, torch.Tensor]:
        state = model.state_dict()
        for name in state:
            state[name] = state[name] + 1
        return state

    _, readings = saving(program)
    assert freshness(readings) == {True} and different(readings) == MEMBERS


def test_the_best_weights_of_the_past_are_not_fresh() -> None:
    with observing() as seen:
        model = Plain()
        optimizer = sgd(model)
        learn(model, optimizer)
        best = copy.deepcopy(model.state_dict())
        learn(model, optimizer)
        torch.save(best, io.BytesIO())
    (call,) = seen.named(SAVE)
    readings = inside(seen, call)
    assert freshness(readings) == {False}
    assert different(readings) == MEMBERS - {"Plain.stem.weight"}  # frozen: it is the same in any copy


def test_averaged_weights_next_to_live_ones_are_distinguished() -> None:
    with observing() as seen:
        model = Plain()
        average = taken(model.state_dict())
        optimizer = sgd(model)
        for _ in range(2):
            learn(model, optimizer)
            for name, value in model.state_dict().items():
                if value.is_floating_point():
                    average[name].mul_(0.9).add_(value, alpha=0.1)
        torch.save({"model": model.state_dict(), "average": average}, io.BytesIO())
    (call,) = seen.named(SAVE)
    readings = inside(seen, call)
    fresh = [reading for reading in readings if value_of(reading.context, "fresh")]
    stale = [reading for reading in readings if not value_of(reading.context, "fresh")]
    assert different(fresh) == set()
    assert "Plain.head.weight" in different(stale)


def test_a_second_model_of_the_same_class_is_recognised_by_its_memory() -> None:
    with observing() as seen:
        model = Plain()
        learn(model, sgd(model))
        average = copy.deepcopy(model)
        learn(model, sgd(model))
        torch.save({"ema": average.state_dict()}, io.BytesIO())
        torch.save({"ema": dict(average.state_dict())}, io.BytesIO())
    for call in seen.named(SAVE):
        readings = inside(seen, call)
        assert freshness(readings) == {True} and different(readings) == set()
        assert {reading.variable.split(".")[0] for reading in readings} == {"Plain#2"}


def test_two_modules_in_one_mapping() -> None:
    with observing() as seen:
        model, other = Plain(), Tied()
        flat = {f"a.{name}": value for name, value in model.state_dict().items()}
        flat |= {f"b.{name}": value for name, value in other.state_dict().items()}
        torch.save(flat, io.BytesIO())
    (call,) = seen.named(SAVE)
    readings = inside(seen, call)
    assert {reading.variable for reading in readings} == MEMBERS | {"Tied.embed.weight", "Tied.middle.weight"}
    assert missing(readings) == set()


def test_saved_objects_without_a_module_state_are_not_recorded() -> None:
    with observing() as seen:
        model = Plain()
        optimizer = torch.optim.Adam(model.head.parameters())
        learn(model, optimizer)
        for content in (optimizer.state_dict(), {"loss": torch.ones(1)}, torch.ones(3), [1, "two"], {1: torch.ones(1)}):
            torch.save(content, io.BytesIO())
        torch.save({"adapter": model.head.weight}, io.BytesIO())  # fewer than half of the names
    assert seen.faults == [] and len(seen.named(SAVE)) == 6
    assert [r for call in seen.named(SAVE) for r in inside(seen, call)] == []


# -- tied weights ----------------------------------------------------------------------------------------------------


def test_a_part_of_a_state_is_compared_and_nothing_is_missing_from_it() -> None:
    def part(model: nn.Module) -> dict[str, torch.Tensor]:
        name, tensor = next(iter(model.state_dict().items()))
        return {name: torch.zeros_like(tensor)}

    _, readings = saving(part)
    assert not missing(readings) and len(different(readings)) == 1


def test_tied_weights_are_there_under_any_of_their_names() -> None:
    _, readings = saving(lambda model: {k: v for k, v in model.state_dict().items() if k != "out.weight"}, Tied)
    assert missing(readings) == set() and different(readings) == set()
    assert {reading.variable for reading in readings} == {"Tied.embed.weight", "Tied.middle.weight"}
    assert {value_of(r.context, "tied") for r in readings if r.variable == "Tied.embed.weight"} == {True}


def test_tied_weights_saved_separately_are_recorded_separately() -> None:
    def program(model: nn.Module) -> dict[str, torch.Tensor]:
        state = taken(model.state_dict())
        state["out.weight"].zero_()
        return state

    _, readings = saving(program, Tied)
    assert different(readings) == {"Tied.out.weight"}


# -- safetensors -----------------------------------------------------------------------------------------------------


def test_safetensors_bound_before_observation_began(tmp_path: Path) -> None:
    with observing() as seen:
        model = Tied()
        learn(model, sgd(model))
        save_model(model, str(tmp_path / "model"))
        state = taken(model.state_dict())
        state["middle.weight"].add_(1)
        save_file(state, tmp_path / "file")
    assert seen.faults == []
    good, bad = seen.named(SAVE_FILE)
    assert different(inside(seen, good)) == missing(inside(seen, good)) == set()
    assert different(inside(seen, bad)) == {"Tied.middle.weight"}
    assert (tmp_path / "file").exists()


def test_safetensors_is_put_back() -> None:
    import safetensors.torch

    before = dict(vars(safetensors.torch))
    with observing():
        assert vars(safetensors.torch)["serialize_file"] is not before["serialize_file"]
    assert vars(safetensors.torch) == before


# -- state dicts -----------------------------------------------------------------------------------------------------


def test_only_the_outermost_state_dict_is_a_call() -> None:
    with observing() as seen:
        model = Plain()
        model.state_dict()
        model.norm.state_dict(prefix="inner.")
    first, second = seen.named(STATE_DICT)
    assert (first.receiver, second.receiver) == ("Plain", "Plain.norm")
    assert {reading.variable for reading in inside(seen, first)} == MEMBERS
    assert freshness(inside(seen, first)) == {True} and different(inside(seen, first)) == set()
    assert missing(inside(seen, second)) == set()
    assert {reading.variable for reading in inside(seen, second)} == {m for m in MEMBERS if ".norm." in m}


class Forgetful(Plain):
    """Omits frozen parameters from its state, as some frameworks do."""

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        state = super().state_dict(*args, **kwargs)
        return {name: value for name, value in state.items() if name != "stem.weight"}


def test_entries_omitted_by_a_custom_state_dict_are_missing_from_the_save() -> None:
    _, readings = saving(lambda model: model.state_dict(), Forgetful)
    assert missing(readings) == {"Forgetful.stem.weight"}
    assert freshness(readings) == {True}


def test_a_state_dict_that_raises() -> None:
    def refuse(*others: object) -> None:
        raise ZeroDivisionError

    for demand in (EVERYTHING, Demand.of_calls(SAVE)):
        with observing(demand) as seen:
            model = Plain()
            hook = model.head.register_state_dict_pre_hook(refuse)
            with pytest.raises(ZeroDivisionError):
                model.state_dict()
            hook.remove()
            torch.save(model.state_dict(), io.BytesIO())
        assert seen.faults == [] and len(seen.named(SAVE)) == 1
        assert [call.end > 0 for call in seen.named(STATE_DICT)] == ([False, True] if demand.everything else [])


def test_a_hook_that_drops_an_entry_shows_in_the_state_dict_itself() -> None:
    def drop(module: nn.Module, state: dict[str, torch.Tensor], *others: object) -> None:
        del state["norm.running_var"]

    with observing() as seen:
        model = Plain()
        register = model.register_state_dict_post_hook if TORCH >= (2, 5) else model._register_state_dict_hook
        register(drop)
        model.state_dict()
    (call,) = seen.named(STATE_DICT)
    assert missing(inside(seen, call)) == {"Plain.norm.running_var"}


@pytest.mark.filterwarnings("ignore")
def test_a_compiled_model_and_the_one_inside_it() -> None:
    with observing() as seen:
        model = Plain()
        compiled = torch.compile(model, backend="eager")
        compiled.state_dict()
        torch.save(taken(compiled.state_dict()), io.BytesIO())
        torch.save(taken(model.state_dict()), io.BytesIO())
        torch.save({k.removeprefix("_orig_mod."): v for k, v in compiled.state_dict().items()}, io.BytesIO())
    assert seen.faults == []
    for call in (seen.named(STATE_DICT)[0], *seen.named(SAVE)):
        readings = inside(seen, call)
        assert len({reading.variable for reading in readings}) == len(MEMBERS)
        assert missing(readings) == different(readings) == set() and freshness(readings) == {True}


@pytest.mark.filterwarnings("ignore")
def test_wrappers_inside_a_model_are_a_part_of_some_names_only() -> None:
    """Activation checkpointing leaves its wrapper out of a state, torch.compile does not."""
    with observing() as seen:
        model = Plain()
        model.stem, model.head = checkpoint_wrapper(model.stem), torch.compile(model.head, backend="eager")
        state = model.state_dict()
        torch.save(taken(state), io.BytesIO())
        torch.save({name.replace("_orig_mod.", ""): value for name, value in state.items()}, io.BytesIO())
        model.load_state_dict({name: value for name, value in state.items() if name != "stem.weight"}, strict=False)
    assert seen.faults == [] and {"stem.weight", "head._orig_mod.weight"} <= set(state)
    for call in (seen.named(STATE_DICT)[0], *seen.named(SAVE)):
        readings = inside(seen, call)
        assert {reading.variable for reading in readings} == MEMBERS
        assert missing(readings) == set() and {value_of(reading.context, "tied") for reading in readings} == {False}
    (load,) = seen.named(LOAD)
    assert missing(inside(seen, load)) == {"Plain.stem.weight"}


# -- loading ---------------------------------------------------------------------------------------------------------


def loading(change: Callable[[dict[str, torch.Tensor]], object], **options: bool) -> tuple[Call, list[Reading]]:
    state = taken(Plain().state_dict())
    change(state)
    with observing() as seen:
        Plain().load_state_dict(state, **options)
    assert seen.faults == []
    (call,) = seen.named(LOAD)
    return call, inside(seen, call)


def test_loaded_values_are_live() -> None:
    call, readings = loading(lambda state: None)
    assert call.receiver == "Plain" and call.end > 0
    assert different(readings, role="loaded") == missing(readings) == set()
    assert {reading.variable for reading in readings} == MEMBERS
    assert freshness(readings) == {None}


def test_assigned_tensors_are_the_live_ones() -> None:
    _, readings = loading(lambda state: None, assign=True)
    assert different(readings, role="loaded") == missing(readings) == set()
    assert {reading.variable for reading in readings} == MEMBERS


def test_entries_skipped_without_strict_are_missing() -> None:
    _, readings = loading(lambda state: state.pop("head.weight"), strict=False)
    assert missing(readings) == {"Plain.head.weight"}

    def prefixed(state: dict[str, torch.Tensor]) -> None:
        for name in list(state):
            state[f"module.{name}"] = state.pop(name)

    _, readings = loading(prefixed, strict=False)
    # Batch norms make up the counter that files of old versions lack.
    assert missing(readings) == MEMBERS - {"Plain.norm.num_batches_tracked"}


def test_a_hook_that_renames_loaded_entries() -> None:
    state = taken(Plain().state_dict())
    state["old.weight"] = state.pop("head.weight")

    def rename(module: nn.Module, handed: dict[str, torch.Tensor], *others: object) -> None:
        handed["head.weight"] = handed.pop("old.weight")

    with observing() as seen:
        model = Plain()
        if TORCH >= (2, 5):
            model.register_load_state_dict_pre_hook(rename)
        else:
            model._register_load_state_dict_pre_hook(rename, with_module=True)
        model.load_state_dict(state)
    (call,) = seen.named(LOAD)
    assert missing(inside(seen, call)) == set()


def test_a_load_that_raises_records_no_reading() -> None:
    with observing() as seen:
        with pytest.raises(RuntimeError, match="Missing key"):
            Plain().load_state_dict({})
        with pytest.raises(TypeError):
            Plain().load_state_dict([])
    assert [call.end for call in seen.named(LOAD)] == [-1]
    assert seen.faults == [] and not [reading for reading in seen.readings if reading.kind not in ("run", "no_grad")]


def test_a_parameter_that_a_load_leaves_as_it_was() -> None:
    class Stubborn(Plain):
        def __init__(self) -> None:
            super().__init__()
            self.register_load_state_dict_post_hook(lambda module, _: module.reset())

        def reset(self) -> None:
            nn.init.ones_(self.head.weight)

    state = taken(Plain().state_dict())
    with observing() as seen:
        Stubborn().load_state_dict(state)
    (call,) = seen.named(LOAD)
    assert different(inside(seen, call), role="loaded") == {"Stubborn.head.weight"}


# -- optimizers ------------------------------------------------------------------------------------------------------


def test_saved_and_loaded_optimizer_settings() -> None:
    with observing() as seen:
        model = Plain()
        optimizer = sgd(model)
        state = optimizer.state_dict()
        state["param_groups"][0]["initial_lr"] = 0.5
        state["param_groups"][0]["lr"] = 0.25
        optimizer.load_state_dict(state)
    (gave,) = seen.named("torch.optim.Optimizer.state_dict")
    (load,) = seen.named("torch.optim.Optimizer.load_state_dict")
    for call, role, rate in ((gave, "saved", 0.1), (load, "loaded", 0.25)):
        assert call.receiver == "SGD"
        values = {(r.attribute, r.role): r.value for r in inside(seen, call)}
        assert values["lr", role] == values["lr", "live"] == rate
        assert values["keys", role] == values["keys", "live"]
        assert ("initial_lr" in str(values["keys", role])) is (call is load)
    assert {r.variable for r in inside(seen, load)} == {"SGD.param_groups[0]"}


# -- demand, and the program -----------------------------------------------------------------------------------------


def run() -> tuple[bytes, list[torch.Tensor]]:
    torch.manual_seed(0)
    model = Plain()
    optimizer = sgd(model)
    learn(model, optimizer, 2)
    file = io.BytesIO()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)
    model.load_state_dict(torch.load(io.BytesIO(file.getvalue()))["model"])
    learn(model, optimizer)
    return file.getvalue(), [p.detach().clone() for p in (*model.parameters(), *model.buffers())]


def test_the_file_and_the_training_are_the_same() -> None:
    file, weights = run()
    with observing() as seen:
        observed, others = run()
    assert seen.faults == [] and observed == file
    assert all(map(torch.equal, weights, others))


def test_only_demanded_readings_are_taken() -> None:
    demand = Demand.of_calls(SAVE) | Demand.of_readings("parameter.data")
    with observing(demand) as seen:
        run()
    (call,) = seen.named(SAVE)
    assert not seen.named(STATE_DICT) and not seen.named(LOAD)
    assert {(r.kind, r.attribute, r.call) for r in seen.readings} == {("parameter", "data", call.seq)}
    with observing(Demand.of_calls(SAVE)) as seen:
        run()
    assert len(seen.named(SAVE)) == 1 and seen.readings == []


def test_saved_objects_are_not_kept_alive() -> None:
    import gc
    import weakref

    with observing():
        model = Plain()
        state = model.state_dict()
        torch.save({"model": state}, io.BytesIO())
        model.load_state_dict(state)
        alive = [weakref.ref(model), weakref.ref(state), weakref.ref(state["head.weight"])]
        del model, state
        gc.collect()
        assert [reference() for reference in alive] == [None, None, None]
