"""Digests of arrays of JAX, computed where the arrays are and fetched later.

Note [Read one step late]
JAX dispatches work and returns before it is done. A program that reads a value waits. So TrainCheck dispatches a small
reduction of the arrays that go into a step, before the step: the device computes it between two steps, and a step that
donates its buffers waits for it by itself. TrainCheck fetches the results when the window of the step closes. By then
they are ready, as the device has gone on to the step. So TrainCheck never waits for the step under way, keeps no
array of the program alive, and copies none to the host.

The results are integers, because `jax_debug_nans` refuses floating point results that are not finite.
"""

from __future__ import annotations

import math
import struct
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

_ODD = 0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D
"""Odd constants of xxHash, which mix the bits of an element and its position."""


class Digest(NamedTuple):
    """An array: `fingerprint` of all its bits, whether every element is zero, whether every element is finite, its
    `norm`, and the bits of its first element (`first`), up to 32."""

    fingerprint: int
    is_zero: bool
    is_finite: bool
    norm: float
    first: int

    @property
    def first_as_integer(self) -> int:
        """The first element of an array of 32-bit integers."""
        return int(struct.unpack("<i", struct.pack("<I", self.first))[0])

    @property
    def first_as_float(self) -> float:
        """The first element of an array of single precision."""
        return float(struct.unpack("<f", struct.pack("<I", self.first))[0])


class ArrayDigest(NamedTuple):
    """The digest of an array, whether all devices that hold a copy of one part hold the same bits, and the parts.

    Fingerprints of one value differ if it is divided into other parts.
    """

    digest: Digest
    copies_agree: bool = True
    parts: tuple[str, ...] = ("",)


class PendingDigests:
    """Digests that a device is computing. `fetch` waits for them."""

    def __init__(self, results: Sequence[Any], parts: Mapping[int, list[tuple[str, int]]]) -> None:
        self._results = results
        self._parts = parts  # of each array: which part of it, and the number of the result
        self._fetched: dict[int, ArrayDigest] | None = None

    def fetch(self) -> dict[int, ArrayDigest]:
        """The digest of each array by its key. Waits for the device the first time."""
        if self._fetched is None:
            jax = sys.modules["jax"]
            with jax.transfer_guard("allow"):
                rows = [row.tolist() for row in jax.device_get(self._results)]
            self._fetched = {
                key: _joined([(part, _digest_of(rows[number])) for part, number in parts])
                for key, parts in self._parts.items()
            }
            self._results = ()
        return self._fetched


class Digester:
    """Starts digests. `jit` is the function of JAX, as TrainCheck found it.

    Each array is a call of its own: JAX compiles the digest once for each shape. One digest for all arrays of a model
    would compile for a minute.
    """

    def __init__(self, jit: Callable[..., Any]) -> None:
        self._compute = jit(_digest)

    def start(self, arrays: Mapping[int, Any]) -> PendingDigests:
        """Dispatch the digests of these arrays (of JAX, or of numpy) by their keys."""
        jax = sys.modules["jax"]
        results: list[Any] = []
        parts: dict[int, list[tuple[str, int]]] = {}
        with jax.transfer_guard("allow"):
            for key, array in arrays.items():
                parts[key] = []
                for part, data in _parts_of(array, jax):
                    parts[key].append((part, len(results)))
                    results.append(self._compute(data))
        return PendingDigests(results, parts)


def is_key(array: Any) -> bool:
    """Whether an array holds random keys: typed ones, or a raw key of the default generator."""
    dtype = getattr(array, "dtype", None)
    if dtype is None:
        return False
    jax = sys.modules["jax"]
    if jax.dtypes.issubdtype(dtype, jax.dtypes.prng_key):
        return True
    return str(dtype) == "uint32" and tuple(array.shape[-1:]) == (2,) and len(array.shape) <= 2


def _parts_of(array: Any, jax: Any) -> list[tuple[str, Any]]:
    """The parts of an array that this process holds: which part, and an array on one device."""
    array = getattr(array, "_base_array", array)  # the bits of a typed key
    if not isinstance(array, jax.Array):
        array = jax.device_put(array)
    if len(array.sharding.device_set) == 1:
        return [("", array)]
    return [(str(shard.index), shard.data) for shard in array.addressable_shards]


def _joined(parts: Sequence[tuple[str, Digest]]) -> ArrayDigest:
    first: dict[str, Digest] = {}
    for part, digest in parts:
        first.setdefault(part, digest)
    copies_agree = all(digest.fingerprint == first[part].fingerprint for part, digest in parts)
    different = list(first.values()) or [Digest(0, is_zero=False, is_finite=True, norm=0.0, first=0)]
    if len(different) == 1:
        return ArrayDigest(different[0], copies_agree)
    joined = Digest(
        hash(tuple(digest.fingerprint for digest in different)) & 0xFFFFFFFFFFFFFFFF,
        all(digest.is_zero for digest in different),
        all(digest.is_finite for digest in different),
        math.hypot(*(digest.norm for digest in different)),
        different[0].first,
    )
    return ArrayDigest(joined, copies_agree, tuple(first))


def _digest_of(row: Sequence[int]) -> Digest:
    low, high, norm, first, flags = row
    return Digest(
        high << 32 | low, not flags & 1, not flags & 2, struct.unpack("<f", struct.pack("<I", norm))[0], first
    )


# -- on the device ---------------------------------------------------------------------------------------------------


def _digest(array: Any) -> Any:
    """A row of five 32-bit numbers: two of the fingerprint, the norm, the first element, and the flags.

    All of them come from one reduction, which compiles fastest.
    """
    jax = sys.modules["jax"]
    jnp, lax = jax.numpy, jax.lax
    integer, single = jnp.uint32, jnp.float32
    words = _words(array, jnp, lax).reshape(-1)
    if not words.size:
        return jnp.zeros(5, integer)
    positions = lax.iota(integer, words.size)
    mixed = (words ^ (positions * integer(_ODD[0]))) * integer(_ODD[1])
    mixed = (mixed ^ (mixed >> integer(15))) * integer(_ODD[2])
    mixed = mixed ^ (mixed >> integer(13))
    weighted = mixed * (positions * integer(2) + integer(1))
    sizes = _sizes(array, words, jnp, lax)
    flags = (sizes != single(0)).astype(integer) | (~lax.is_finite(sizes)).astype(integer) * integer(2)

    def both(one: tuple[Any, ...], other: tuple[Any, ...]) -> tuple[Any, ...]:
        added = [lax.add(mine, theirs) for mine, theirs in zip(one[:3], other[:3], strict=True)]
        return (*added, lax.bitwise_or(one[3], other[3]))

    starts = (integer(0), integer(0), single(0), integer(0))
    low, high, squares, flag = lax.reduce((mixed, weighted, sizes * sizes, flags), starts, both, (0,))
    norm = lax.bitcast_convert_type(lax.sqrt(squares), integer)
    return jnp.stack([low, high, norm, words[0], flag])


def _sizes(array: Any, words: Any, jnp: Any, lax: Any) -> Any:
    """The elements of an array in single precision, one for each word. For integers: zero or one."""
    if not jnp.issubdtype(array.dtype, jnp.inexact):
        return (words != jnp.uint32(0)).astype(jnp.float32)
    if jnp.iscomplexobj(array):
        array = jnp.concatenate([array.real.reshape(-1), array.imag.reshape(-1)])
    sizes = array.reshape(-1).astype(jnp.float32)
    return jnp.repeat(sizes, words.size // sizes.size) if words.size != sizes.size else sizes


def _words(array: Any, jnp: Any, lax: Any) -> Any:
    """The bits of an array as 32-bit integers."""
    if jnp.iscomplexobj(array):
        return jnp.concatenate([_words(part, jnp, lax).reshape(-1) for part in (array.real, array.imag)])
    if array.dtype == jnp.bool_:
        return array.astype(jnp.uint32)
    size = array.dtype.itemsize
    if size >= 4:  # an element of 8 bytes becomes two words
        return lax.bitcast_convert_type(array, jnp.uint32)
    if jnp.issubdtype(array.dtype, jnp.integer):
        return array.astype(jnp.int32).astype(jnp.uint32)
    return lax.bitcast_convert_type(array, {2: jnp.uint16, 1: jnp.uint8}[size]).astype(jnp.uint32)
