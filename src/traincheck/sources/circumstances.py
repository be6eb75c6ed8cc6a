"""Circumstances: the facts that every call shares, read from torch's own switches, and those of its result."""

from __future__ import annotations

import torch

from traincheck.vocab.facts import Facts, facts, merged

_told: dict[tuple[bool, bool, str], Facts] = {}


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


def circumstances() -> Facts:
    """Grad mode and autocast; equal circumstances are the same object."""
    key = (torch.is_grad_enabled(), torch.is_inference_mode_enabled(), autocast_dtype())
    found = _told.get(key)
    if found is None:
        found = _told[key] = facts(grad_mode=grad_mode(), autocast=key[2])
    return found


_more: dict[tuple[object, ...], Facts] = {}


def circumstances_with(**extra: str | int | float | bool | None) -> Facts:
    """`circumstances()` and further facts; equal ones are the same object."""
    base = circumstances()
    key = (base, *extra.items())
    found = _more.get(key)
    if found is None:
        found = _more[key] = merged(base, **extra)
    return found


_results: dict[tuple[torch.dtype, bool], Facts] = {}


def result_facts(result: object) -> Facts:
    """dtype and requires_grad of a call's result, where it is a tensor; equal ones are the same object."""
    if not isinstance(result, torch.Tensor):
        return ()
    key = (result.dtype, result.requires_grad)
    found = _results.get(key)
    if found is None:
        found = _results[key] = facts(dtype=str(key[0]).removeprefix("torch."), requires_grad=key[1])
    return found
