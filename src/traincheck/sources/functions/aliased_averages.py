"""Finds updates of a copy of a model that read from the copy itself, because both names are one model.

A program that writes `target = net` instead of `target = copy.deepcopy(net)` updates its target network from itself: a
copy or an interpolation changes nothing, and scaling before adding shrinks the weights.

Note [Sums of one memory]
Each write by a line of the project counts, with the memory that it reads. It is such an update if it

* copies or interpolates (`copy_`, `lerp_`) a parameter from its own memory;
* scales a parameter and adds a share of its own memory, where both factors add up to one;
* writes a sum, a difference or an interpolation of its own memory, whose factors add up to one.

So a weight decay, a normalisation and an update with gradients are none. Some parameters of a copy may be shared on
purpose (an encoder). So all parameters of a module have to be updated from themselves, and none of its model by the
same line from another memory.

Known limitations: TrainCheck sees no writes inside libraries (nor in `load_state_dict`, see
sources/checkpoints/kept_states.py), compiled code and other threads, and looks at the first
`WINDOWS` windows with updates only.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import FrameType
from typing import Any, NamedTuple

import torch
from torch import nn

from traincheck.sources.modules.variables import VariableCatalog
from traincheck.sources.recording.listener import RecorderListener
from traincheck.sources.recording.patches import TensorReference
from traincheck.sources.recording.recorder import Recorder
from traincheck.sources.recording.step_tracker import Cut
from traincheck.sources.tensors.reading import PLAIN, hidden_from_modes
from traincheck.vocab.builtin_rules import MODEL, OWN_WEIGHTS
from traincheck.vocab.events import NO_CALL, Reading
from traincheck.vocab.facts import facts

WINDOWS = 64
"""Windows with updates in which writes are looked at."""

MAX_PARTS = 10_000
"""Tensors of one window that are followed."""

_EXACT = 1e-9
"""How far factors may be from one: they are computed in double precision, and a small weight decay is farther."""

_SUMS = {"add": 1.0, "sub": -1.0, "add_": 1.0, "sub_": -1.0}

_FOREACH = "_foreach_"

_METHODS = ("mul", "add", "sub", "lerp", "mul_", "add_", "sub_", "lerp_", "copy_")
_FUNCTIONS = ("mul", "add", "sub", "lerp", *(f"{_FOREACH}{name}_" for name in ("mul", "add", "sub", "lerp", "copy")))

OBSERVED: Mapping[Any, str] = {
    **{getattr(torch.Tensor, name): name for name in _METHODS},
    **{getattr(torch, name): name for name in _FUNCTIONS if hasattr(torch, name)},
    torch.Tensor.data.__set__: "data",
}
"""The functions that are looked at, with their names."""

_WRITES = frozenset(name for name in OBSERVED.values() if name == "data" or name.endswith("_"))

_Memory = tuple[int, tuple[int, ...], tuple[int, ...]]


class _Part(NamedTuple):
    """What a tensor was computed from: one memory, times a factor. A sum of several such parts is `mixed`."""

    memory: _Memory
    factor: float
    mixed: bool = False


class AliasedAverages(RecorderListener):
    """Takes a reading for each model that an update of a copy reads and writes. Call `note_write` before each
    function of `OBSERVED`, and `note_result` after it, while `is_on`."""

    def __init__(self, source: str, recorder: Recorder, catalog: VariableCatalog) -> None:
        self._recorder = recorder
        self._catalog = catalog
        self.note_write = recorder.guarded(source, self._note_write)
        self.note_result = recorder.guarded(source, self._note_result)
        self._judge_window = recorder.guarded(source, self._judge)
        self.is_on = True
        self._windows = 0
        self._updates = 0  # of the run, at the begin of the window
        self._reported: set[str] = set()
        self._forget()

    def _forget(self) -> None:
        self._parts: dict[int, tuple[TensorReference, _Part]] = {}
        self._kept: dict[_Memory, float] = {}
        self._own: dict[str, set[_Memory]] = {}  # by line: the memories that it updated from themselves
        self._others: dict[str, set[_Memory]] = {}  # and those that it updated in another way
        self._last = NO_CALL  # the position of the last update from itself

    def window_closing(self, cut: Cut) -> None:
        if self._own:
            self._judge_window()
        if self._own or self._others or self._parts or self._kept:
            self._forget()
        updates = self._recorder.steps.updates_made
        self._windows += updates > self._updates
        self._updates = updates
        if self._windows >= WINDOWS:
            self.is_on = False

    # -- writes ----------------------------------------------------------------------------------------------------

    def _note_write(self, name: str, args: Sequence[Any], kwargs: Mapping[str, Any] | None, caller: FrameType) -> None:
        """A function is called: if it writes to its first argument, note that."""
        if name not in _WRITES or len(args) < 2:
            return
        alpha = _alpha(kwargs)
        if alpha is None:
            return
        with hidden_from_modes():
            if not name.startswith(_FOREACH):
                self._write(name, args, alpha, caller)
                return
            written, *others = args
            for call in zip(written, *_spread(others, len(written)), strict=False):
                self._write(name.removeprefix(_FOREACH), call, alpha, caller)

    def _note_result(self, name: str, args: Sequence[Any], kwargs: Mapping[str, Any] | None, result: Any) -> None:
        """A function has returned: if it writes nothing, note what its result was computed from."""
        if name in _WRITES or len(args) < 2 or type(result) is not torch.Tensor or len(self._parts) >= MAX_PARTS:
            return
        alpha = _alpha(kwargs)
        if alpha is None:
            return
        with hidden_from_modes():
            part = None if result.requires_grad else self._computed(name, args, alpha)
            if part is not None:
                self._parts[id(result)] = TensorReference(result), part

    def _part_of(self, value: Any) -> _Part | None:
        reference, part = self._parts.get(id(value), (None, None))
        if reference is not None and reference() is value:
            return part
        memory = _memory_of(value)
        return None if memory is None else _Part(memory, 1.0)

    def _computed(self, name: str, args: Sequence[Any], alpha: float) -> _Part | None:
        """The part that a function returns; None if it is no product with a number and no sum of one memory."""
        first, second = args[0], args[1]
        if name == "mul":
            value, factor = (second, first) if _is_number(first) else (first, second)
            part = self._part_of(value) if _is_number(factor) else None
            return None if part is None else part._replace(factor=part.factor * factor)
        left, right = self._part_of(first), self._part_of(second)
        if left is None or right is None or left.memory != right.memory:
            return None
        if name == "lerp":
            weight = args[2] if len(args) > 2 and _is_number(args[2]) else None
            if weight is None:
                return None
            return _Part(left.memory, left.factor * (1 - weight) + right.factor * weight, True)
        return _Part(left.memory, left.factor + _SUMS[name] * alpha * right.factor, True)

    def _write(self, name: str, args: Sequence[Any], alpha: float, caller: FrameType) -> None:
        """Note a write to the first argument."""
        written, value = args[0], args[1]
        reference, part = self._parts.pop(id(written), (None, None))
        if reference is not None and part is not None and reference() is written:
            if name == "mul_" and _is_number(value):
                self._parts[id(written)] = reference, part._replace(factor=part.factor * value)
            return
        memory = None if name != "mul_" and _is_number(value) else _memory_of(written)
        if memory is None:
            return
        kept = self._kept.pop(memory, None)
        if name == "mul_":
            if _is_number(value) and 0 < value < 1:
                self._kept[memory] = value
            return
        read = self._part_of(value)
        if name == "data" and read is not None:  # the parameter has the memory of the value now
            if read.memory == memory and not read.mixed:
                return
            memory = _memory_of(value) or memory
            read = read if read.mixed else None
        elif read is not None and read.memory != memory:
            read = None
        if read is None:
            self._add(self._others, memory, caller)
        elif _is_own(name, read, kept, alpha):
            self._add(self._own, memory, caller)

    def _add(self, writes: dict[str, set[_Memory]], memory: _Memory, caller: FrameType) -> None:
        sites = self._recorder.sites
        if sites.file_of(caller.f_code):
            writes.setdefault(sites.above(caller), set()).add(memory)
            if writes is self._own:
                self._last = self._recorder.next_seq()

    # -- the end of a window ---------------------------------------------------------------------------------------

    def _judge(self) -> None:
        if not self._own or not self._recorder.steps.updates_made:
            return
        with hidden_from_modes():
            self._catalog.refresh_modules()
            models = [(model, _memories_of(model)) for model in self._catalog.models()]
        for site, own in self._own.items():
            others = self._others.get(site, set())
            touched = [(model, memories) for model, memories in models if not own.isdisjoint(memories.values())]
            if any(not others.isdisjoint(memories.values()) for _, memories in touched):
                continue
            for model, memories in touched:
                for module in _outermost_within(model, memories, own):
                    self._report(self._catalog.module_name(module), site)

    def _report(self, name: str, site: str) -> None:
        if name not in self._reported:
            self._reported.add(name)
            context = facts(site=site)
            self._recorder.record_reading(Reading(self._last, NO_CALL, name, MODEL, OWN_WEIGHTS, True, context=context))


def _is_own(name: str, read: _Part, kept: float | None, alpha: float) -> bool:
    """Whether a write that reads the memory that it writes to updates a copy from itself."""
    if name in ("copy_", "lerp_", "data"):
        return abs(read.factor - 1) < _EXACT
    if read.mixed and read.factor == 0:
        return True  # the difference of a tensor and itself
    return kept is not None and abs(kept + _SUMS[name] * alpha * read.factor - 1) < _EXACT


def _alpha(kwargs: Mapping[str, Any] | None) -> float | None:
    """The factor of the second argument; None if a call has other keywords."""
    alpha = kwargs.get("alpha", 1) if kwargs else 1
    return alpha if _is_number(alpha) and not (kwargs and kwargs.keys() - {"alpha"}) else None


def _is_number(value: Any) -> bool:
    return type(value) in (int, float)


def _spread(values: Sequence[Any], count: int) -> Iterator[Sequence[Any]]:
    """The arguments of a function of several tensors, each as one value for each tensor."""
    for value in values:
        yield value if isinstance(value, list | tuple) else [value] * count


def _memory_of(value: Any) -> _Memory | None:
    """The memory of a tensor, None for another value or if it has none. Call inside `hidden_from_modes()`."""
    if type(value) not in PLAIN or value.layout is not torch.strided or value.is_nested:
        return None
    address = value.data_ptr()
    return (address, tuple(value.shape), value.stride()) if address else None


def _memories_of(model: nn.Module) -> dict[int, _Memory]:
    """The memory of each parameter of a model, by the id of the parameter."""
    if any(map(nn.parameter.is_lazy, model.parameters())):
        return {}
    memories = ((id(parameter), _memory_of(parameter)) for parameter in model.parameters())
    return {key: memory for key, memory in memories if memory is not None}


def _outermost_within(model: nn.Module, memories: Mapping[int, _Memory], own: set[_Memory]) -> Iterator[nn.Module]:
    """The outermost modules of a model with several parameters, all of which are in `own`."""
    waiting = [model]
    while waiting:
        module = waiting.pop()
        of_module = [memories.get(id(parameter)) for parameter in module.parameters()]
        if len(of_module) > 1 and all(memory in own for memory in of_module):
            yield module
        else:
            waiting.extend(child for child in module._modules.values() if child is not None)
