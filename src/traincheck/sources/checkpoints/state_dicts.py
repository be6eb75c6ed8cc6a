"""State dicts: finding them in what a program saves, and the living modules that they are the state of.

Note [What a saved state is compared with]
What is saved need not be what is live: a program may keep the best weights of its past, or an average of them, and
save these. So a mapping of tensors is matched with a living module by its names, and then it is judged whether it is
*fresh*: taken from the live state as it is now. It is when it is the very mapping that `state_dict` returned and no
optimizer has stepped since; when at least half of the parameters that are being trained lie in the live memory; or when
more than half of them are equal to the live ones. (Those that are not trained say nothing: they are the same in any
copy.) What is not fresh differs from the live state with good reason.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import nn

from traincheck.sources.tensors.reading import fingerprints, local_tensor, shape_of

PARAMETER, BUFFER = "parameter", "buffer"

_DEEPEST = 4
"""How deep a state dict may lie in what is saved: a checkpoint of parts of states is three deep."""
_LONGEST = 64
"""Sequences longer than this hold data, not state dicts."""
_TRIED = 8
"""Names that are tried to find the prefix of all: more than are missing from any mapping worth matching."""


class Member(NamedTuple):
    """A parameter or persistent buffer of a module, with all its names there."""

    kind: str
    names: tuple[str, ...]
    tensor: torch.Tensor


class Candidate(NamedTuple):
    """A module that something saved may be the state of."""

    module: nn.Module
    members: Sequence[Member]


class Pair(NamedTuple):
    """A member, and the tensor that a mapping holds for it under `name` (None when it is missing there)."""

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
        """Each member with its counterpart; a tied one whose names hold different tensors is told for each of them."""
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
    """What a state dict of `module` should hold. Buffers that are declared not to persist are left out."""
    by_id: dict[int, tuple[str, list[str], torch.Tensor]] = {}
    for prefix, inner in _tree(module, ""):
        transient = _own(inner, "_non_persistent_buffers_set")
        for kind, holder in ((PARAMETER, "_parameters"), (BUFFER, "_buffers")):
            for name, tensor in _own(inner, holder).items():
                if isinstance(tensor, torch.Tensor) and name not in transient and not nn.parameter.is_lazy(tensor):
                    by_id.setdefault(id(tensor), (kind, [], tensor))[1].append(prefix + name)
    return [Member(kind, tuple(names), tensor) for kind, names, tensor in by_id.values()]


def _own(module: nn.Module, attribute: str) -> Any:
    """What the module keeps under this name itself; nothing of its own code is run (a compiled script keeps none)."""
    return module.__dict__.get(attribute, {})


def _tree(module: nn.Module, prefix: str) -> Iterator[tuple[str, nn.Module]]:
    yield prefix, module
    for name, child in _own(module, "_modules").items():
        if child is not None:
            yield from _tree(child, f"{prefix}{name}.")


def state_mappings(saved: Any, depth: int = 0) -> Iterator[Mapping[str, Any]]:
    """Every mapping of names to tensors in `saved`; of a whole module the mapping that its state is."""
    if isinstance(saved, nn.Module):
        yield {name: member.tensor for member in members(saved) for name in member.names}
    elif isinstance(saved, dict):
        if "state" in saved and "param_groups" in saved:
            return  # an optimizer's
        entries = list(dict.items(saved))
        if any(isinstance(value, torch.Tensor) and isinstance(key, str) for key, value in entries):
            yield saved
        if depth < _DEEPEST:
            for _, value in entries:
                yield from state_mappings(value, depth + 1)
    elif isinstance(saved, (list, tuple)) and len(saved) <= _LONGEST and depth < _DEEPEST:
        for value in saved:
            yield from state_mappings(value, depth + 1)


def unwrapped(module: nn.Module) -> Iterator[nn.Module]:
    """`module` and what it wraps: a wrapper has no parameters of its own and one child that has any."""
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
    """`mapping` as a state of `module` whose keys begin with `prefix`; `known` are its members where they are known."""
    entries = {
        key[len(prefix) :]: value
        for key, value in mapping.items()
        if isinstance(key, str) and key.startswith(prefix) and isinstance(value, torch.Tensor)
    }
    return ModuleState(module, prefix, members(module) if expected is None else expected, entries)


def best_match(mapping: Mapping[str, Any], candidates: Iterable[Candidate]) -> tuple[ModuleState, bool] | None:
    """The module among `candidates` that `mapping` is a state of, and whether that is certain.

    It is the one of which at least half of the names occur, possibly behind a prefix that all of them share; of
    several the one whose memory the mapping holds (which makes it certain), then the one whose shapes fit best. A
    mapping of fewer names, all of them of one module, is a part of its state: nothing is said of the other members.
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
    """The modules that `mapping` is a state of, each of other entries, and whether all of it is certain."""
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
    """What the most of `names` have before the names of the members: nothing, or text that ends in a dot."""
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
    """Whether two tensors lie in the same memory, wholly or in part. Call under `hidden_from_modes`."""
    first, second = _dense(tensor), _dense(other)
    if first is None or second is None or first.numel() == 0:
        return False
    pointer: int = first.untyped_storage().data_ptr()
    return pointer != 0 and first.device == second.device and bool(pointer == second.untyped_storage().data_ptr())


def same_memory(tensor: Any, other: Any) -> bool:
    """Whether two tensors are the same elements of the same memory in the same order. Call under `hidden_from_modes`."""
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
    """Whether the tensor is a part of a larger one (a distributed tensor)."""
    return hasattr(tensor, "_local_tensor")


def fingerprint_pairs(pairs: Sequence[Pair]) -> list[tuple[int | None, int | None]]:
    """Fingerprints of each member and of its counterpart, made so that the two can be compared; None if unreadable.

    A fingerprint made on an accelerator is never compared with one made on the CPU: where the two lie on different
    devices, they are copied to the CPU, one at a time. A shard and a whole tensor cannot be compared.
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
    lives = fingerprints([pairs[index].member.tensor for index in together])
    separate = [
        index
        for index in together
        if pairs[index].other is not None and not same_memory(pairs[index].member.tensor, pairs[index].other)
    ]
    others = dict(zip(separate, fingerprints([pairs[index].other for index in separate]), strict=True))
    for index, live_print in zip(together, lives, strict=True):
        missing = pairs[index].other is None
        prints[index] = (live_print, None if missing else others.get(index, live_print))
    return prints


def _on_cpu(tensor: torch.Tensor) -> torch.Tensor:
    dense = local_tensor(tensor)
    return tensor if dense is None or dense.device.type == "cpu" else dense.cpu()


def is_fresh(pairs: Sequence[Pair], held: Sequence[bool], values: Sequence[tuple[int | None, int | None]]) -> bool:
    """Whether what is saved was taken from the live state as it is now; `held` tells what an optimizer holds.

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
