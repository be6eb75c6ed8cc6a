"""Finds state dicts in a saved object and matches them with living modules.

Note [What a saved state is compared with]
A saved state need not be the live state: a program may save its best earlier weights, or an average. TrainCheck matches
a mapping of tensors with a living module by its names, and then decides whether the mapping is *fresh*, a copy of the
current live state. A mapping is fresh in one of three cases:
* `state_dict` returned it and no optimizer has stepped since.
* At least half of the trained parameters share the live memory.
* More than half of the trained parameters equal the live ones.
Parameters that are not trained say nothing, because every copy has the same values. A state that is not fresh may
differ from the live state for good reason.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import nn

from traincheck.sources.modules.live_modules import plain_name
from traincheck.sources.tensors.reading import fingerprints, local_tensor, shape_of

PARAMETER, BUFFER = "parameter", "buffer"

_MAX_DEPTH = 4
"""Search depth for state dicts in a saved object: a checkpoint of partial states is three deep."""
_MAX_LENGTH = 64
"""Longer sequences hold data, not state dicts."""
_TRIED = 8
"""Names tried to find the common prefix: more than are missing from any mapping worth matching."""


class Member(NamedTuple):
    """A parameter or persistent buffer of a module, with all its names.

    A wrapper of torch inside the module may be a part of a name in a saved state or not: activation checkpointing
    leaves it out, torch.compile does not, and some savers remove both. Each name is given without and with it.
    """

    kind: str
    names: tuple[str, ...]
    tensor: torch.Tensor

    @property
    def tied(self) -> bool:
        """Whether several modules hold it."""
        return len({plain_name(name) for name in self.names}) > 1


class Candidate(NamedTuple):
    """A module that a saved mapping may belong to."""

    module: nn.Module
    members: Sequence[Member]


class Pair(NamedTuple):
    """A member, and the tensor that a mapping holds for it under `name` (None if missing)."""

    member: Member
    name: str
    other: Any


class ModuleState(NamedTuple):
    """A mapping that is a state of `module`: its entries under the module's own names (without `prefix`)."""

    module: nn.Module
    prefix: str
    members: Sequence[Member]
    entries: Mapping[str, Any]

    def pairs(self) -> Iterator[Pair]:
        """Yield each member with its counterpart; a tied member yields each distinct tensor among its names."""
        for member in self.members:
            distinct: list[Any] = []
            for name in member.names:
                other = self.entries.get(name)
                if other is not None and not any(
                    other is earlier or same_memory(other, earlier) for earlier in distinct
                ):
                    distinct.append(other)
                    yield Pair(member, name, other)
            if not distinct:
                yield Pair(member, member.names[0], None)


def members(module: nn.Module) -> list[Member]:
    """Return the expected members of a state dict of `module`, without non-persistent buffers."""
    by_id: dict[int, tuple[str, list[str], torch.Tensor]] = {}
    for prefix, inner in _tree(module, ""):
        transient = _own(inner, "_non_persistent_buffers_set")
        for kind, holder in ((PARAMETER, "_parameters"), (BUFFER, "_buffers")):
            for name, tensor in _own(inner, holder).items():
                if isinstance(tensor, torch.Tensor) and name not in transient and not nn.parameter.is_lazy(tensor):
                    names = by_id.setdefault(id(tensor), (kind, [], tensor))[1]
                    names += dict.fromkeys((plain_name(prefix + name), prefix + name))
    return [Member(kind, tuple(names), tensor) for kind, names, tensor in by_id.values()]


def _own(module: nn.Module, attribute: str) -> Any:
    """Return the attribute from the module's `__dict__`, without running its code; empty for a scripted module."""
    return module.__dict__.get(attribute, {})


def _tree(module: nn.Module, prefix: str) -> Iterator[tuple[str, nn.Module]]:
    yield prefix, module
    for name, child in _own(module, "_modules").items():
        if child is not None:
            yield from _tree(child, f"{prefix}{name}.")


def state_mappings(saved: Any, depth: int = 0) -> Iterator[Mapping[str, Any]]:
    """Yield every mapping of names to tensors in `saved`, and the state of each whole module."""
    if isinstance(saved, nn.Module):
        yield {name: member.tensor for member in members(saved) for name in member.names}
    elif isinstance(saved, dict):
        if "state" in saved and "param_groups" in saved:
            return  # the state of an optimizer
        entries = list(dict.items(saved))
        if any(isinstance(value, torch.Tensor) and isinstance(key, str) for key, value in entries):
            yield saved
        if depth < _MAX_DEPTH:
            for _, value in entries:
                yield from state_mappings(value, depth + 1)
    elif isinstance(saved, (list, tuple)) and len(saved) <= _MAX_LENGTH and depth < _MAX_DEPTH:
        for value in saved:
            yield from state_mappings(value, depth + 1)


def unwrapped(module: nn.Module) -> Iterator[nn.Module]:
    """Yield `module` and the modules it wraps: a wrapper has no parameters and one child with parameters."""
    seen: set[int] = set()
    while id(module) not in seen:
        seen.add(id(module))
        yield module
        if any(entry is not None for entry in _own(module, "_parameters").values()):
            return
        inner = [child for child in _own(module, "_modules").values() if child is not None and _parametric(child)]
        if len(inner) != 1:
            return
        module = inner[0]


def _parametric(module: nn.Module) -> bool:
    return any(entry is not None for _, inner in _tree(module, "") for entry in _own(inner, "_parameters").values())


def module_state(
    module: nn.Module, mapping: Mapping[str, Any], prefix: str = "", expected: Sequence[Member] | None = None
) -> ModuleState:
    """Return `mapping` as a state of `module` with key prefix `prefix`; `expected` are its members, if computed
    already."""
    entries = {
        key[len(prefix) :]: value
        for key, value in mapping.items()
        if isinstance(key, str) and key.startswith(prefix) and isinstance(value, torch.Tensor)
    }
    return ModuleState(module, prefix, members(module) if expected is None else expected, entries)


def best_match(mapping: Mapping[str, Any], candidates: Iterable[Candidate]) -> tuple[ModuleState, bool] | None:
    """Return the candidate whose state `mapping` is, and whether that is certain.

    At least half of the candidate's names have to occur, possibly behind a shared prefix. Among several, the one whose
    memory the mapping holds wins (which makes the match certain), then the one whose shapes fit best. A mapping with
    fewer names, all from one module, is a part of its state: the other members are not judged.
    """
    names = [key for key, value in mapping.items() if isinstance(key, str) and isinstance(value, torch.Tensor)]
    best: tuple[tuple[int, int], ModuleState] | None = None
    for module, expected in candidates:
        if not expected or not names:
            continue
        state = module_state(module, mapping, _prefix(expected, names), expected)
        present = [pair for pair in state.pairs() if pair.other is not None]
        fitting = sum(shape_of(pair.member.tensor) == shape_of(pair.other) for pair in present)
        if 2 * len(present) < len(expected):
            if not present or fitting < len(names):
                continue
            state = state._replace(members=[pair.member for pair in present])
        shared = sum(shares_memory(pair.member.tensor, pair.other) for pair in present)
        if best is None or (shared, fitting) > best[0]:
            best = (shared, fitting), state
    return None if best is None else (best[1], best[0][0] > 0)


def match_modules(mapping: Mapping[str, Any], candidates: Sequence[Candidate]) -> tuple[list[ModuleState], bool]:
    """Return the modules whose states `mapping` contains, each with separate entries, and whether all are certain."""
    states: list[ModuleState] = []
    certain = True
    rest = dict(mapping)
    while (match := best_match(rest, candidates)) is not None:
        state, sure = match
        states.append(state)
        certain = certain and sure
        for member in state.members:
            for name in member.names:
                rest.pop(state.prefix + name, None)
    return states, certain and bool(states)


def _prefix(expected: Sequence[Member], names: Sequence[str]) -> str:
    """Return the most common prefix of `names` before the names of members: empty, or text that ends in a dot."""
    available = set(names)
    samples = [member.names[0] for member in expected]
    samples = samples[:: max(1, len(samples) // _TRIED)]
    prefixes = {""}
    for suffix in samples:
        prefixes.update(name[: -len(suffix)] for name in names if name.endswith(f".{suffix}"))
    if len(prefixes) == 1:
        return ""
    count = {
        prefix: sum(any(prefix + name in available for name in member.names) for member in expected)
        for prefix in sorted(prefixes, key=lambda prefix: (len(prefix), prefix))[: 2 * _TRIED]
    }
    return max(count, key=lambda prefix: (count[prefix], -len(prefix)))


# -- comparing -------------------------------------------------------------------------------------------------------


def shares_memory(tensor: torch.Tensor, other: Any) -> bool:
    """Return whether two tensors overlap in memory. Call under `hidden_from_modes`."""
    first, second = _dense(tensor), _dense(other)
    if first is None or second is None or first.numel() == 0:
        return False
    pointer: int = first.untyped_storage().data_ptr()
    return pointer != 0 and first.device == second.device and bool(pointer == second.untyped_storage().data_ptr())


def same_memory(tensor: Any, other: Any) -> bool:
    """Return whether two tensors are the same elements of the same memory. Call under `hidden_from_modes`."""
    if not isinstance(tensor, torch.Tensor) or not shares_memory(tensor, other):
        return False
    return (tensor.dtype, tensor.shape, tensor.stride(), tensor.storage_offset()) == (
        other.dtype,
        other.shape,
        other.stride(),
        other.storage_offset(),
    )


def _dense(tensor: Any) -> torch.Tensor | None:
    return local_tensor(tensor) if isinstance(tensor, torch.Tensor) else None


def sharded(tensor: torch.Tensor) -> bool:
    """Return whether the tensor is a part of a larger one (a distributed tensor)."""
    return hasattr(tensor, "_local_tensor")


def fingerprint_pairs(pairs: Sequence[Pair]) -> list[tuple[int | None, int | None]]:
    """Return comparable fingerprints of each member and its counterpart; None where unreadable.

    Fingerprints made on an accelerator and on the CPU differ. Tensors on different devices are therefore copied to the
    CPU, one pair at a time. A shard cannot be compared with a whole tensor.
    """
    prints: list[tuple[int | None, int | None]] = [(None, None)] * len(pairs)
    together: list[int] = []
    for index, (member, _, other) in enumerate(pairs):
        live = member.tensor
        if not isinstance(other, torch.Tensor):
            together.append(index)
        elif sharded(live) is not sharded(other):
            continue
        elif live.device != other.device:
            live_value, other_value = fingerprints([_on_cpu(live)])[0], fingerprints([_on_cpu(other)])[0]
            prints[index] = (live_value, other_value)
        else:
            together.append(index)
    live_prints = fingerprints([pairs[index].member.tensor for index in together])
    separate = [
        index
        for index in together
        if pairs[index].other is not None and not same_memory(pairs[index].member.tensor, pairs[index].other)
    ]
    others = dict(zip(separate, fingerprints([pairs[index].other for index in separate]), strict=True))
    for index, live_print in zip(together, live_prints, strict=True):
        missing = pairs[index].other is None
        prints[index] = (live_print, None if missing else others.get(index, live_print))
    return prints


def _on_cpu(tensor: torch.Tensor) -> torch.Tensor:
    dense = local_tensor(tensor)
    return tensor if dense is None or dense.device.type == "cpu" else dense.cpu()


def is_fresh(pairs: Sequence[Pair], held: Sequence[bool], values: Sequence[tuple[int | None, int | None]]) -> bool:
    """Return whether a saved state is a copy of the current live state; `held` marks members held by an optimizer.

    See Note [What a saved state is compared with].
    """
    present = [index for index, pair in enumerate(pairs) if isinstance(pair.other, torch.Tensor)]
    trainable = [
        index for index in present if pairs[index].member.kind == PARAMETER and pairs[index].member.tensor.requires_grad
    ]
    deciding = [index for index in trainable if held[index]] or trainable or present
    shared = sum(shares_memory(pairs[index].member.tensor, pairs[index].other) for index in deciding)
    if 2 * shared >= len(deciding):
        return bool(deciding)
    equal = sum(
        shares_memory(pairs[index].member.tensor, pairs[index].other)
        or (values[index][0] is not None and values[index][0] == values[index][1])
        for index in deciding
    )
    return 2 * equal > len(deciding)
