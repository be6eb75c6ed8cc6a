"""Compares the next update of an optimizer with that of a copy which loaded a saved state."""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.optim import LBFGS, Optimizer

from traincheck.sources.tensors.reading import is_copyable

MAX_BYTES = 256 << 20
"""Bytes of parameters, gradients and state that are copied for the comparison of updates."""


class CannotCompare(Exception):
    """Updates cannot be compared; the message is the reason."""


def optimizer_states(saved: Any, depth: int = 4) -> Iterator[Mapping[str, Any]]:
    """Yield every state of an optimizer in a saved object."""
    if isinstance(saved, Mapping):
        if isinstance(saved.get("state"), Mapping) and isinstance(saved.get("param_groups"), (list, tuple)):
            yield saved
        elif depth:
            for value in saved.values():
                yield from optimizer_states(value, depth - 1)
    elif isinstance(saved, (list, tuple)) and depth and len(saved) <= 64:
        for value in saved:
            yield from optimizer_states(value, depth - 1)


def fits(optimizer: Optimizer, state: Mapping[str, Any]) -> bool:
    """Whether a saved state has the groups of an optimizer."""
    groups = state["param_groups"]
    return len(groups) == len(optimizer.param_groups) and all(
        isinstance(group, Mapping) and len(group.get("params", ())) == len(own["params"])
        for group, own in zip(groups, optimizer.param_groups, strict=True)
    )


def shares_state(optimizer: Optimizer, state: Mapping[str, Any]) -> bool:
    """Whether a saved state holds tensors of the optimizer itself."""
    own = {id(value) for entries in optimizer.state.values() for value in entries.values() if _is_tensor(value)}
    return any(id(value) in own for entries in state["state"].values() for value in entries.values())


def differences(optimizer: Optimizer, state: Mapping[str, Any]) -> Iterator[tuple[int, torch.Tensor, str]]:
    """Yield the group, the parameter and the entry of each difference of a saved state from the live one."""
    for index, (saved, group) in enumerate(zip(state["param_groups"], optimizer.param_groups, strict=True)):
        for key, value in group.items():
            if key != "params" and group["params"] and not _equal(saved.get(key), value):
                yield index, group["params"][0], key
        for number, parameter in zip(saved["params"], group["params"], strict=True):
            saved_entries, entries = state["state"].get(number, {}), optimizer.state.get(parameter, {})
            for key in {**entries, **saved_entries}:
                if not _equal(saved_entries.get(key), entries.get(key)):
                    yield index, parameter, key


def update_differs(optimizer: Optimizer, state: Mapping[str, Any], group: int, parameter: torch.Tensor) -> bool:
    """Whether a copy of the optimizer that loads a saved state updates this parameter in another way.

    Both copies get the gradient of the parameter, or one made of its values if it has none. Raises CannotCompare.
    """
    if not type(optimizer).__module__.startswith("torch.optim.") or isinstance(optimizer, LBFGS):
        raise CannotCompare("its update cannot be executed on copies")
    own = optimizer.param_groups[group]
    position = next(index for index, other in enumerate(own["params"]) if other is parameter)
    saved_group = state["param_groups"][group]
    saved_entries = state["state"].get(saved_group["params"][position], {})
    live = {
        "state": {0: optimizer.state[parameter]} if parameter in optimizer.state else {},
        "param_groups": [{**own, "params": [0]}],
    }
    loaded = {"state": {0: saved_entries} if saved_entries else {}, "param_groups": [{**saved_group, "params": [0]}]}
    for value in (parameter, *saved_entries.values(), *optimizer.state.get(parameter, {}).values()):
        if isinstance(value, torch.Tensor) and (not is_copyable(value) or value.nbytes > MAX_BYTES // 8):
            raise CannotCompare("its parameters or its state are sharded, sparse or too large")
    try:
        results = [_updated(optimizer, parameter, copy_of) for copy_of in (live, loaded)]
    except Exception as error:
        raise CannotCompare(f"{type(error).__name__}: {error}".partition("\n")[0]) from error
    return not bool(torch.equal(*results))


def _updated(optimizer: Optimizer, parameter: torch.Tensor, state: Mapping[str, Any]) -> torch.Tensor:
    """Return a copy of the parameter after an update by a copy of the optimizer that loaded `state`."""
    replica: Optimizer = object.__new__(type(optimizer))
    vars(replica).update(vars(optimizer))
    for name in vars(optimizer):
        if name.startswith("_optimizer_") and name.endswith("_hooks"):
            setattr(replica, name, OrderedDict())
    vars(replica).pop("step", None)  # the wrapper of a scheduler counts calls
    copied = parameter.detach().clone().requires_grad_(parameter.requires_grad)
    gradient = parameter.grad
    usable = gradient is not None and is_copyable(gradient)
    copied.grad = gradient.detach().clone() if gradient is not None and usable else copied.detach() * 0.01 + 0.001
    (group,) = state["param_groups"]
    replica.param_groups = [{**group, "params": [copied]}]
    replica.state = defaultdict(dict)
    replica.load_state_dict(_cloned(state))
    function: Callable[..., Any] = type(replica).step
    while getattr(function, "hooked", False):  # the wrapper that calls the hooks
        function = function.__wrapped__  # type: ignore[attr-defined]
    function(replica)
    return copied.detach()


def _cloned(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    if isinstance(value, Mapping):
        return {key: _cloned(entry) for key, entry in value.items()}
    return [_cloned(entry) for entry in value] if isinstance(value, list) else value


def _is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor)


def _equal(saved: Any, live: Any) -> bool:
    if isinstance(saved, torch.Tensor) and isinstance(live, torch.Tensor):
        if saved is live:
            return True
        if saved.shape != live.shape or not (is_copyable(saved) and is_copyable(live)):
            return bool(saved.shape == live.shape)
        return bool(torch.equal(saved.detach().cpu(), live.detach().cpu()))
    if isinstance(saved, torch.Tensor) or isinstance(live, torch.Tensor):
        number, tensor = (live, saved) if isinstance(saved, torch.Tensor) else (saved, live)
        return isinstance(number, (int, float)) and tensor.numel() == 1 and float(tensor) == number
    if isinstance(live, Sequence) and isinstance(saved, Sequence) and not isinstance(live, str):
        return len(saved) == len(live) and all(map(_equal, saved, live))
    try:
        return bool(saved == live)
    except Exception:  # a value of the program's own
        return True
