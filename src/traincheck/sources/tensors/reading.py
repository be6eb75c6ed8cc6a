"""Reads whole tensors without being seen by the program: local memory, fingerprints, and whether a tensor is zero.

Note [Tensor subclasses]
A tensor of a class with its own `__torch_dispatch__` (DTensor, quantized, fake, a user's class) often has no memory,
because it wraps other tensors. If an operation bypasses this method, it reads memory that does not exist, and the
process ends with a segmentation fault. So `hidden_from_modes` disables the program's dispatch *modes*, but never the
dispatch of subclasses, and it enables the latter if the program has disabled it. Code that reads values gets them from
`local_tensor`, which returns a plain tensor with memory for each of its elements, or None. For a parameter that wraps
one tensor of its form, that is the tensor inside. If an operation still reaches a subclass, it costs a call of its
method and does not crash.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import zlib
from collections.abc import Generator, Sequence
from typing import NamedTuple, TypeAlias

import torch
import xxhash
from torch._C._functorch import is_functorch_wrapped_tensor
from torch.nn.parameter import is_lazy
from torch.utils._python_dispatch import _disable_current_modes

from traincheck.sources.tensors import deferred_values
from traincheck.sources.tensors.deferred_values import DeferredValue, fetch_values, is_capturing, is_on_host
from traincheck.sources.tensors.hashing import Memory, digest, digests

NONE, ZERO, SOME = "none", "zero", "some"

_FEW, _SOME, _ALL = 64, 256, 4096
"""Bytes inspected before a whole tensor is reduced; one nonzero byte settles the question. The first check reads
adjacent bytes, the second some from the whole tensor, because most rows of an embedding's gradient are zero. Small
tensors are read completely."""


class _HiddenFromModes:
    """The context manager behind `hidden_from_modes`. Instances are reused, because creating one costs as much as three
    uses.

    It wraps a generator that resumes where others end. An interrupt (Ctrl-C) inside ends the generator: its changes are
    undone at once, before any outer context ends, and the instance is not reused.
    """

    __slots__ = ("_close", "_next")

    def __init__(self) -> None:
        rounds = _enter_and_leave()
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


_idle: list[_HiddenFromModes] = []


_PYTHON, _SNAPSHOT = torch._C.DispatchKey.Python, torch._C.DispatchKey.PythonTLSSnapshot
"""The dispatch of subclasses, and the state that torch saves before it. Torch 2.4 needs both, or it raises an error."""

_is_included = torch._C._dispatch_tls_is_dispatch_key_included  # a mode is on this thread's stack
_is_excluded, _exclude = (
    torch._C._dispatch_tls_is_dispatch_key_excluded,
    torch._C._dispatch_tls_set_dispatch_key_excluded,
)
_NO_MODES = contextlib.nullcontext()


def _enter_and_leave() -> Generator[None, None, None]:
    """Enter and leave in turns, see Note [Tensor subclasses]."""
    while True:
        grad, excluded = torch.is_grad_enabled(), _is_excluded(_PYTHON)
        # Excluding dispatch keys alone does not hide the modes: `detach` inspects the stack itself.
        with torch._C.DisableTorchFunction(), _disable_current_modes() if _is_included(_PYTHON) else _NO_MODES:
            try:  # also covers the next lines, which an interrupt may follow
                if excluded:
                    snapshot_excluded = _is_excluded(_SNAPSHOT)
                    _exclude(_PYTHON, False)
                    _exclude(_SNAPSHOT, False)
                torch._C._set_grad_enabled(False)
                yield
            finally:
                torch._C._set_grad_enabled(grad)
                if excluded:
                    _exclude(_PYTHON, True)
                    _exclude(_SNAPSHOT, snapshot_excluded)
        yield


def hidden_from_modes() -> _HiddenFromModes:
    """Hide computations from every mode of the program (and of TrainCheck), and record no gradient for them."""
    try:
        return _idle.pop()
    except IndexError:  # no check before, because another thread may take the last instance meanwhile
        return _HiddenFromModes()


def local_tensor(tensor: torch.Tensor) -> torch.Tensor | None:
    """The local memory of `tensor` as a plain dense tensor. Call inside `hidden_from_modes()`.

    Returns None if there is nothing to read (meta, sparse, freed, a mere wrapper). It also returns None if the tensor
    must not be read: while a graph is captured or traced, computations on an accelerator would become part of it.
    """
    if type(tensor) not in PLAIN:
        shard = getattr(tensor, "_local_tensor", None)
        tensor = _wrapped(shard if isinstance(shard, torch.Tensor) else tensor)
    if tensor.layout is not _STRIDED or tensor.is_meta or tensor.is_quantized or tensor.is_nested:
        return None
    if is_functorch_wrapped_tensor(tensor) or torch._is_functional_tensor(tensor):
        return None
    if type(tensor) not in PLAIN:
        plain = _plain_tensor(tensor)
        if plain is None:
            return None
        tensor = plain
    try:  # its memory may be freed temporarily, as for sharded parameters
        size = tensor.untyped_storage().nbytes()
        ends = tensor.storage_offset() * tensor.element_size() + tensor.nbytes
        if (size < ends or not size or not tensor.is_contiguous()) and not _is_within(tensor, size):
            return None
    except (RuntimeError, NotImplementedError):
        return None
    if not (tensor.is_cpu and not deferred_values.simulated) and (is_capturing() or _traced() is not None):
        return None
    if tensor.is_conj() or tensor.is_neg():  # a lazy view: its memory holds other values
        return tensor.resolve_conj().resolve_neg()
    return tensor


def _wrapped(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor inside a parameter that adds a way to compute (such as a low precision) and no numbers of its own.

    Only parameters: a result may wrap a tensor that another process still writes to (`AsyncCollectiveTensor`).
    """
    flatten = getattr(tensor, "__tensor_flatten__", None)
    if flatten is None or not isinstance(tensor, torch.nn.Parameter):
        return tensor
    try:
        names, _ = flatten()
        inner = getattr(tensor, names[0]) if len(names) == 1 else None
    except Exception:  # this method belongs to the program
        return tensor
    is_same = isinstance(inner, torch.Tensor) and (inner.shape, inner.dtype) == (tensor.shape, tensor.dtype)
    return inner if is_same else tensor


PLAIN = (torch.Tensor, torch.nn.Parameter)
_STRIDED = torch.strided
_traced = torch._C._get_tracing_state
_no_dispatch = torch._C._disabled_torch_dispatch_impl


def same_part(tensor: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors hold the same part of a whole on this rank (DTensor), or both are no parts.

    The gradient of a shard may be whole or a summand; an optimizer of torch redistributes it before it uses it.
    """
    return bool(getattr(tensor, "placements", None) == getattr(other, "placements", None))


def _plain_tensor(tensor: torch.Tensor) -> torch.Tensor | None:
    """A tensor of a subclass as a plain tensor over the same memory; None if it has no memory of its own. A subclass
    without its own dispatch counts as plain."""
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
    with torch._C._DisableTorchDispatch():  # it has memory, and this reads none of it
        return tensor.detach()


def _is_within(tensor: torch.Tensor, size: int) -> bool:
    """Whether each element of a strided tensor lies in the first `size` bytes of its memory. A program may free or
    shrink the memory behind a tensor."""
    if not tensor.numel():
        return True
    reach = sum((length - 1) * stride for length, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return bool(size >= (tensor.storage_offset() + reach + 1) * tensor.element_size())


def is_copyable(tensor: torch.Tensor) -> bool:
    """Whether a copy can replace `tensor`: it is plain and its memory exists. Call inside `hidden_from_modes()`."""
    return type(tensor) in PLAIN and local_tensor(tensor) is not None


@functools.cache
def dtype_name(dtype: torch.dtype) -> str:
    """The name of a dtype without `torch.`."""
    return str(dtype).removeprefix("torch.")


def kind_of(tensor: torch.Tensor) -> str:
    """What a tensor is, in words, where it is no ordinary one: its layout, or its class."""
    layout = "" if tensor.layout is _STRIDED else str(tensor.layout).removeprefix("torch.")
    return f"{layout} tensor" if layout else type(tensor).__name__


def form_of(tensor: torch.Tensor) -> str:
    """The dtype and the number of dimensions of `tensor`, in words."""
    return f"{dtype_name(tensor.dtype)} of {tensor.dim()} dimension{'s' * (tensor.dim() != 1)}"


def shape_of(tensor: torch.Tensor) -> tuple[int, ...] | None:
    """The sizes of `tensor`; None if it has none (a nested tensor) or they are symbolic."""
    try:
        shape = tuple(tensor.shape)
    except (RuntimeError, NotImplementedError):
        return None
    return shape if all(type(size) is int for size in shape) else None


def is_empty(tensor: torch.Tensor) -> bool:
    """Whether this rank holds no element of the tensor, as for sharded ones. Call where no mode intercepts it."""
    if type(tensor) not in PLAIN:
        tensor = getattr(tensor, "_local_tensor", tensor)
    return bool(tensor.numel() == 0)


INTEGER_TYPES = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
"""The integer dtype by size in bytes that shows the bits of an element."""


def as_integers(tensor: torch.Tensor) -> torch.Tensor:
    """The bits of all elements as a flat tensor of integers, two for a complex number."""
    flat = tensor.detach().resolve_conj().resolve_neg().contiguous().reshape(-1)
    if flat.is_complex():
        flat = torch.view_as_real(flat).reshape(-1)
    return flat.view(INTEGER_TYPES[flat.element_size()])


def same_bits(tensor: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors on a device have the same dtype, the same shape, and the same bits."""
    if tensor.shape != other.shape or tensor.dtype != other.dtype:
        return False
    lazy_view = any(view.is_conj() or view.is_neg() for view in (tensor, other))
    size = tensor.element_size()
    # Without a lazy view the memory itself can be compared, and nothing is copied.
    if tensor.stride() == other.stride() and size in INTEGER_TYPES and not lazy_view:
        return bool(torch.equal(tensor.detach().view(INTEGER_TYPES[size]), other.detach().view(INTEGER_TYPES[size])))
    return bool(torch.equal(as_integers(tensor), as_integers(other)))


def _seed(tensor: torch.Tensor) -> int:
    """A number for dtype and shape, so that equal bytes with another dtype or shape get another fingerprint."""
    return zlib.crc32(repr((str(tensor.dtype), tuple(tensor.shape))).encode())


MAX_FIRST_ELEMENTS = 1024
"""Elements kept to compare a tensor with later. Random numbers that are equal in so many elements are equal."""


def first_elements(tensor: torch.Tensor) -> torch.Tensor:
    """The first elements of a dense tensor, without a copy of the rest."""
    if tensor.numel() <= MAX_FIRST_ELEMENTS:
        return tensor.reshape(-1)
    flat = tensor
    while flat.dim() > 1 and flat[0].numel() >= MAX_FIRST_ELEMENTS:
        flat = flat[0]
    rows = flat if flat.dim() == 1 else flat[: MAX_FIRST_ELEMENTS // max(1, flat[0].numel()) + 1]
    return rows.reshape(-1)[:MAX_FIRST_ELEMENTS]


LEADING_FLOATS = 64
"""Elements of a parameter that are compared with those of others, or with later ones."""

_ENOUGH_FLOATS = 16
"""Random numbers that are equal in so many elements are no chance."""


def leading_floats(parameter: torch.Tensor) -> torch.Tensor | None:
    """The first elements of a parameter with floating point numbers that can be read, without a copy."""
    dense = local_tensor(parameter)
    if dense is None or not dense.is_floating_point() or not dense.numel():
        return None
    elements = first_elements(dense).detach()[:LEADING_FLOATS]
    # Inside a transform of torch.func, also the views of a plain tensor are wrappers.
    return None if is_functorch_wrapped_tensor(elements) else elements


def is_varied(elements: torch.Tensor) -> bool:
    """Whether so many elements differ that equal ones elsewhere are no chance."""
    count = int(elements.numel())
    return count >= _ENOUGH_FLOATS and len(elements.float().unique()) * 2 > count  # ones and zeros are set on purpose


def bytes_of(elements: torch.Tensor) -> bytes:
    """The contents of elements, which are equal for equal bits."""
    own = elements.clone()  # an array of numpy over memory of the program would forbid to resize it (FSDP frees it so)
    contents: bytes = own.view(torch.uint8).cpu().numpy().tobytes()
    return contents


def starts_with(parameter: torch.Tensor, elements: torch.Tensor) -> bool:
    """Whether a parameter has these first elements."""
    now = leading_floats(parameter)
    return now is not None and now.shape == elements.shape and same_bits(now, elements.to(now.device, now.dtype))


def fingerprints(tensors: Sequence[torch.Tensor]) -> list[int | None]:
    """One fingerprint for each tensor: of all its bytes, their order, its dtype and its shape; None if unreadable.

    On the CPU it is xxh3-64. On an accelerator it comes from `device_fingerprints`, with one transfer for all tensors
    of a device. The two kinds are never compared with each other. Call inside `hidden_from_modes()`.
    """
    return fetch_values(deferred_fingerprints(tensors))


Fingerprint: TypeAlias = "int | DeferredValue | None"
"""A fingerprint that may be deferred."""


def deferred_fingerprints(tensors: Sequence[torch.Tensor]) -> list[Fingerprint]:
    """`fingerprints` without waiting: those on accelerators are deferred. Call inside `hidden_from_modes()`."""
    values: list[Fingerprint] = [None] * len(tensors)
    host_indices, on_host, device_indices, on_device = [], [], [], []
    for index, tensor in enumerate(tensors):
        memory = _plain_memory(tensor)
        if memory is None:
            dense = local_tensor(tensor)
            if dense is None:
                continue
            if not is_on_host(dense):
                device_indices.append(index)
                on_device.append(dense)
                continue
            memory = _memory(dense if dense.is_contiguous() else dense.contiguous())
        host_indices.append(index)
        on_host.append(memory)
    for index, value in zip(host_indices, digests(on_host), strict=True):
        values[index] = value
    if on_device:
        # Imported only with an accelerator, because each import delays the start of the program.
        from traincheck.sources.tensors.device_fingerprints import device_fingerprints

        for index, number, tensor in zip(
            device_indices, device_fingerprints(list(map(as_integers, on_device))), on_device, strict=True
        ):
            values[index] = DeferredValue((number,), functools.partial(_with_seed, _form_of(tensor).seed))
    return values


def _with_seed(seed: int, number: int) -> int:
    return (number ^ seed) & 0xFFFFFFFFFFFFFFFF


class _Form(NamedTuple):
    """The bytes of a contiguous tensor and of one element, and the seed of its fingerprint, by dtype and shape."""

    size: int
    element_size: int
    seed: int


_forms: dict[tuple[torch.dtype, torch.Size], _Form] = {}


def _form_of(tensor: torch.Tensor) -> _Form:
    key = (tensor.dtype, tensor.shape)
    form = _forms.get(key)
    if form is None:
        form = _forms[key] = _Form(tensor.nbytes, tensor.element_size(), _seed(tensor))
    return form


def _memory(tensor: torch.Tensor) -> Memory:
    """The memory of a contiguous tensor."""
    form = _form_of(tensor)
    return Memory(tensor.data_ptr(), form.size, form.seed, tensor)


def _plain_memory(tensor: torch.Tensor) -> Memory | None:
    """The memory of a tensor that is like most parameters and gradients; None means that `local_tensor` must decide.

    A step reads dozens of tensors, and `local_tensor` asks torch some twenty questions about each. An address and a
    shape rule out most kinds: a wrapper and a sparse tensor have no address, and torch raises. A meta tensor and a
    freed one have address 0, and a nested one has no shape. The dtype rules out quantized tensors and conjugated views.
    """
    if type(tensor) not in PLAIN or not tensor.is_cpu or deferred_values.simulated:
        return None
    try:
        address, dtype = tensor.data_ptr(), tensor.dtype
        if not address or dtype not in _REAL_DTYPES or not tensor.is_contiguous() or tensor.is_neg():
            return None
        form = _forms.get((dtype, tensor.shape)) or _form_of(tensor)
        end = tensor.storage_offset() * form.element_size + form.size
        if tensor.untyped_storage().nbytes() < end:  # a part of it is freed
            return None
    except (RuntimeError, NotImplementedError):
        return None
    return Memory(address, form.size, form.seed, tensor)


_REAL_DTYPES = {torch.float32, torch.float64, torch.float16, torch.bfloat16}
_REAL_DTYPES |= {torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool}


def states(tensors: Sequence[torch.Tensor | None]) -> list[str]:
    """`none`, `zero` or `some` for each tensor; an unreadable tensor counts as `some`. Call inside
    `hidden_from_modes()`."""
    return fetch_values(deferred_states(tensors))


def deferred_states(tensors: Sequence[torch.Tensor | None]) -> list[str | DeferredValue]:
    """`states` without waiting: those on accelerators are deferred. Call inside `hidden_from_modes()`.

    Some bytes settle nearly all nonzero tensors, and on the CPU the fingerprint of zeros settles all zero tensors. Only
    the rest (zeros of either sign, for example) is reduced, with one batched call for each device.
    """
    values: list[str | DeferredValue] = [SOME] * len(tensors)
    unsettled: dict[tuple[torch.device, torch.dtype], list[tuple[int, torch.Tensor]]] = {}
    for index, tensor in enumerate(tensors):
        if tensor is None:
            values[index] = NONE
            continue
        memory = _plain_memory(tensor)
        if memory is not None and _has_nonzero_bytes(memory.address, memory.size):
            continue
        dense = local_tensor(tensor)
        if dense is None:
            continue
        if dense.numel() == 0:
            values[index] = ZERO
        elif not dense.is_cpu or deferred_values.simulated:
            unsettled.setdefault((dense.device, dense.dtype), []).append((index, dense))
        elif dense.is_contiguous() and _has_nonzero_bytes(dense.data_ptr(), dense.nbytes):
            continue
        elif digest(_memory(dense.contiguous())) == _zero_fingerprint(dense):
            values[index] = ZERO
        else:
            unsettled.setdefault((dense.device, dense.dtype), []).append((index, dense))
    for entries in unsettled.values():
        for (index, dense), largest in zip(entries, _largest([tensor for _, tensor in entries]), strict=True):
            if is_on_host(dense):
                values[index] = _state_of(largest.item())
            else:
                values[index] = DeferredValue((largest,), _state_of)
    return values


def _state_of(largest: float) -> str:
    """The state of a tensor by its largest element; NaN means `some`."""
    return ZERO if largest == 0 else SOME


def _has_nonzero_bytes(address: int, size: int) -> bool:
    """Whether some bytes of CPU memory are not those of zeros (cheap)."""
    if size <= _ALL:
        return bool(ctypes.string_at(address, size).lstrip(_ZERO_BYTES))
    if ctypes.string_at(address + size // 2, _FEW).lstrip(_ZERO_BYTES):
        return True
    memory = memoryview((ctypes.c_char * size).from_address(address)).cast("B")
    stride = size // _SOME | 1  # an odd stride visits different bytes of the elements
    return bool(memory[::stride].tobytes().lstrip(_ZERO_BYTES))


_ZERO_BYTES = b"\x00\x80"
"""The bytes of zeros, of either sign and in either byte order."""

_zero_fingerprints: dict[tuple[torch.dtype, torch.Size], int] = {}


def _zero_fingerprint(tensor: torch.Tensor) -> int:
    key = (tensor.dtype, tensor.shape)
    fingerprint = _zero_fingerprints.get(key)
    if fingerprint is None:
        fingerprint = _zero_fingerprints[key] = xxhash.xxh3_64_intdigest(bytes(tensor.nbytes), _seed(tensor))
    return fingerprint


def _largest(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The largest absolute element of each floating point tensor; of others whether any element is nonzero."""
    if tensors[0].is_floating_point():
        return list(torch._foreach_norm(tensors, float("inf")))
    return [tensor.ne(0).any() for tensor in tensors]
