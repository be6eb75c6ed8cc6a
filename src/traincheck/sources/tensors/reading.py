"""Tensors: bits and fingerprint of a whole tensor, whether it is zero, and how to read it without being seen.

Note [Tensor subclasses]
A tensor of a class with a `__torch_dispatch__` of its own (DTensor, quantised, fake, a user's) often has no memory: it
wraps other tensors. An operation that is kept from this method reads the memory that is not there, and the process ends
with a segmentation fault. So `unseen` switches off the program's dispatch *modes*, but never the dispatch of
subclasses, and it switches the latter on where the program itself has switched it off. Whatever reads values takes them
from `local`, which returns a plain tensor with memory behind each of its elements, or None. An operation that reaches a
subclass all the same costs a call of its method, and no crash.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import zlib
from collections.abc import Generator, Sequence
from typing import TypeAlias

import torch
import xxhash
from torch._C._functorch import is_functorch_wrapped_tensor
from torch.nn.parameter import is_lazy
from torch.utils._python_dispatch import _disable_current_modes

from traincheck.sources.tensors import deferred_values
from traincheck.sources.tensors.deferred_values import Pending, fetched, is_capturing, lies_here
from traincheck.sources.tensors.hashing import Memory, digest, digests

NONE, ZERO, SOME = "none", "zero", "some"

_FEW, _SOME, _ALL = 64, 256, 4096
"""Bytes looked at before a whole tensor is reduced: one that is not zero settles that the tensor is not. First a few in
a row, then some all over it (of the gradient of an embedding most rows are zero); of small tensors all of them."""


class _Unseen:
    """Stands around what we compute, see `unseen`. One that was left is used again: to make it costs as much as to use
    it three times.

    It is a generator that goes on where others end. An interrupt (Ctrl-C) in its midst ends it like any other: all that
    it has done is taken back at once, before what is around it ends, and it is not used again.
    """

    __slots__ = ("_close", "_next")

    def __init__(self) -> None:
        rounds = _in_and_out()
        self._next, self._close = rounds.__next__, rounds.close

    def __enter__(self) -> None:
        try:
            self._next()
        except BaseException:
            self._close()
            raise

    def __exit__(self, *_: object) -> None:
        try:
            self._next()
        except BaseException:
            self._close()
            raise
        _idle.append(self)


_idle: list[_Unseen] = []


_PYTHON = torch._C.DispatchKey.Python
_is_included = torch._C._dispatch_tls_is_dispatch_key_included  # where a mode is on the stack of this thread
_is_excluded, _exclude = (
    torch._C._dispatch_tls_is_dispatch_key_excluded,
    torch._C._dispatch_tls_set_dispatch_key_excluded,
)
_NO_MODES = contextlib.nullcontext()


def _in_and_out() -> Generator[None, None, None]:
    """Enter and leave in turns. See Note [Tensor subclasses] for what is switched off."""
    while True:
        grad, excluded = torch.is_grad_enabled(), _is_excluded(_PYTHON)
        # (To hide the modes by dispatch keys alone is not enough: `detach` asks for the stack itself.)
        with torch._C.DisableTorchFunction(), _disable_current_modes() if _is_included(_PYTHON) else _NO_MODES:
            try:  # also around the next lines, after which an interrupt of the program's may come
                if excluded:
                    _exclude(_PYTHON, False)
                torch._C._set_grad_enabled(False)
                yield
            finally:
                torch._C._set_grad_enabled(grad)
                if excluded:
                    _exclude(_PYTHON, True)
        yield


def unseen() -> _Unseen:
    """What we compute in here is seen by no mode of the program (nor by our own) and records no gradient."""
    try:
        return _idle.pop()
    except IndexError:  # not asked before: another thread may have taken the last one since
        return _Unseen()


def local(tensor: torch.Tensor) -> torch.Tensor | None:
    """The local memory of `tensor` as a plain dense tensor; None where there is nothing to read (meta, sparse, freed, a
    mere wrapper), or where it must not be read: what is computed on an accelerator while a graph is captured or traced
    becomes part of it. Call under `unseen`."""
    if type(tensor) not in PLAIN:
        shard = getattr(tensor, "_local_tensor", None)
        tensor = shard if isinstance(shard, torch.Tensor) else tensor
    if tensor.layout is not _STRIDED or tensor.is_meta or tensor.is_quantized or tensor.is_nested:
        return None
    if is_functorch_wrapped_tensor(tensor) or torch._is_functional_tensor(tensor):
        return None
    if type(tensor) not in PLAIN:
        plain = _plain(tensor)
        if plain is None:
            return None
        tensor = plain
    try:  # its memory may be freed for now, as that of sharded parameters is
        size = tensor.untyped_storage().nbytes()
        ends = tensor.storage_offset() * tensor.element_size() + tensor.nbytes
        if (size < ends or not size or not tensor.is_contiguous()) and not _is_within(tensor, size):
            return None
    except (RuntimeError, NotImplementedError):
        return None
    if not (tensor.is_cpu and not deferred_values.elsewhere) and (is_capturing() or _traced() is not None):
        return None
    if tensor.is_conj() or tensor.is_neg():  # a view whose memory holds other values than it shows
        return tensor.resolve_conj().resolve_neg()
    return tensor


PLAIN = (torch.Tensor, torch.nn.Parameter)
_STRIDED = torch.strided
_traced = torch._C._get_tracing_state
_no_dispatch = torch._C._disabled_torch_dispatch_impl


def _plain(tensor: torch.Tensor) -> torch.Tensor | None:
    """A tensor of a subclass as a plain tensor of the same memory, None where it has no memory of its own. A subclass
    without a dispatch method of its own is as good as plain."""
    if is_lazy(tensor):
        return None
    try:
        storage = tensor.untyped_storage()
        if storage.device.type == "meta" or (tensor.numel() and storage.data_ptr() == 0):
            return None
    except (RuntimeError, NotImplementedError):
        return None
    if type(tensor).__torch_dispatch__ is _no_dispatch:
        return tensor
    with torch._C._DisableTorchDispatch():  # it has memory, and nothing of it is read here
        return tensor.detach()


def _is_within(tensor: torch.Tensor, size: int) -> bool:
    """Whether each element of a strided tensor lies in the first `size` bytes of its memory: a program may free or
    shrink what is behind a tensor."""
    if not tensor.numel():
        return True
    reach = sum((length - 1) * stride for length, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return bool(size >= (tensor.storage_offset() + reach + 1) * tensor.element_size())


def is_copyable(tensor: torch.Tensor) -> bool:
    """Whether a copy of `tensor` is as good as itself: it is plain, and its memory is there. Call under `unseen`."""
    return type(tensor) in PLAIN and local(tensor) is not None


def shape_of(tensor: torch.Tensor) -> tuple[int, ...] | None:
    """The sizes of `tensor`; None where it has none (a nested tensor), or none that is known."""
    try:
        shape = tuple(tensor.shape)
    except (RuntimeError, NotImplementedError):
        return None
    return shape if all(type(size) is int for size in shape) else None


def is_empty(tensor: torch.Tensor) -> bool:
    """Whether nothing of the tensor is here: of one in shards a rank may have none. Call where no mode is asked."""
    if type(tensor) not in PLAIN:
        tensor = getattr(tensor, "_local_tensor", tensor)
    return bool(tensor.numel() == 0)


WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""The integers by which elements of so many bytes are seen."""


def words(tensor: torch.Tensor) -> torch.Tensor:
    """The elements in a row, as integers; two for a complex number."""
    flat = tensor.detach().resolve_conj().resolve_neg().contiguous().reshape(-1)
    if flat.is_complex():
        flat = torch.view_as_real(flat).reshape(-1)
    return flat.view(WORDS[flat.element_size()])


def same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors of a device have one type, one shape, and the same bits."""
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    shown = any(tensor.is_conj() or tensor.is_neg() for tensor in (one, other))  # as other values than lie in memory
    if one.stride() == other.stride() and one.element_size() in WORDS and not shown:  # as they lie: nothing is copied
        type_of_words = WORDS[one.element_size()]
        return bool(torch.equal(one.detach().view(type_of_words), other.detach().view(type_of_words)))
    return bool(torch.equal(words(one), words(other)))


_seeds: dict[tuple[torch.dtype, torch.Size], int] = {}


def _seed(tensor: torch.Tensor) -> int:
    """A number for dtype and shape, so that equal bytes of another type or shape differ."""
    return zlib.crc32(repr((str(tensor.dtype), tuple(tensor.shape))).encode())


MOST_KEPT = 1024
"""Elements of a tensor that are kept to compare it with: random numbers that are equal in so many are equal."""


def beginning(tensor: torch.Tensor) -> torch.Tensor:
    """The first elements of a dense tensor, without a copy of the rest."""
    if tensor.numel() <= MOST_KEPT:
        return tensor.reshape(-1)
    flat = tensor
    while flat.dim() > 1 and flat[0].numel() >= MOST_KEPT:
        flat = flat[0]
    rows = flat if flat.dim() == 1 else flat[: MOST_KEPT // max(1, flat[0].numel()) + 1]
    return rows.reshape(-1)[:MOST_KEPT]


def fingerprints(tensors: Sequence[torch.Tensor]) -> list[int | None]:
    """One fingerprint for each tensor: of all its bytes, their order, its dtype and its shape; None if unreadable.

    On the CPU it is xxh3-64. On an accelerator it is that of `device_fingerprints`, with one transfer for all tensors
    of a device. The two are never compared with each other. Call under `unseen`.
    """
    return fetched(computed(tensors))


Computed: TypeAlias = "int | Pending | None"
"""A fingerprint, or the promise of one for which nobody has waited yet."""


def computed(tensors: Sequence[torch.Tensor]) -> list[Computed]:
    """`fingerprints`, computed where the tensors lie: those of accelerators are pending. Call under `unseen`."""
    found: list[Computed] = [None] * len(tensors)
    places, whole, far, away = [], [], [], []
    for position, tensor in enumerate(tensors):
        dense = local(tensor)
        if dense is None:
            continue
        if dense.is_cpu and not deferred_values.elsewhere:  # `lies_here`, written out
            places.append(position)
            whole.append(dense if dense.is_contiguous() else dense.contiguous())
        else:
            far.append(position)
            away.append(dense)
    for position, value in zip(places, digests([_memory(tensor) for tensor in whole]), strict=True):
        found[position] = value
    if away:
        # (Imported where there is an accelerator: each module makes the start of a program longer.)
        from traincheck.sources.tensors.device_fingerprints import device_fingerprints

        for position, number, tensor in zip(far, device_fingerprints(list(map(words, away))), away, strict=True):
            found[position] = Pending((number,), functools.partial(_with_seed, _seed(tensor)))
    return found


def _with_seed(seed: int, number: int) -> int:
    return (number ^ seed) & 0xFFFFFFFFFFFFFFFF


def _memory(tensor: torch.Tensor) -> Memory:
    """The memory of a contiguous tensor."""
    key = (tensor.dtype, tensor.shape)
    seed = _seeds.get(key)
    if seed is None:
        seed = _seeds[key] = _seed(tensor)
    return Memory(tensor.data_ptr(), tensor.nbytes, seed, tensor)


def states(tensors: Sequence[torch.Tensor | None]) -> list[str]:
    """`none`, `zero` or `some` for each tensor; one that cannot be read counts as `some`. Call under `unseen`."""
    return fetched(computed_states(tensors))


def computed_states(tensors: Sequence[torch.Tensor | None]) -> list[str | Pending]:
    """`states`, computed where the tensors lie: those of accelerators are pending. Call under `unseen`.

    Some bytes settle nearly all that are not zero, and on the CPU the fingerprint of zeros all that are; only the rest
    (zeros of either sign among others) is reduced, in one batched call for each device.
    """
    found: list[str | Pending] = [SOME] * len(tensors)
    rest: dict[tuple[torch.device, torch.dtype], list[tuple[int, torch.Tensor]]] = {}
    for position, tensor in enumerate(tensors):
        if tensor is None:
            found[position] = NONE
            continue
        dense = local(tensor)
        if dense is None:
            continue
        if dense.numel() == 0:
            found[position] = ZERO
        elif not dense.is_cpu or deferred_values.elsewhere:
            rest.setdefault((dense.device, dense.dtype), []).append((position, dense))
        elif _peek(dense):
            continue
        elif digest(_memory(dense.contiguous())) == _zero_fingerprint(dense):
            found[position] = ZERO
        else:
            rest.setdefault((dense.device, dense.dtype), []).append((position, dense))
    for entries in rest.values():
        for (position, dense), largest in zip(entries, _largest([tensor for _, tensor in entries]), strict=True):
            if lies_here(dense):
                found[position] = _state(largest.item())
            else:
                found[position] = Pending((largest,), _state)
    return found


def _state(largest: float) -> str:
    """What a tensor is by its largest element; what is no number is `some`."""
    return ZERO if largest == 0 else SOME


def _peek(tensor: torch.Tensor) -> bool:
    """Whether some bytes of its memory are not those of zeros (cheap, CPU only)."""
    if not tensor.is_contiguous():
        return False
    size, begins = tensor.nbytes, tensor.data_ptr()
    if size <= _ALL:
        return bool(ctypes.string_at(begins, size).lstrip(_ZERO_BYTES))
    if ctypes.string_at(begins + size // 2, _FEW).lstrip(_ZERO_BYTES):
        return True
    memory = memoryview((ctypes.c_char * size).from_address(begins)).cast("B")
    return bool(memory[:: size // _SOME | 1].tobytes().lstrip(_ZERO_BYTES))  # odd: of elements now this byte, now that


_ZERO_BYTES = b"\x00\x80"
"""The bytes that zeros are made of: of either sign, in either byte order."""

_zero_fingerprints: dict[tuple[torch.dtype, torch.Size], int] = {}


def _zero_fingerprint(tensor: torch.Tensor) -> int:
    key = (tensor.dtype, tensor.shape)
    found = _zero_fingerprints.get(key)
    if found is None:
        found = _zero_fingerprints[key] = xxhash.xxh3_64_intdigest(bytes(tensor.nbytes), _seed(tensor))
    return found


def _largest(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The largest element of each; of those that are no floating point numbers whether any is not zero."""
    if tensors[0].is_floating_point():
        return list(torch._foreach_norm(tensors, float("inf")))
    return [tensor.ne(0).any() for tensor in tensors]
