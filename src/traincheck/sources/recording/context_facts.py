"""Reads the facts that every call shares (gradient mode, autocast, mode of the module), and those of its result.

Equal facts are the same object here: most calls have facts that an earlier call had, and a lookup is cheaper than
building them.
"""

from __future__ import annotations

import functools
import threading

import torch

from traincheck.vocab.bounded_cache import BoundedCache
from traincheck.vocab.facts import Facts, FactValue, facts, merged


class CallContext(threading.local):
    """The modules and context managers around the calls of a thread.

    `training_flags` are those of the modules under way, outermost first; `regions` the names of the active context
    managers, and `within` the same names as one text.
    """

    def __init__(self) -> None:
        self.training_flags: list[bool] = []
        self.regions: list[str] = []
        self.within = ""

    def enter_region(self, region: str) -> None:
        """A context manager becomes active."""
        self.regions.append(region)
        self.within = "+".join(sorted(set(self.regions)))

    def exit_region(self, region: str) -> None:
        """A context manager is exited; one that another thread entered is ignored."""
        if region in self.regions:
            self.regions.remove(region)
            self.within = "+".join(sorted(set(self.regions)))


def autocast_dtype() -> str:
    """`off`, or the dtype of the autocast region that is active on the CPU or on the accelerator."""
    for device in _AUTOCAST_DEVICES:
        if torch.is_autocast_enabled(device):
            return str(torch.get_autocast_dtype(device)).removeprefix("torch.")
    return "off"


_AUTOCAST_DEVICES = ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",)


def grad_mode() -> str:
    """`on`, `off` or `inference`."""
    if torch.is_inference_mode_enabled():
        return "inference"
    return "on" if torch.is_grad_enabled() else "off"


_global_facts: dict[tuple[bool, bool, str], Facts] = {}


def context_facts() -> Facts:
    """Gradient mode and autocast."""
    key = (torch.is_grad_enabled(), torch.is_inference_mode_enabled(), autocast_dtype())
    cached = _global_facts.get(key)
    if cached is None:
        cached = _global_facts[key] = facts(grad_mode=grad_mode(), autocast=key[2])
    return cached


_call_facts: dict[tuple[bool, bool, str, bool | None, str], Facts] = {}


def call_context_facts(context: CallContext) -> Facts:
    """`context_facts()`, the active context managers and, inside a module, its training flag."""
    flags = context.training_flags
    cast = "off"
    for device in _AUTOCAST_DEVICES:  # written out: this runs at every call of a function of torch
        if torch.is_autocast_enabled(device):
            cast = autocast_dtype()
            break
    training = flags[-1] if flags else None
    key = (torch.is_grad_enabled(), torch.is_inference_mode_enabled(), cast, training, context.within)
    cached = _call_facts.get(key)
    if cached is None:
        extra: dict[str, FactValue] = (
            {"within": key[4]} if training is None else {"within": key[4], "training": training}
        )
        cached = _call_facts[key] = merged(context_facts(), **extra)
    return cached


_extended_facts: BoundedCache[tuple[object, ...], Facts] = BoundedCache()


def context_facts_with(**extra: str | int | float | bool | None) -> Facts:
    """`context_facts()` and further facts."""
    base = context_facts()
    key = (id(base), *extra.items())  # there are few such objects, and they are never freed
    cached = _extended_facts.get(key)
    if cached is None:
        cached = _extended_facts.put(key, merged(base, **extra))
    return cached


@functools.lru_cache(maxsize=4096)
def with_fact(context: Facts, name: str, value: str | bool) -> Facts:
    """`context` with one further fact, which is known later than the others."""
    return merged(context, **{name: value})


_module_facts: dict[tuple[bool, bool, str, bool, bool, bool], Facts] = {}


def module_context_facts(*, grad: bool, training: bool, outermost: bool, parametric: bool) -> Facts:
    """`context_facts_with` for a call of a module, the most frequent call. `grad` is whether gradients are on."""
    cast = "off"
    for device in _AUTOCAST_DEVICES:
        if torch.is_autocast_enabled(device):
            cast = autocast_dtype()
            break
    key = (grad, torch.is_inference_mode_enabled(), cast, training, outermost, parametric)
    cached = _module_facts.get(key)
    if cached is None:
        cached = context_facts_with(training=training, outermost=outermost, parametric=parametric)
        _module_facts[key] = cached
    return cached


MAX_TEXT_LENGTH = 64
"""Longer texts are data (a prompt, a path) and show nothing about how a program is meant to work."""

PLAIN_TYPES = (bool, int, float, str, type(None))


def is_plain(value: object) -> bool:
    """Whether TrainCheck records a value as it is. Checks the exact type, so no code of the program runs."""
    kind = type(value)
    if kind is str:
        return len(value) <= MAX_TEXT_LENGTH  # type: ignore[arg-type]
    if kind is int:
        return -1 << 63 <= value < 1 << 64  # type: ignore[operator]  # the range of the trace format
    return kind in PLAIN_TYPES


def sequence_length(value: object) -> int | None:
    """The length of a list, a tuple or a text, None for anything else."""
    for base in (list, tuple, str):
        if issubclass(type(value), base):
            return base.__len__(value)  # type: ignore[arg-type]
    return None


_WithoutModes = torch._C.DisableTorchFunction

_result_facts: BoundedCache[tuple[object, ...], Facts] = BoundedCache()


def result_facts(result: object) -> Facts:
    """The facts of a result: dtype and requires_grad of a tensor, `value` of a plain value, `length` of a sequence."""
    kind = type(result)
    key: tuple[object, ...]
    if issubclass(kind, torch.Tensor):
        with _WithoutModes():  # modes and subclasses of the program would see that TrainCheck looks at a tensor
            return tensor_facts(result)
    elif is_plain(result):
        key = (kind, result)
    elif (count := sequence_length(result)) is not None:
        key = (list, count)
    else:
        return ()
    cached = _result_facts.get(key)
    if cached is None:
        cached = _result_facts.put(key, _build_result_facts(key))
    return cached


def tensor_facts(result: torch.Tensor) -> Facts:
    """`result_facts` of a tensor. Call with function modes disabled."""
    key = (torch.Tensor, result.dtype, result.requires_grad)
    cached = _result_facts.get(key)
    if cached is None:
        cached = _result_facts.put(key, _build_result_facts(key))
    return cached


def _build_result_facts(key: tuple[object, ...]) -> Facts:
    if key[0] is torch.Tensor:
        return facts(dtype=str(key[1]).removeprefix("torch."), requires_grad=bool(key[2]))
    if key[0] is list:
        return (("length", key[1]),)  # type: ignore[return-value]
    if key[0] is str:
        return facts(length=len(str(key[1])), value=str(key[1]))
    return (("value", key[1]),)  # type: ignore[return-value]
