"""States of a model that take pretrained weights: those that the program forgets to load, and those that it means."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from trained_programs import Net, errors_of, trained

DIAGNOSIS = "load-did-not-restore"


def pretrained() -> dict[str, Any]:
    model = Net()
    trained(model)
    return model.state_dict()


def fine_tuned(use: Callable[[nn.Module, dict[str, Any], dict[str, Any]], Any], *, renews_head: bool = False) -> None:
    """Write pretrained weights into the state of a new model, use that state, and train the model."""
    weights = pretrained()
    model = Net()
    own = model.state_dict()
    if renews_head:
        weights = {name: value for name, value in weights.items() if not name.startswith("head")}
    own.update(weights)
    kept = use(model, own, weights)
    trained(model)
    del own, kept


def fine_tuned_from_a_file(*, loads: bool) -> None:
    file = io.BytesIO()
    torch.save({"model": pretrained()}, file)
    file.seek(0)
    model = Net()
    own = model.state_dict()
    weights = torch.load(file)["model"]
    weights = {name: value for name, value in weights.items() if own[name].shape == value.shape}
    own.update(weights)
    if loads:
        model.load_state_dict(own)
    trained(model)
    del own


def forgotten(model: nn.Module, own: dict[str, Any], weights: dict[str, Any]) -> None:
    pass


def updated_again(model: nn.Module, own: dict[str, Any], weights: dict[str, Any]) -> None:
    model.state_dict().update(own)


def loaded(model: nn.Module, own: dict[str, Any], weights: dict[str, Any]) -> None:
    model.load_state_dict(own)


def loaded_in_part(model: Net, own: dict[str, Any], weights: dict[str, Any]) -> None:
    model.body.load_state_dict({"weight": own["body.weight"], "bias": own["body.bias"]})


def copied(model: nn.Module, own: dict[str, Any], weights: dict[str, Any]) -> None:
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(own[name])


def loaded_into_a_teacher(model: nn.Module, own: dict[str, Any], weights: dict[str, Any]) -> nn.Module:
    teacher = Net()
    teacher.load_state_dict(own)
    return teacher


def loaded_and_made_anew(model: Net, own: dict[str, Any], weights: dict[str, Any]) -> None:
    model.load_state_dict(own)
    model.head.reset_parameters()


def other_tensors(make: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """As averages, masks, control variates and directions, which are kept in a state."""
    model = Net()
    own = model.state_dict()
    for name in own:
        own[name] = make(own[name])
    trained(model)


def exchanged_between_clients() -> None:
    """Each client keeps its head, and loads the body that all have."""
    server, clients = Net(), [Net(), Net()]
    states = []
    for _ in range(2):
        for client in clients:
            state = server.state_dict()
            state.update({name: value for name, value in client.state_dict().items() if name.startswith("head")})
            client.load_state_dict(state)
            trained(client)
            states.append(state)
        together = copy.deepcopy(clients[0].state_dict())
        for name in together:
            together[name] = torch.stack([client.state_dict()[name] for client in clients]).mean(0)
        server.load_state_dict(together)


def called_with_other_weights() -> None:
    """An inner loop of meta-learning."""
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(4):
        fast = dict(model.named_parameters())
        loss = torch.func.functional_call(model, fast, (torch.randn(9, 6),)).square().mean()
        grads = torch.autograd.grad(loss, list(fast.values()), create_graph=True)
        own = model.state_dict()
        own.update({name: value - 0.1 * grad for (name, value), grad in zip(fast.items(), grads, strict=True)})
        optimizer.zero_grad()
        torch.func.functional_call(model, own, (torch.randn(9, 6),)).square().mean().backward()
        optimizer.step()


@pytest.mark.parametrize(
    "program",
    [
        partial(fine_tuned, forgotten),
        partial(fine_tuned, updated_again),
        partial(fine_tuned, forgotten, renews_head=True),
        partial(fine_tuned_from_a_file, loads=False),
    ],
)
def test_a_state_that_is_not_loaded_is_an_error(tmp_path: Path, program: Callable[[], None]) -> None:
    assert DIAGNOSIS in errors_of(tmp_path, program)


@pytest.mark.parametrize(
    "program",
    [
        partial(fine_tuned, loaded),
        partial(fine_tuned_from_a_file, loads=True),
        partial(fine_tuned, loaded, renews_head=True),
        partial(fine_tuned, loaded_in_part),
        partial(fine_tuned, copied),
        partial(fine_tuned, loaded_into_a_teacher),
        partial(fine_tuned, loaded_and_made_anew),
        partial(other_tensors, torch.clone),
        partial(other_tensors, torch.zeros_like),
        partial(other_tensors, torch.randn_like),
        exchanged_between_clients,
        called_with_other_weights,
    ],
)
def test_states_that_are_used_are_clean(tmp_path: Path, program: Callable[[], None]) -> None:
    assert DIAGNOSIS not in errors_of(tmp_path, program)
