"""Saves the state with which a training begins, and lets another training begin with it.

Note [Where a training begins]
The state is saved, and set, before the first call of a model with gradients while an optimizer exists. By then the
program has built and wrapped its models, and the recording of step 1 has not begun. Calls without an optimizer are
trial calls inside constructors. The hook of this source runs before those of other sources, so they observe the
training from the new state on. It is removed after this call.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_pre_hook

from traincheck.sources.modules.live_modules import has_parameters, named_parameters, plain_name
from traincheck.sources.modules.variables import VariableCatalog
from traincheck.sources.operations.placements import placement_of
from traincheck.sources.recording.patches import UndoStack
from traincheck.sources.recording.recorder import Recorder
from traincheck.sources.tensors.reading import PLAIN, dtype_name, hidden_from_modes, local_tensor
from traincheck.vocab.demand import Demand
from traincheck.vocab.operations import other_name, renamed_roots

_save, _load = torch.save, torch.load  # bound before a source wraps them

FORMAT = 1

State = dict[str, Any]
"""A saved state: `format`, `tensors` by name, the states of `random` streams by name, and `left_out`, names of tensors
with the reason why they were not saved. It holds plain values and tensors of the CPU."""


@dataclass(frozen=True)
class Restored:
    """Which values of a saved state a training took over: the number of tensors, the names of random streams, and for
    each tensor that kept its own value the reason."""

    tensors: int
    streams: tuple[str, ...]
    unset: Mapping[str, str]


class InitialStateSource:
    """Saves the initial state with `keep` (if it takes at most `max_bytes`), after it set the state from `load`.

    `keep` and `load` may be None. `load` returns a file that `write_state` wrote. `on_restored` receives the result,
    `on_too_large` the bytes of a state that is not saved.
    """

    name = "initial state"

    def __init__(
        self,
        catalog: VariableCatalog,
        keep: Callable[[State], object] | None,
        load: Callable[[], Path] | None,
        max_bytes: float,
        on_restored: Callable[[Restored], object],
        on_too_large: Callable[[int], object],
    ) -> None:
        self._catalog, self._keep, self._load, self._max_bytes = catalog, keep, load, max_bytes
        self._on_restored, self._on_too_large = on_restored, on_too_large
        self._over = False

    def offers(self) -> str | None:
        return None

    def attach(self, demand: Demand, recorder: Recorder) -> ExitStack:
        undo = UndoStack()
        if self._over:
            return undo
        self._recorder = recorder
        begins = recorder.guarded(self.name, self._call_begins, always=True)
        self._hook = recorder.hooks.add(undo, register_module_forward_pre_hook(begins), begins)
        return undo

    def _call_begins(self, module: nn.Module, args: Any) -> None:
        if self._over or not torch.is_grad_enabled() or not self._recorder.steps.optimizers:
            return
        if torch._C._current_graph_task_id() >= 0 or not has_parameters(module):
            return
        self._over = True
        self._recorder.hooks.suspend_hook(self._hook)
        self._catalog.refresh_modules()  # names all modules, also those that were added to a named one
        with hidden_from_modes():
            tensors = dict(_named_tensors(self._catalog))
            if self._load is not None:
                self._on_restored(restore(read_state(self._load()), tensors))
            if self._keep is not None:
                size = sum(each.nbytes for each in {id(tensor): tensor for tensor in tensors.values()}.values())
                if size <= self._max_bytes:
                    self._keep(state_of(tensors))
                else:
                    self._on_too_large(size)


def _named_tensors(catalog: VariableCatalog) -> Iterator[tuple[str, torch.Tensor]]:
    """The parameters and buffers of all models, each with all of its names."""
    for model in catalog.models():
        prefix = catalog.module_name(model)
        for name, parameter in named_parameters(model):
            yield f"{prefix}.{plain_name(name)}", parameter
    yield from catalog.named_buffers()


# -- saving ------------------------------------------------------------------------------------------------------------


def state_of(tensors: Mapping[str, torch.Tensor]) -> State:
    """A copy of these values and of the random states. Call inside `hidden_from_modes()`."""
    copies: dict[int, torch.Tensor] = {}
    saved: dict[str, torch.Tensor] = {}
    left_out: dict[str, str] = {}
    for name, tensor in tensors.items():
        whole, reason = _whole(tensor)
        if whole is None:
            left_out[name] = reason
        else:
            if id(tensor) not in copies:
                copies[id(tensor)] = whole.detach().to("cpu", copy=True)
            saved[name] = copies[id(tensor)]
    return {"format": FORMAT, "tensors": saved, "random": _random_states(), "left_out": left_out}


def _whole(tensor: torch.Tensor) -> tuple[torch.Tensor | None, str]:
    """The memory of a tensor that is whole on this rank; else None and the reason."""
    try:
        local = local_tensor(tensor)
        if local is None:
            return None, "it had no value there"
        return (local, "") if placement_of(tensor, local) is None else (None, "it was sharded there")
    except Exception as error:  # a class of tensors with rules of its own
        return None, f"it could not be read ({type(error).__name__}: {error})"


def write_state(state: State, path: Path) -> None:
    """Write a state to a file, whole or not at all. Raises OSError."""
    unfinished = path.with_name(f".{path.name}.partial")
    try:
        _save(state, unfinished)
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)


def read_state(path: Path) -> State:
    """The state in a file, without executing anything that it holds. Raises ValueError if it is not one."""
    state: State = _load(path, map_location="cpu", weights_only=True)
    is_state = isinstance(state, dict) and all(
        isinstance(state.get(key), dict) for key in ("tensors", "random", "left_out")
    )
    if not is_state or not all(isinstance(each, torch.Tensor) for each in state["tensors"].values()):
        raise ValueError(f"{path} holds no initial state")
    if state.get("format") != FORMAT:
        raise ValueError(f"{path} has format {state.get('format')}; this TrainCheck reads {FORMAT}")
    return state


# -- restoring ---------------------------------------------------------------------------------------------------------


def restore(state: State, tensors: Mapping[str, torch.Tensor]) -> Restored:
    """Copy the values of a state into tensors of the same name, and set its random states.

    Outermost modules are renamed as for `traincheck compare`. Call inside `hidden_from_modes()`.
    """
    saved, left_out = state["tensors"], state["left_out"]
    names = renamed_roots([*saved, *left_out], tensors)
    by_tensor: dict[int, list[str]] = {}
    for name, tensor in tensors.items():
        by_tensor.setdefault(id(tensor), []).append(name)
    unset: dict[str, str] = {}
    for aliases in by_tensor.values():
        earlier = [other_name(name, names) for name in aliases]
        found = next((name for name in earlier if name in saved), "")
        if found:
            reason = _set(tensors[aliases[0]], saved[found])
        else:
            reason = next((left_out[name] for name in earlier if name in left_out), "there is none of this name there")
        if reason:
            unset[aliases[0]] = reason
    return Restored(len(by_tensor) - len(unset), tuple(_set_random_states(state["random"])), unset)


def _set(tensor: torch.Tensor, value: torch.Tensor) -> str:
    """Copy a whole value into a tensor, or into the part of it that this rank holds; why it was not copied."""
    try:
        if tuple(tensor.shape) != tuple(value.shape):
            return f"its shape is {_shape(value)} there and {_shape(tensor)} here"
        if _kind(tensor) != _kind(value):
            return f"its type is {dtype_name(value.dtype)} there and {dtype_name(tensor.dtype)} here"
        local = local_tensor(tensor)
        if local is None:
            return "it has no value yet"
        placement = placement_of(tensor, local)
        if placement is not None:
            if placement.partial:
                return "it is a partial sum here"
            part = zip(placement.offset, placement.shape, strict=True)
            value = value[tuple(slice(begin, begin + length) for begin, length in part)]
        elif tuple(local.shape) != tuple(value.shape) or not (type(tensor) in PLAIN or hasattr(tensor, "placements")):
            return f"TrainCheck does not write to a {type(tensor).__name__}"
        (tensor if type(tensor) in PLAIN else local).copy_(value)
    except Exception as error:  # overlapping memory, a class of tensors with rules of its own
        return f"{type(error).__name__}: {error}"
    return ""


def _kind(tensor: torch.Tensor) -> tuple[bool, bool]:
    return tensor.is_floating_point(), tensor.is_complex()


def _shape(tensor: torch.Tensor) -> str:
    return "x".join(map(str, tensor.shape)) or "a number"


# -- random states -----------------------------------------------------------------------------------------------------


def _random_states() -> dict[str, Any]:
    """The states of all random streams of this process, as plain values and tensors."""
    states: dict[str, Any] = {"python": random.getstate(), "torch": torch.get_rng_state()}
    numpy = sys.modules.get("numpy.random")
    state = numpy.get_state() if numpy is not None else None
    if isinstance(state, tuple):  # a dict has the state of another bit generator than the default
        kind, keys, *rest = state
        states["numpy"] = (kind, keys.tolist(), *rest)
    for kind, module in _accelerators():
        for index, of_device in enumerate(module.get_rng_state_all()):
            states[f"{kind}:{index}"] = of_device
    return states


def _set_random_states(states: Mapping[str, Any]) -> Iterator[str]:
    """Set the states of streams that this process has; their names."""
    accelerators = dict(_accelerators())
    for name, state in states.items():
        kind, _, index = name.partition(":")
        if name == "python":
            random.setstate(state)
        elif name == "torch":
            torch.set_rng_state(state)
        elif name == "numpy":
            numpy = sys.modules.get("numpy.random")
            if numpy is None:
                continue
            numpy.set_state(state)
        elif kind in accelerators and int(index) < accelerators[kind].device_count():
            accelerators[kind].set_rng_state(state, int(index))
        else:
            continue
        yield name


def _accelerators() -> Iterator[tuple[str, Any]]:
    """The kinds of accelerators that this process uses."""
    for kind in ("cuda", "xpu"):
        module = getattr(torch, kind, None)
        if module is not None and module.is_available() and module.is_initialized():
            yield kind, module
