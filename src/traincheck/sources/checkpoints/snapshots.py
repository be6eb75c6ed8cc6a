"""Writes parameters, gradients, buffers and optimizer state of a program to one file of plain tensors."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from traincheck import redaction
from traincheck.sources.modules.variables import VariableCatalog
from traincheck.sources.optimizers.hyperparameters import plain, settings
from traincheck.sources.tensors.reading import hidden_from_modes, local_tensor

_save = torch.save  # bound before a source wraps it

FORMAT = 1
MAX_BYTES = 16_000_000_000
"""Larger snapshots are not written: they would stop training for minutes."""
MAX_DISK_SHARE = 0.5
"""Snapshots that need more than this part of the free space are not written: checkpoints come first."""


def write_snapshot(path: Path, catalog: VariableCatalog, step: int, rank: int) -> str:
    """Write the state of the program to `path`; return the reason where this failed, else an empty string.

    The file is a dict of `parameters`, `gradients` and `buffers` (each by name) and `optimizers` (by name). An
    optimizer has `state` by parameter name, and `param_groups` with settings and parameter names. `torch.load` reads
    the file with `weights_only=True`. A sharded tensor contributes the part of this rank. The function raises nothing,
    draws no random number, and is invisible to TrainCheck's sources.
    """
    unfinished = path.with_name(f".{path.name}.partial")
    try:
        with hidden_from_modes():
            snapshot = {"format": FORMAT, "step": step, "rank": rank, **_state_of(catalog)}
            needed = sum(_sizes(snapshot))
            path.parent.mkdir(parents=True, exist_ok=True)
            left = shutil.disk_usage(path.parent).free
            if needed > min(MAX_BYTES, MAX_DISK_SHARE * left):
                most = min(MAX_BYTES, MAX_DISK_SHARE * left) / 1e9
                return f"a snapshot takes {needed / 1e9:.1f} GB, and at most {most:.1f} GB are written here"
            with unfinished.open("wb") as file:
                _save(_on_host(snapshot), file)
            unfinished.replace(path)
    except Exception as error:  # a full disk, lack of memory, an unreadable tensor: training continues
        with contextlib.suppress(OSError):
            unfinished.unlink()
        return f"no snapshot was written: {type(error).__name__}: {' '.join(str(error).split())[:200]}"
    return ""


def _state_of(catalog: VariableCatalog) -> dict[str, Any]:
    catalog.refresh_modules()
    catalog.refresh_holders()
    parameters: dict[str, torch.Tensor] = {}
    gradients: dict[str, torch.Tensor] = {}
    names: dict[int, str] = {}
    for variable, tensor in catalog.living():
        names[id(tensor)] = variable.name
        _put(parameters, variable.name, tensor)
        if tensor.grad is not None:
            _put(gradients, variable.name, tensor.grad)
    buffers: dict[str, torch.Tensor] = {}
    for module in catalog.live_modules.living():
        for name, buffer in list(module.__dict__.get("_buffers", {}).items()):
            if isinstance(buffer, torch.Tensor):
                _put(buffers, f"{catalog.module_name(module)}.{name}", buffer)
    optimizers = {name: _optimizer(optimizer, names) for name, optimizer in catalog.optimizers()}
    return {"parameters": parameters, "gradients": gradients, "buffers": buffers, "optimizers": optimizers}


def _put(into: dict[str, torch.Tensor], name: str, tensor: torch.Tensor) -> None:
    dense = local_tensor(tensor)
    if dense is not None:
        into[name] = dense.detach()


def _optimizer(optimizer: Any, names: Mapping[int, str]) -> dict[str, Any]:
    state: dict[str, dict[str, Any]] = {}
    for parameter, entries in list(optimizer.state.items()):
        if not isinstance(entries, dict):
            continue
        own = state.setdefault(names.get(id(parameter), f"unknown {len(state)}"), {})
        for name, value in entries.items():
            if isinstance(value, torch.Tensor):
                _put(own, str(name), value)
            else:
                with contextlib.suppress(TypeError):
                    own[str(name)] = redaction.value(str(name), plain(value))
    groups = [
        {
            **{name: redaction.value(name, value) for name, value in settings(group).items()},
            "params": [names.get(id(parameter), "") for parameter in group["params"]],
        }
        for group in optimizer.param_groups
    ]
    return {"state": state, "param_groups": groups}


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        for entry in value.values():
            yield from _tensors(entry)


def _sizes(snapshot: dict[str, Any]) -> Iterator[int]:
    """Yield the bytes of each storage once; several tensors may share it."""
    seen = set()
    for tensor in _tensors(snapshot):
        storage = tensor.untyped_storage()
        if storage._cdata not in seen:
            seen.add(storage._cdata)
            yield storage.nbytes()


def _on_host(value: Any) -> Any:
    """Return a copy with accelerator tensors moved to the host; host tensors are not copied."""
    if isinstance(value, torch.Tensor):
        return value.cpu()
    if isinstance(value, dict):
        return {key: _on_host(entry) for key, entry in value.items()}
    return value
