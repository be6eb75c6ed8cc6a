"""What the recording of a tape has to know of an aten operation, and the operations that replace random ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from traincheck.sources.replay.restorable_call import COLLECTIVES

_RANDOM = torch.Tag.nondeterministic_seeded
ZERO_DERIVATIVE = frozenset(("aten::bernoulli", "aten::normal", "aten::poisson", "aten::binomial"))
"""Random operations whose derivative is zero for autograd."""


class Operation(NamedTuple):
    """What the recording has to know of an operation. Arguments are named and have positions."""

    reads_values: bool  # not only the form of its arguments, as `zeros_like`
    writes: tuple[tuple[int, str], ...]
    statistics: tuple[int, ...]  # running statistics, written if `trains` is true
    trains: int
    random: bool
    probabilities: tuple[tuple[int, str], ...]  # of dropout
    repeated: tuple[int, ...]  # other arguments in another form, which may be left out
    waits: bool  # for other ranks: a rank that verifies alone must not execute it


def describe(func: Any) -> Operation:
    """Describe an operation by its schema."""
    arguments = list(enumerate(func._schema.arguments))
    name = func._schema.name.partition("::")[2]
    return Operation(
        not name.endswith("_like") and not name.startswith("new_"),
        tuple((i, a.name) for i, a in arguments if a.alias_info is not None and a.alias_info.is_write),
        tuple(i for i, a in arguments if a.name in ("running_mean", "running_var")),
        next((i for i, a in arguments if a.name in ("training", "train", "use_input_stats")), -1),
        _RANDOM in func.tags,
        tuple((i, a.name) for i, a in arguments if a.name in ("dropout_p", "dropout")),
        tuple(i for i, a in arguments if a.name == "weight_buf"),
        func.namespace in COLLECTIVES,
    )


def returns_view(func: Any) -> bool:
    """Whether an operation returns memory of its arguments."""
    schema = getattr(func, "_schema", None)
    return schema is not None and any(result.alias_info is not None for result in schema.returns)


def is_copy_of_itself(func: Any, args: Any) -> bool:
    """Whether an operation copies memory onto itself, which changes nothing: Triton's interpreter does on a CPU."""
    if func is not torch.ops.aten.copy_.default:
        return False
    target, source = args[:2]
    return bool(
        target.layout is source.layout is torch.strided
        and target.dtype is source.dtype
        and target.device == source.device
        and target.shape == source.shape
        and target.stride() == source.stride()
        and target.data_ptr() == source.data_ptr()
    )


def is_deterministic(func: Any, op: Operation, args: Any, kwargs: Any) -> bool:
    """Whether an operation that may draw random numbers draws none, because the probability of dropout is zero."""
    values = [args[i] if i < len(args) else kwargs.get(name, 0) for i, name in op.probabilities]
    return not op.random or (bool(values) and not any(values))


def drop_out(probability: float, train: bool | None, tensor: torch.Tensor, mask: torch.Tensor) -> Any:
    """Compute what `aten::native_dropout` returns if it draws this mask."""
    if train is False:
        return tensor.clone(), mask
    return tensor * mask * (0.0 if probability == 1 else 1 / (1 - probability)), mask


def same_value(tensor: torch.Tensor) -> torch.Tensor:
    """Return what a random operation without a derivative drew."""
    return tensor


def fused_attention(op: Any) -> Callable[..., Any] | None:
    """Return a function that computes what a fused kernel for attention does, in any precision; None for others."""
    schema = getattr(op, "_schema", None)
    name = "" if schema is None else schema.name.partition("::")[2]
    if schema is None or not (name.startswith("_scaled_dot_product_") and name.endswith("attention")):
        return None
    names = [a.name for a in schema.arguments]

    def attention(*args: Any, **kwargs: Any) -> list[torch.Tensor | None]:
        values = {**dict(zip(names, args, strict=False)), **kwargs}
        bias = values.get("attn_bias")
        output, _ = torch.ops.aten._scaled_dot_product_attention_math(
            *(values[name] for name in ("query", "key", "value")),
            bias if bias is None or bias.dtype == torch.bool else bias.to(values["query"].dtype),
            0.0,
            values.get("is_causal", False),
            scale=values.get("scale"),
        )
        return [output, *[None] * (len(schema.returns) - 1)]

    return attention


def shift(tensor: torch.Tensor, before: torch.Tensor, after: torch.Tensor) -> torch.Tensor:
    """Change a tensor as the program changed it without gradients, from `before` to `after`."""
    return tensor.copy_(after + (tensor - before))  # exactly `after` where the tensor is as before


def argument(args: Any, position: int) -> Any:
    """Return the argument at a position; None where the default is used."""
    return args[position] if position < len(args) else None
