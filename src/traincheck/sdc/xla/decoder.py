"""Define the decoder of `sdc/workload/decoder.py` as functions for XLA, one for each kind of submodule.

Parameters have the names, shapes and layout of that module. Each submodule is compiled alone, forward and backward. Its
output and its input gradient lie between programs, where a study compares, overwrites and corrupts them. All levels of
a study execute the same programs.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from traincheck.sdc.workload.sizes import DecoderConfig

Parameters = Mapping[str, jax.Array]
EPSILON = 1e-5
"""The epsilon of the norms."""


class Submodule(NamedTuple):
    """A unit of comparison: its kind, the name of its torch class, and the local names of its parameters."""

    kind: str
    label: str
    parameters: tuple[str, ...]


NORM = Submodule("norm", "RMSNorm", ("weight",))
EMBEDDING = Submodule("embedding", "Embedding", ("weight",))
ATTENTION = Submodule("attention", "Attention", ("query.weight", "key.weight", "value.weight", "out.weight"))
FEED_FORWARD = Submodule("feed-forward", "FeedForward", ("gate.weight", "up.weight", "down.weight"))
HEAD = Submodule("head", "Linear", ("weight",))


def submodules(config: DecoderConfig) -> dict[str, Submodule]:
    """Return all submodules by name, in the order of the forward."""
    kinds = {"embedding": EMBEDDING}
    for number in range(config.layers):
        layer = f"layers.{number}"
        kinds |= {f"{layer}.attention_norm": NORM, f"{layer}.attention": ATTENTION}
        kinds |= {f"{layer}.feed_forward_norm": NORM, f"{layer}.feed_forward": FEED_FORWARD}
    return {**kinds, "norm": NORM, "head": HEAD}


def _wide(x: jax.Array) -> jax.Array:
    """Return `x` in fp32 or a wider type."""
    return x.astype(jnp.promote_types(x.dtype, jnp.float32))


def _linear(weight: jax.Array, x: jax.Array) -> jax.Array:
    return x @ weight.T


def _embedding(p: Parameters, tokens: jax.Array) -> jax.Array:
    return p["weight"][tokens]


def _norm(p: Parameters, x: jax.Array) -> jax.Array:
    wide = _wide(x)
    scaled = wide * jax.lax.rsqrt(jnp.mean(wide * wide, axis=-1, keepdims=True) + EPSILON)
    return p["weight"] * scaled.astype(x.dtype)


def _rotated(x: jax.Array, base: float) -> jax.Array:
    half = x.shape[-1] // 2
    frequencies = base ** (-jnp.arange(half, dtype=jnp.float32) / half)
    angles = jnp.outer(jnp.arange(x.shape[-2], dtype=jnp.float32), frequencies)
    cos, sin = jnp.cos(angles).astype(x.dtype), jnp.sin(angles).astype(x.dtype)
    first, second = x[..., :half], x[..., half:]
    return jnp.concatenate((first * cos - second * sin, first * sin + second * cos), axis=-1)


def _attention(config: DecoderConfig, p: Parameters, x: jax.Array) -> jax.Array:
    size, groups = config.width // config.heads, config.heads // config.kv_heads

    def heads(name: str) -> jax.Array:
        projected = _linear(p[f"{name}.weight"], x)
        return projected.reshape(*projected.shape[:-1], -1, size).swapaxes(1, 2)

    query, key = _rotated(heads("query"), config.rotary_base), _rotated(heads("key"), config.rotary_base)
    key, value = jnp.repeat(key, groups, axis=1), jnp.repeat(heads("value"), groups, axis=1)
    scores = _wide(query) @ _wide(key).swapaxes(-1, -2) * size**-0.5
    past = jnp.tril(jnp.ones(scores.shape[-2:], dtype=bool))
    weights = jax.nn.softmax(jnp.where(past, scores, -jnp.inf), axis=-1).astype(x.dtype)
    mixed = (weights @ value).swapaxes(1, 2)
    return _linear(p["out.weight"], mixed.reshape(*mixed.shape[:2], -1))


def _feed_forward(p: Parameters, x: jax.Array) -> jax.Array:
    return _linear(p["down.weight"], jax.nn.silu(_linear(p["gate.weight"], x)) * _linear(p["up.weight"], x))


def _head(p: Parameters, x: jax.Array) -> jax.Array:
    return _linear(p["weight"], x)


def _cross_entropy(logits: jax.Array, targets: jax.Array) -> jax.Array:
    likely = jax.nn.log_softmax(_wide(logits), axis=-1)
    return -jnp.mean(jnp.take_along_axis(likely, targets[..., None], axis=-1))


def _adamw(
    defaults: Mapping[str, Any],
    parameter: jax.Array,
    gradient: jax.Array,
    mean: jax.Array,
    square: jax.Array,
    step: jax.Array,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return the parameter and its two moments after a step (Loshchilov and Hutter, 2019, algorithm 2)."""
    (first, second), rate = defaults["betas"], defaults["lr"]
    value, slope = _wide(parameter), _wide(gradient)
    step = step.astype(value.dtype)
    mean, square = first * _wide(mean) + (1 - first) * slope, second * _wide(square) + (1 - second) * slope * slope
    upright, grown = mean / (1 - first**step), jnp.sqrt(square / (1 - second**step))
    value = value * (1 - rate * defaults["weight_decay"]) - rate * upright / (grown + defaults["eps"])
    return value.astype(parameter.dtype), mean.astype(parameter.dtype), square.astype(parameter.dtype)


Pull = Any
"""The residuals of a forward for its backward: a tree of arrays that JAX passes between programs."""


class Compiled:
    """The programs of a decoder of this size, each compiled at first execution."""

    def __init__(self, config: DecoderConfig, defaults: Mapping[str, Any]) -> None:
        """`defaults` are the optimizer settings with the names of torch's AdamW."""
        inner: dict[Submodule, Callable[[Parameters, jax.Array], jax.Array]] = {
            NORM: _norm,
            ATTENTION: functools.partial(_attention, config),
            FEED_FORWARD: _feed_forward,
            HEAD: _head,
        }
        self._forward = {
            submodule: jax.jit(functools.partial(jax.vjp, function)) for submodule, function in inner.items()
        }
        self._forward[EMBEDDING] = jax.jit(_embedded)  # tokens have no gradient
        self._backward = jax.jit(lambda pull, gradient: pull(gradient))
        self.loss = jax.jit(jax.value_and_grad(_cross_entropy))
        """Maps logits and targets to the loss and the gradient of the logits."""
        self.add = jax.jit(jnp.add)
        self.adamw = jax.jit(functools.partial(_adamw, defaults))

    def forward(self, submodule: Submodule, parameters: Parameters, x: jax.Array) -> tuple[jax.Array, Pull]:
        """Return the output of a submodule, and the residuals for its backward."""
        output, pull = self._forward[submodule](parameters, x)
        return output, pull

    def backward(self, pull: Pull, gradient: jax.Array) -> tuple[Parameters, jax.Array | None]:
        """Return the gradients of the parameters and of the input (None for tokens)."""
        gradients = self._backward(pull, gradient)
        return gradients[0], (gradients[1] if len(gradients) > 1 else None)


def _embedded(parameters: Parameters, tokens: jax.Array) -> tuple[jax.Array, Pull]:
    result: tuple[jax.Array, Pull] = jax.vjp(lambda p: _embedding(p, tokens), parameters)
    return result
