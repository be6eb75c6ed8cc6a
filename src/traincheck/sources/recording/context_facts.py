"""Circumstances: the facts that every call shares, read from torch's own switches, and those of its result."""

from __future__ import annotations

import functools
import threading

import torch

from traincheck.vocab.bounded_cache import Kept
from traincheck.vocab.facts import Facts, FactValue, facts, merged


class Surroundings(threading.local):
    """What the calls of a thread are in the midst of.

    `flags` are the training flags of the modules that are being called, outermost first; `regions` the names of the
    context managers that are active, and `within` the same as one text.
    """

    def __init__(self) -> None:
        self.flags: list[bool] = []
        self.regions: list[str] = []
        self.within = ""

    def enters(self, region: str) -> None:
        """A context manager becomes active."""
        self.regions.append(region)
        self.within = "+".join(sorted(set(self.regions)))

    def leaves(self, region: str) -> None:
        """A context manager is left (perhaps in another thread than it was entered in: then nothing is known of it)."""
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


_told: dict[tuple[bool, bool, str], Facts] = {}


def circumstances() -> Facts:
    """Grad mode and autocast; equal circumstances are the same object."""
    key = (torch.is_grad_enabled(), torch.is_inference_mode_enabled(), autocast_dtype())
    found = _told.get(key)
    if found is None:
        found = _told[key] = facts(grad_mode=grad_mode(), autocast=key[2])
    return found


_around: dict[tuple[bool, bool, str, bool | None, str], Facts] = {}


def circumstances_amid(surroundings: Surroundings) -> Facts:
    """`circumstances()`, the active context managers and, inside a module, its mode; equal ones are the same object."""
    flags = surroundings.flags
    cast = "off"
    for device in _AUTOCAST_DEVICES:  # written out, for it is asked at every call of a function of torch
        if torch.is_autocast_enabled(device):
            cast = autocast_dtype()
            break
    training = flags[-1] if flags else None
    key = (torch.is_grad_enabled(), torch.is_inference_mode_enabled(), cast, training, surroundings.within)
    found = _around.get(key)
    if found is None:
        told: dict[str, FactValue] = (
            {"within": key[4]} if training is None else {"within": key[4], "training": training}
        )
        found = _around[key] = merged(circumstances(), **told)
    return found


_more: Kept[tuple[object, ...], Facts] = Kept()


def circumstances_with(**extra: str | int | float | bool | None) -> Facts:
    """`circumstances()` and further facts; equal ones are the same object."""
    base = circumstances()
    key = (id(base), *extra.items())  # of these there are few, and they stay
    found = _more.get(key)
    if found is None:
        found = _more.put(key, merged(base, **extra))
    return found


@functools.lru_cache(maxsize=4096)
def context_with(context: Facts, name: str, value: str | bool) -> Facts:
    """A context and one further fact, which is known later than the others; equal ones are the same object."""
    return merged(context, **{name: value})


_of_modules: dict[tuple[bool, bool, str, bool, bool, bool], Facts] = {}


def circumstances_of_module(*, grad: bool, training: bool, outermost: bool, parametric: bool) -> Facts:
    """`circumstances_with` what is told of a call of a module, which is asked most often. `grad` is whether gradients
    are on."""
    cast = "off"
    for device in _AUTOCAST_DEVICES:
        if torch.is_autocast_enabled(device):
            cast = autocast_dtype()
            break
    key = (grad, torch.is_inference_mode_enabled(), cast, training, outermost, parametric)
    found = _of_modules.get(key)
    if found is None:
        told = circumstances_with(training=training, outermost=outermost, parametric=parametric)
        found = _of_modules[key] = told
    return found


LONGEST_TEXT = 64
"""Longer texts are data (a prompt, a path), and tell nothing of how a program is meant to work."""

PLAIN = (bool, int, float, str, type(None))


def plain(value: object) -> bool:
    """Whether a value is told as it is. (By its exact type: nothing of the program's is run to find out.)"""
    kind = type(value)
    if kind is str:
        return len(value) <= LONGEST_TEXT  # type: ignore[arg-type]
    if kind is int:
        return -1 << 63 <= value < 1 << 64  # type: ignore[operator]  # what the trace can hold
    return kind in PLAIN


def length(value: object) -> int | None:
    """The length of a list, a tuple or a text, None for anything else."""
    for base in (list, tuple, str):
        if issubclass(type(value), base):
            return base.__len__(value)  # type: ignore[arg-type]
    return None


_Unseen = torch._C.DisableTorchFunction

_results: Kept[tuple[object, ...], Facts] = Kept()


def result_facts(result: object) -> Facts:
    """What a call returned: dtype and requires_grad of a tensor, `value` of what is plain, `length` of a sequence.

    Equal ones are the same object.
    """
    kind = type(result)
    key: tuple[object, ...]
    if issubclass(kind, torch.Tensor):
        with _Unseen():  # to look at a tensor is seen by modes and subclasses of the program
            return facts_of_tensor(result)
    elif plain(result):
        key = (kind, result)
    elif (count := length(result)) is not None:
        key = (list, count)
    else:
        return ()
    found = _results.get(key)
    if found is None:
        found = _results.put(key, _result_facts(key))
    return found


def facts_of_tensor(result: torch.Tensor) -> Facts:
    """`result_facts` of a tensor. Call where no mode is asked."""
    key = (torch.Tensor, result.dtype, result.requires_grad)
    found = _results.get(key)
    if found is None:
        found = _results.put(key, _result_facts(key))
    return found


def _result_facts(key: tuple[object, ...]) -> Facts:
    if key[0] is torch.Tensor:
        return facts(dtype=str(key[1]).removeprefix("torch."), requires_grad=bool(key[2]))
    if key[0] is list:
        return (("length", key[1]),)  # type: ignore[return-value]
    if key[0] is str:
        return facts(length=len(str(key[1])), value=str(key[1]))
    return (("value", key[1]),)  # type: ignore[return-value]
