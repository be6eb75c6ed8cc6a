"""Tests the recorded arguments and modes of module and project function calls, and that no argument is kept alive."""

from __future__ import annotations

import contextlib
import gc
import sys
import warnings
import weakref
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils.checkpoint import checkpoint

from observed_process import Seen, observing
from small_trainings import Model
from traincheck.sources.functions.project_functions import MAX_CALLS
from traincheck.sources.modules.variables import VariableCatalog
from traincheck.vocab.call_kinds import LAYERED, NORMALISATION, taking
from traincheck.vocab.demand import ARGUMENTS, TENSOR_VALUES, TENSORS, Demand
from traincheck.vocab.events import NO_CALL, Call
from traincheck.vocab.facts import value_of

LINEAR = "torch.nn.functional.linear"
OPERATIONS = (torch.sin, torch.cos, torch.asinh, torch.erf, torch.sigmoid, torch.tanh, torch.atan, torch.expm1)


def only(seen: Seen, name: str) -> Call:
    (call,) = seen.named(name)
    return call


# -- modules ---------------------------------------------------------------------------------------------------------


@dataclass
class Output(dict):  # type: ignore[type-arg]
    """The output class of some libraries: a dict subclass."""


class Speller(nn.Module):
    """Takes keyword arguments like a language model."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(5, 4)

    def forward(
        self, ids: torch.Tensor, mask: torch.Tensor | None = None, use_cache: bool = True, **rest: object
    ) -> dict[str, torch.Tensor]:
        output = Output()
        output["logits"] = self.embed(ids)
        return output


def test_modules_record_positional_and_keyword_arguments() -> None:
    ids, mask = torch.tensor([[1, 2]]), torch.ones(1, 2)
    with observing() as seen:
        model = Speller()
        model(ids, mask)
        model(ids=ids, mask=mask, use_cache=False, scale=0.5)
    first, second = seen.named("test_sources_calls.Speller.forward")
    assert [tensor.role for tensor in first.tensors] == ["ids", "mask", "result[logits]"]
    assert [tensor.role for tensor in second.tensors] == ["ids", "mask", "result[logits]"]
    assert dict(first.args) == {"training": True}
    assert dict(second.args) == {"training": True, "use_cache": False, "scale": 0.5}


class Doubling(nn.Module):
    """Accepts one argument, and passes unexpected ones on to a function that rejects them."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2


def test_an_unexpected_argument_is_recorded_with_the_call_that_raises() -> None:
    x = torch.ones(2)
    with observing() as seen:
        model = Doubling()
        with pytest.raises(TypeError):
            model(x, mask=torch.ones(3), scale=0.5)
        model(x)
        model.forward = lambda x, scale: x * scale  # type: ignore[method-assign, assignment]
        model(x, scale=3)
    refused, plain, other = seen.named("test_sources_calls.Doubling.forward")
    assert dict(refused.args) == {"training": True, "scale": 0.5} and refused.end < 0
    assert [tensor.role for tensor in refused.tensors] == ["x", "mask"]
    assert dict(plain.args) == {"training": True} and [tensor.role for tensor in plain.tensors] == ["x", "result"]
    assert dict(other.args) == {"training": True, "scale": 3}


def test_an_empty_sequence_of_layers_is_an_identity() -> None:
    """Residual networks have one as shortcut. It calls no layer, as other sequences do."""
    with observing() as seen:
        nn.Sequential(nn.Sequential(), nn.Linear(4, 4))(torch.ones(2, 4))
    assert len(seen.named("torch.nn.Sequential.forward")) == len(seen.named("torch.nn.Identity.forward")) == 1


@pytest.mark.parametrize("backward", [torch.Tensor.backward, lambda loss: torch.autograd.backward(loss)])
def test_recomputation_in_a_backward_is_recorded(backward: Callable[[torch.Tensor], None]) -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Tanh())
    with observing() as seen:
        backward(checkpoint(model, torch.ones(2, 3, requires_grad=True), use_reentrant=False).sum())
    (window,) = [window for window in seen.windows if window.stage == "train"]
    around = [[above.name for above in window.ancestors(call)] for call in window.calls if call.name == LINEAR]
    assert [names[0] for names in around] == ["torch.nn.Linear.forward"] * 2
    assert ["torch.autograd.backward" in names for names in around] == [False, True]


class Moody(nn.Module):
    """Raises on request, and returns None."""

    def forward(self, fails: bool) -> None:
        if fails:
            raise ValueError("the user's own")


def test_a_backward_under_a_mode_of_the_program_is_one_call() -> None:
    """Torch calls the modes first, and each of them calls the function again."""

    class Passing(TorchFunctionMode):
        def __torch_function__(
            self,
            function: Callable[..., object],
            types: object,
            args: tuple[object, ...] = (),
            kwargs: dict[str, object] | None = None,
        ) -> object:
            return function(*args, **(kwargs or {}))

    with observing() as seen, Passing(), torch.device("cpu"):
        model = nn.Linear(3, 1)
        torch.autograd.backward(model(torch.ones(2, 3)).sum())
        model(torch.ones(2, 3)).sum().backward()
    assert len(seen.named("torch.autograd.backward")) == 2 and seen.faults == []


@pytest.mark.parametrize("handling", [False, True])
def test_a_module_that_raises_has_no_end_and_one_that_returns_nothing_has(handling: bool) -> None:
    def use(model: nn.Module) -> None:
        model(False)
        with contextlib.suppress(ValueError):
            model(True)

    with observing() as seen:
        try:
            raise KeyError(handling)
        except KeyError:
            if handling:
                use(Moody())
        if not handling:
            use(Moody())
    ends = [call.end > 0 for call in seen.named("test_sources_calls.Moody.forward")]
    assert ends == [True, False]


def test_functions_know_the_mode_of_the_module_they_run_in() -> None:
    with observing() as seen:
        model = Model()
        model(torch.ones(4, 4))
        model.body.eval()
        model(torch.ones(4, 4))
        torch.ones(2).exp()
    flags = [value_of(call.context, "training") for call in seen.named(LINEAR)]
    assert flags == [True, True, False, True]
    assert "training" not in dict(only(seen, "torch.Tensor.exp").context)


def test_recurrent_functions_have_two_signatures() -> None:
    with observing() as seen:
        lstm, x = nn.LSTM(2, 3, dropout=0.5, num_layers=2), torch.ones(4, 1, 2)
        lstm(x)
        lstm.eval()(nn.utils.rnn.pack_padded_sequence(x, [4]))
    padded, packed = (dict(call.args) for call in seen.named("torch.lstm"))
    assert (padded["dropout"], padded["train"], padded["num_layers"]) == (0.5, True, 2)
    assert (packed["dropout"], packed["train"], packed["num_layers"]) == (0.5, False, 2)


class Base(nn.Module):
    def __init__(self, num_layers: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.RMSNorm(4) for _ in range(num_layers))


class Tower(Base):
    def __init__(self, num_layers: int) -> None:
        super().__init__(num_layers - 1)
        self.layers.append(nn.RMSNorm(4))


def longer(tokens: torch.Tensor, limit: int) -> torch.Tensor:
    return tokens.repeat(1, limit)


def test_kinds_of_calls_can_be_demanded() -> None:
    kinds = (NORMALISATION, LAYERED, taking("limit"))
    with observing(Demand.of_calls(*kinds, values=(ARGUMENTS, TENSORS, *TENSOR_VALUES))) as seen:
        model = Tower(num_layers=3)
        model.layers[0](torch.ones(2, 4))
        model.layers[0].requires_grad_(False).weight.fill_(2.0)
        longer(torch.ones(2, 1), 3)
        nothing(True)
    built, norm, function = seen.calls
    assert built.name == "test_sources_calls.Tower.__init__" and dict(built.args) == {"num_layers": 3}
    assert dict(built.result) == {"layers": "1+3"}
    assert (value_of(norm.result, "scale"), value_of(norm.result, "shifted_scale")) == (1.0, 2.0)
    assert function.name == "test_sources_calls.longer"


def test_modules_without_parameters_are_marked() -> None:
    with observing() as seen:
        nn.Sequential(nn.Linear(4, 4), nn.ReLU())(torch.ones(2, 4))
    counts = [value_of(only(seen, f"torch.nn.{name}.forward").result, "parameters") for name in ("Linear", "ReLU")]
    assert counts == [None, False]


# -- functions of the project ----------------------------------------------------------------------------------------


class Helper:
    """A class with a method."""

    def mix(self, batch: dict[str, torch.Tensor], *more: torch.Tensor, rate: float = 0.5) -> tuple[torch.Tensor, int]:
        return batch["x"] * rate + sum(more), len(more)


def nothing(flag: bool) -> None:
    assert flag


def failing(flag: bool) -> None:
    if flag:
        raise KeyError(flag)


def test_project_functions_record_arguments_and_results() -> None:
    with observing() as seen:
        Helper().mix({"x": torch.ones(2), "y": torch.ones(3)}, torch.ones(2), rate=0.25)
        nothing(True)
        for flag in (True, False):
            try:
                failing(flag)
            except KeyError:
                continue
    mix = only(seen, "test_sources_calls.Helper.mix")
    assert dict(mix.args) == {"rate": 0.25, "len(more)": 1} and dict(mix.result) == {"length": 2}
    assert [tensor.role for tensor in mix.tensors] == ["batch[x]", "batch[y]", "more[0]", "result[0]"]
    assert dict(only(seen, "test_sources_calls.nothing").result) == {"value": None}
    raised, returned = seen.named("test_sources_calls.failing")
    assert raised.end == NO_CALL and returned.end > returned.seq
    assert dict(raised.args) == {"flag": True} and returned.result == (("value", None),)


def helper(value: int) -> int:
    if value == MAX_CALLS + 10:
        raise KeyError(value)
    return int(torch.tensor(value).abs()) + 1


class Own(torch.utils.data.Dataset[int]):
    """A custom data set."""

    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: int) -> int:
        return helper(index)


def test_only_the_first_calls_of_a_frequent_function_are_recorded() -> None:
    with observing() as seen:
        for value in range(MAX_CALLS + 50):
            with contextlib.suppress(KeyError):
                helper(value)
        torch.ones(2).abs()
        nothing(True)
    assert len(seen.named("test_sources_calls.helper")) == MAX_CALLS
    assert len(seen.named("torch.Tensor.abs")) == MAX_CALLS + 1, "none of those inside, all of those after"
    assert only(seen, "test_sources_calls.nothing").end > 0


def test_functions_are_recorded_in_a_custom_data_set_and_after_a_torch_data_set() -> None:
    with observing() as seen:
        tensors = torch.utils.data.TensorDataset(torch.arange(6.0))
        for (batch,) in torch.utils.data.DataLoader(torch.utils.data.Subset(tensors, range(4)), batch_size=2):
            helper(int(batch.sum()))
        helper(9)
        for _ in torch.utils.data.DataLoader(Own(), batch_size=3):
            pass
        torch.ones(2).sum()
    values = [value_of(call.args, "value") for call in seen.named("test_sources_calls.helper")]
    assert values == [1, 5, 9, 0, 1, 2]
    assert len(seen.named("torch.Tensor.sum")) == 3
    assert seen.faults == []


def lets_go(x: list[torch.Tensor], box: torch.Tensor) -> bool:
    reference = weakref.ref(box)
    x.clear()
    box = torch.zeros(1)
    return reference() is None


@pytest.mark.skipif(sys.version_info < (3, 11), reason="Python itself keeps them while a profiler is set")
def test_arguments_are_not_kept_alive() -> None:
    with observing() as seen:
        held = [torch.ones(3)]
        gone = lets_go(held, held[0])
        model = Model()
        y = model(torch.ones(4, 4, requires_grad=True))
        memory = weakref.ref(y)
        del y
        gc.collect()
        alive = memory()
    assert gone and alive is None
    assert seen.faults == [] and dict(only(seen, "test_sources_calls.lets_go").args) == {"len(x)": 1}


def test_long_texts_and_large_numbers_are_not_recorded() -> None:
    def arguments(value: object) -> dict[str, object]:
        with observing() as seen:
            takes(value)
        return dict(only(seen, "test_sources_calls.takes").args)

    assert arguments("mean") == {"value": "mean"}
    assert arguments("a prompt " * 20) == {}
    assert arguments(1 << 70) == {} and arguments(1 << 40) == {"value": 1 << 40}
    assert arguments(object()) == {}


def takes(value: object) -> None:
    assert value is not NotImplemented


class FastWeights(nn.Module):
    """Learns from copies of its weights, and returns a list of parameters instead of an iterator."""

    def __init__(self) -> None:
        super().__init__()
        self.weights = nn.ParameterList([torch.randn(4, 3), torch.zeros(4)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.linear(x, *self.weights)

    def parameters(self, recurse: bool = True) -> nn.ParameterList:  # type: ignore[override]
        return self.weights


def test_a_model_may_return_a_list_of_parameters() -> None:
    assert VariableCatalog().module_name(FastWeights()) == "FastWeights"


# -- warnings of the program -----------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("default:seen once:UserWarning")
def test_naming_a_function_does_not_show_a_warning_of_the_program_again(recwarn: pytest.WarningsRecorder) -> None:
    x = torch.ones(2)
    with observing():
        for operation in OPERATIONS:
            operation(x)
            warnings.warn("seen once", stacklevel=1)
    assert len(recwarn) == 1


def test_a_class_that_torch_derives_has_the_names_of_its_bases() -> None:
    """Torch makes a `ParametrizedLinear` at run time, which is no class that a program can name."""
    with observing() as seen:
        layer = nn.utils.parametrizations.weight_norm(nn.Linear(4, 4))
        layer(torch.ones(1, 4))
    assert type(layer).__name__ == "ParametrizedLinear"
    (names,) = (call.levels for call in seen.calls if call.receiver == "ParametrizedLinear")
    assert names == ("torch.nn.Linear.forward", "torch.nn.Module.forward")
