"""Tests which modules the catalog finds, and that the search does not disturb the program."""

from __future__ import annotations

import copy
import io
import pickle
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import nn

from observed_process import Seen, observing
from torch_version import TORCH
from traincheck.sources.modules.variables import VariableCatalog
from traincheck.vocab.facts import value_of

STEP = "torch.optim.Optimizer.step"
FORWARD = "torch.nn.Module.forward"


class Sole(nn.Module):
    """A model whose class name no other test uses."""

    def __init__(self) -> None:
        self.initialised = "before"  # a constructor may do something first
        super().__init__()
        self.body = nn.Linear(3, 3)
        self.head = nn.Linear(3, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.relu(self.body(x)))


class Plain(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x


class Defiant(Sole):
    """A model that is restored in its own way."""

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state)


NAMES = {"body.weight", "body.bias", "head.weight", "head.bias"}


def catalog_of(seen: Seen) -> VariableCatalog:
    (source,) = (source for source in seen.sources if source.name == "modules")
    catalog: VariableCatalog = source._catalog  # type: ignore[attr-defined]
    return catalog


def named(catalog: VariableCatalog, model: nn.Module) -> dict[str, str]:
    """The names of a model's parameters in the catalog."""
    catalog.refresh_modules()
    variables = {name: catalog.find(parameter) for name, parameter in model.named_parameters()}
    return {name: variable.name for name, variable in variables.items() if variable is not None}


def whole(prefix: str) -> dict[str, str]:
    return {name: f"{prefix}.{name}" for name in NAMES}


@contextmanager
def with_another_thread(faults: list[BaseException]) -> Iterator[list[int]]:
    """Another thread builds tuples from generators all the time; yields a list that it appends to."""
    over, made = threading.Event(), [0]

    def build() -> None:
        while not over.is_set():
            try:
                tuple(number for number in range(2000))
                made[0] += 1
            except BaseException as error:
                faults.append(error)

    thread = threading.Thread(target=build)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    thread.start()
    try:
        yield made
    finally:
        over.set()
        thread.join()
        sys.setswitchinterval(interval)


def test_objects_that_other_threads_are_building_are_not_referenced() -> None:
    """See Note [No list of all objects]."""
    faults: list[BaseException] = []
    with with_another_thread(faults) as made:
        for _ in range(3):
            with observing() as seen:
                model = Sole()
                for _ in range(10):
                    catalog_of(seen).refresh_modules()
                assert named(catalog_of(seen), model) == whole("Sole")
    assert made[0] and faults == []


# -- how a module comes to be ----------------------------------------------------------------------------------------


def test_a_copied_and_an_unpickled_model_have_names_before_they_are_used() -> None:
    with observing() as seen:
        model = Sole()
        copied, shallow = copy.deepcopy(model), copy.copy(model)
        unpickled = pickle.loads(pickle.dumps(model))
        file = io.BytesIO()
        torch.save(model, file)
        file.seek(0)
        loaded = torch.load(file, weights_only=False)
        catalog = catalog_of(seen)
        for number, instance in enumerate((model, copied, shallow, unpickled, loaded), start=1):
            expected = whole("Sole" if number == 1 or instance is shallow else f"Sole#{number}")
            assert named(catalog, instance) == expected


def test_a_model_with_custom_restoring_gets_its_name_when_it_is_used() -> None:
    with observing() as seen:
        model = Defiant()
        copied = copy.deepcopy(model)
        optimizer = torch.optim.SGD(copied.parameters(), lr=0.1)
        copied(torch.ones(2, 3)).sum().backward()
        optimizer.step()
    assert {change.variable for change in seen.around(STEP) if value_of(change.context, "held") == "this"} == {
        f"Defiant#2.{name}" for name in NAMES
    }
    assert {value_of(change.context, "owned") for change in seen.around(STEP)} == {True}
    assert seen.faults == []


def test_all_existing_models_are_found_with_a_single_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        sys, "_current_frames", dict[int, object](((0, None),)).copy
    )  # whatever runs the tests has more
    model = Sole()
    held = [{"model": copy.deepcopy(model)}]
    with observing(freeze=False) as seen:
        catalog = catalog_of(seen)
        both = [named(catalog, model), named(catalog, held[0]["model"])]
        assert all(names.keys() == NAMES and "param_groups" not in str(names) for names in both)
        assert both[0] != both[1]


class Trainer:
    def __init__(self) -> None:
        self.parts = {"model": Sole()}


trainer: Trainer | None = None


def test_with_several_threads_models_are_found_by_globals_or_use() -> None:
    global trainer
    trainer = Trainer()
    model = Sole()
    faults: list[BaseException] = []
    try:
        with with_another_thread(faults), observing() as seen:
            catalog = catalog_of(seen)
            assert named(catalog, trainer.parts["model"]) == whole("Sole")
            assert named(catalog, model) == {}
            model(torch.ones(2, 3))
            assert named(catalog, model) == whole("Sole#2")
    finally:
        trainer = None
    assert faults == [] and seen.faults == []


def test_a_loss_built_in_each_step_keeps_its_name_and_two_at_once_have_two() -> None:
    with observing() as seen:
        for _ in range(3):
            Plain()(torch.ones(2))
        first, second = Plain(), Plain()
        for module in (first, second, first):
            module(torch.ones(2))
    assert [call.receiver for call in seen.named(FORWARD)] == ["Plain"] * 4 + ["Plain#2", "Plain"]


@pytest.mark.filterwarnings("ignore:Lazy modules")
def test_lazy_modules_and_changed_classes() -> None:
    with observing() as seen:
        model = nn.Sequential(nn.LazyLinear(3), nn.Tanh())
        model(torch.ones(2, 5))
        catalog = catalog_of(seen)
        assert named(catalog, model) == {"0.weight": "Sequential.0.weight", "0.bias": "Sequential.0.bias"}
        other = Sole()
        other.__class__ = type("Sharded", (Sole,), {})
        assert named(catalog, other) == whole("Sharded")
    assert seen.faults == []


# -- nothing is hurt -------------------------------------------------------------------------------------------------


def test_no_module_is_kept_alive_and_all_entries_are_dropped() -> None:
    restore, construct = nn.Module.__setstate__, nn.Module.__init__
    plain = pickle.dumps(Plain())
    with observing() as seen:
        assert nn.Module.__init__ is construct
        assert pickle.dumps(Plain()) == plain
        model = Sole()
        catalog = catalog_of(seen)
        assert named(catalog, model) == whole("Sole")
        alive, body = weakref.ref(model), weakref.ref(model.body)
        model.body = nn.Linear(3, 3)
        assert body() is None
        del model
        assert alive() is None
        assert catalog.live_modules.living() == []
        again = Sole()
        assert named(catalog, again) == whole("Sole")
    assert nn.Module.__setstate__ is restore
    assert not nn.modules.module._global_parameter_registration_hooks


def with_children(x: torch.Tensor) -> torch.Tensor:
    return nn.ModuleList([nn.Tanh(), nn.ReLU()])[0].forward(x)


weight = nn.Parameter(torch.full((3,), 2.0))


def with_a_parameter(x: torch.Tensor) -> torch.Tensor:
    made = nn.Module()
    made.weight = weight
    return x * made.weight


@pytest.mark.filterwarnings("ignore")
def test_compilers_accept_the_same_modules_as_without_traincheck() -> None:
    x = torch.ones(2, 3)
    model = Sole()
    with observing() as seen:
        assert torch.equal(torch.compile(model, backend="eager", fullgraph=True)(x), model(x))
        assert torch.equal(torch.jit.script(model)(x), model(x))
        assert torch.equal(torch.fx.symbolic_trace(model)(x), model(x))
    assert seen.faults == []


@pytest.mark.parametrize(
    "function",
    [
        pytest.param(
            with_children,
            marks=pytest.mark.skipif(TORCH < (2, 5), reason="torch 2.4 cannot compile a new list of modules"),
        ),
        with_a_parameter,
    ],
)
def test_a_module_may_be_built_in_a_compiled_region(function: Callable[[torch.Tensor], torch.Tensor]) -> None:
    x = torch.ones(3)
    with observing() as seen:
        assert torch.equal(torch.compile(function, backend="eager", fullgraph=True)(x), function(x))
    assert seen.faults == []
