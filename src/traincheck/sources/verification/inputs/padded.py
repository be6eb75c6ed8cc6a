"""Judges whether a model that leaves out padding in one computation leaves it out in all.

Note [What shows that padding is meant to be left out]
Trailing tokens of one id, as many as each sequence lacks, may be padding, an empty slot, or a word. A mask or a
comparison with that id does not tell either: a mask may mark the actions that are allowed, or belong to a loss. So the
call itself has to treat these positions as padding, in at least one computation:
- an attention gives them no weight, for any query (a causal mask alone does not), or gives weight to nothing else;
- the last token before them is read from each sequence;
- a vector of each sample is divided by the number of the other tokens.
Then what is computed at these positions must not matter to any result of the other tokens, or of the sample.

Note [What is put at padding]
The call is executed again, and the first vectors of tokens that are not zero at padding are replaced there by those of
the first token. Usually this is an embedding. Its vector of the padding may be zero, and a sum over positions then
leaves it out without a mask: such a model has no vector to replace before the sum. Only operations that keep positions
separate are followed from the embedding to that vector. No form changes, so that positions and dropout are the same.

The first token of each run may be a token that ends the text, and keeps its vector: many programs pad with that token.

Note [What may read padding on purpose]
Some computations mix neighbouring positions, and programs mask only their results: convolutions, recurrent layers and
loops over positions, normalization, transforms, linear layers over positions, routers of experts. Where a call contains
one, a difference is left undecided. A loss of each sample may count padding. Padding before the tokens is not judged.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from traincheck.sources.replay.state_snapshot import has_compiled_code
from traincheck.sources.tensors.reading import hidden_from_modes
from traincheck.sources.verification.inputs.changed_calls import ChangedCall
from traincheck.sources.verification.inputs.input_changes import ROUNDING, Comparison, Part, compare, first_dimensions
from traincheck.vocab.verification import AGREES, DISAGREES, UNDECIDED

ROUNDING_ON_HOST = 2
"""Changes on a CPU up to so many units of rounding are not judged: no number is added in another order, so that equal
results have equal bits. Kernels of accelerators may choose their order, so the usual bound applies there."""

MIN_SAMPLES = 4
"""Numbers of fewer samples may be equal to their lengths by chance."""

_SEPARATE = frozenset(
    ("embedding", "index", "view", "_unsafe_view", "reshape", "_reshape_alias", "unsqueeze", "squeeze", "expand",
     "clone", "detach", "alias", "_to_copy", "to", "contiguous", "add", "mul", "sub", "div", "native_layer_norm",
     "native_dropout", "dropout", "relu", "gelu", "silu", "tanh", "mm", "addmm", "t"),
)  # fmt: skip
"""Operations that keep positions separate, in the first dimensions of a tensor."""

_MIXING = frozenset(
    ("convolution", "_convolution", "convolution_overrideable", "mkldnn_convolution", "cudnn_convolution",
     "native_batch_norm", "_native_batch_norm_legit", "_native_batch_norm_legit_functional", "_batch_norm_with_update",
     "cudnn_batch_norm", "native_group_norm", "_fft_r2c", "_fft_c2c", "_fft_c2r", "cumsum", "cumprod", "logcumsumexp",
     "roll", "unfold", "constant_pad_nd", "topk", "sort", "argsort", "argmax", "argmin", "max_pool2d_with_indices",
     "avg_pool2d", "avg_pool3d", "_adaptive_avg_pool2d", "mkldnn_rnn_layer", "_thnn_fused_gru_cell",
     "_thnn_fused_lstm_cell", "_cudnn_rnn", "aminmax"),
)  # fmt: skip
"""Operations on floating-point numbers that mix positions or tokens, see Note [What may read padding on purpose]."""

_OF_ALL = frozenset({"max", "min", "amax", "amin", "mean"})
"""Reductions that make one scale of all tokens, if they reduce a tensor to one number."""

_SPREADS = frozenset({"std", "var", "std_mean", "var_mean"})
"""Reductions that normalize over tokens, if they reduce more than the last dimension."""

_LOSSES = frozenset(["_log_softmax", "nll_loss_forward", "nll_loss2d_forward", "binary_cross_entropy", "mse_loss"])


class TrailingPadding(NamedTuple):
    """A sequence whose rows end in different numbers of one token that occurs nowhere else.

    `positions` are those tokens, and `replaced` the ones after the first of each row.
    """

    sequence: torch.Tensor
    positions: torch.Tensor
    replaced: torch.Tensor

    @property
    def lengths(self) -> torch.Tensor:
        """The number of other tokens of each row."""
        return (~self.positions).sum(1)


def trailing_padding(sequence: torch.Tensor) -> TrailingPadding | None:
    """Return the padding of a sequence of tokens; None where the last tokens do not look like it, or are ambiguous."""
    if sequence.dim() != 2 or sequence.is_floating_point() or sequence.shape[0] < MIN_SAMPLES:
        return None
    fitting = []
    for token in sequence[:, -1].unique().tolist():
        positions = sequence == token
        trailing = not bool((positions[:, :-1] & ~positions[:, 1:]).any())
        lengths = (~positions).sum(1)
        replaced = positions.clone()
        replaced[:, 1:] &= positions[:, :-1]
        if trailing and bool(replaced.any()) and int(lengths.min()) > 0 and len(lengths.unique()) > 1:
            fitting.append(TrailingPadding(sequence.detach().clone(), positions, replaced))
    return fitting[0] if len(fitting) == 1 else None


class _PaddingMode(TorchDispatchMode):  # type: ignore[misc]  # torch does not say what it is
    """Follows the operations of a call. A subclass says in `_returned` what the call gets of each."""

    def __init__(self, padding: TrailingPadding) -> None:
        super().__init__()
        self.padding = padding
        self.form: tuple[int, ...] = tuple(padding.positions.shape)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        output = func(*args, **(kwargs or {}))
        with hidden_from_modes():
            name = func._schema.name.rpartition("::")[2].rstrip("_") if hasattr(func, "_schema") else str(func)
            tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
            return self._returned(name, tensors, args, output)

    def _returned(self, name: str, tensors: Sequence[torch.Tensor], args: Any, output: Any) -> Any:
        raise NotImplementedError


class OtherVectors(_PaddingMode):
    """Puts other vectors at the padding, once for each embedding."""

    def __init__(self, padding: TrailingPadding) -> None:
        super().__init__(padding)
        self.has_replaced = False
        self._vectors: list[torch.Tensor] = []  # made of the embedding, which are zero at padding so far

    def _returned(self, name: str, tensors: Sequence[torch.Tensor], args: Any, output: Any) -> Any:
        """Return the output with other vectors at padding, if it is the first that is not zero there."""
        first = output[0] if isinstance(output, tuple | list) and output else output
        is_followed = any(tensor is vector for tensor in tensors for vector in self._vectors)
        if name not in _SEPARATE or not (is_followed or self._is_embedding(name, tensors)):
            return output
        if not isinstance(first, torch.Tensor) or not first.is_floating_point():
            return output
        if tuple(first.shape[:2]) != self.form or first.dim() != 3 or not bool(first[self.padding.positions].any()):
            self._vectors.append(first)
            return output
        self.has_replaced = True
        self._vectors = [vector for vector in self._vectors if not any(vector is tensor for tensor in tensors)]
        other = torch.where(self.padding.replaced[..., None], first[:, :1], first).detach()
        return other if first is output else type(output)((other, *output[1:]))

    def _is_embedding(self, name: str, tensors: Sequence[torch.Tensor]) -> bool:
        """Whether an operation takes a vector for each token of the sequence from a table."""
        if name not in ("embedding", "index") or len(tensors) != 2:
            return False
        table, indices = tensors
        same_form = tuple(indices.shape) == self.form and not indices.is_floating_point() and table.dim() == 2
        return same_form and bool((indices == self.padding.sequence).all())


class PaddingUse(_PaddingMode):
    """Looks at what a call does with padding.

    `leaves_out` says whether a computation treats the positions as padding, `mixing` names an operation that may read
    padding on purpose, and `has_losses` says whether the call computes losses.
    """

    def __init__(self, padding: TrailingPadding) -> None:
        super().__init__(padding)
        self.leaves_out = False
        self.mixing = ""
        self.has_losses = False
        self._steps: set[int] = set()  # positions that were selected alone

    def _returned(self, name: str, tensors: Sequence[torch.Tensor], args: Any, output: Any) -> Any:
        self.leaves_out = self.leaves_out or self._shows_padding(name, tensors, args, output)
        self.has_losses = self.has_losses or name in _LOSSES
        if not self.mixing and tensors and tensors[0].is_floating_point() and self._mixes(name, tensors, args, output):
            self.mixing = name
        return output

    def _shows_padding(self, name: str, tensors: Sequence[torch.Tensor], args: Any, output: Any) -> bool:
        """Whether an operation treats the positions as padding: see the first note of this module."""
        batch, length = self.form
        if name in ("_softmax", "_safe_softmax"):
            return isinstance(output, torch.Tensor) and output.dim() > 2 and self._excludes(output != 0)
        if name.startswith("_scaled_dot_product"):
            masks = [tensor for tensor in tensors[3:] if tensor.dim() > 2 and tensor.shape[-1] == length]
            return any(self._excludes(_allowed(mask)) for mask in masks)
        if not tensors:
            return False
        first, *others = tensors
        lengths = self.padding.lengths[:, None]
        if name in ("index", "gather") and tuple(first.shape[:2]) == self.form:
            along = name == "index" or args[1] == 1
            return along and first.is_floating_point() and any(_has_rows(other, lengths - 1) for other in others)
        if name == "div" and len(others) == 1 and first.dim() == 2 and first.shape[0] == batch:
            return 1 < first.shape[1] != length and others[0].numel() == batch and _has_rows(others[0], lengths)
        return False

    def _excludes(self, allowed: torch.Tensor) -> bool:
        """Whether these weights, for each query and key, leave out padding as keys, or all other tokens."""
        batch, length = self.form
        if allowed.shape[-1] != length or allowed.shape[0] % batch or not allowed.numel():
            return False
        keys = allowed.reshape(batch, -1, length).any(1)
        padded, others = self.padding.replaced, ~self.padding.positions
        rows = padded.any(1)
        return bool(keys[padded].any()) != bool(keys[rows][others[rows]].any())

    def _mixes(self, name: str, tensors: Sequence[torch.Tensor], args: Any, output: Any) -> bool:
        """Whether an operation may mix positions."""
        (batch, length), first = self.form, tensors[0]
        last = -1, first.dim() - 1
        if name in _OF_ALL:
            is_scale = isinstance(output, torch.Tensor) and output.numel() == 1 < first.numel()
            return is_scale or (name == "max" and isinstance(output, tuple) and args[1] in last)
        if name in _SPREADS:
            dims = args[1] if len(args) > 1 and isinstance(args[1], list | tuple) else ()
            return not dims or any(dim not in last for dim in dims)
        if name == "native_layer_norm":
            return len(args[1]) > 1
        if name in ("view", "_unsafe_view", "_reshape_alias"):
            is_wide = first.dim() > 2 and length in first.shape[1:]
            return is_wide and tuple(output.shape) == (batch, first[0].numel())
        if name in ("mm", "addmm", "bmm", "baddbmm") and len(tensors) > 1:
            left, right = tensors[-2:]
            shared = 0 in (left.stride(0), right.stride(0)) and left.shape[0] > 1
            return left.shape[-1] == length and (name in ("mm", "addmm") or shared)
        if name in ("select", "unbind"):
            dim = args[1] if len(args) > 1 else 0
            if first.dim() > 2 and first.shape[dim] == length and batch in first.shape:
                self._steps.update(range(length) if name == "unbind" else [args[2] % length])
            return 2 * len(self._steps) >= length
        return name in _MIXING


def _allowed(mask: torch.Tensor) -> torch.Tensor:
    return mask if mask.dtype == torch.bool else mask > torch.finfo(mask.dtype).min / 2


def _has_rows(tensor: torch.Tensor, rows: torch.Tensor) -> bool:
    """Whether a tensor has these numbers as rows, one for each sample, each any number of times."""
    if tensor.dtype == torch.bool or not tensor.numel() or tensor.numel() % len(rows) or tensor.device != rows.device:
        return False
    return tensor.shape[0] == len(rows) and bool((tensor.reshape(len(rows), -1) == rows).all())


def judge_padding(call: ChangedCall) -> Iterator[tuple[str, str, str]]:
    """Yield the verdict about the padding of each sequence, what was seen, and the smallest module that shows it.

    Raises CannotReplay.
    """
    if has_compiled_code():
        return
    for index in call.inputs.sequences:
        with hidden_from_modes():
            padding = trailing_padding(call.inputs.leaves[index])
        if padding is None:
            continue
        use, other_vectors = PaddingUse(padding), OtherVectors(padding)
        before = call.outputs_under(use)
        if not use.leaves_out:
            continue
        if call.unknown:
            yield UNDECIDED, call.unknown, ""
            continue
        seen = _compare(call, use, before, call.outputs_under(other_vectors))
        if not other_vectors.has_replaced or not seen.compared:
            continue
        recurrent = (type(m).__name__ for m in call.call.modules if isinstance(m, nn.RNNBase | nn.RNNCellBase))
        mixing = use.mixing or next(recurrent, "")
        if seen.is_equal:
            yield AGREES, "", ""
        elif not seen.units > (ROUNDING_ON_HOST if all(output.is_cpu for output in before) else ROUNDING):
            yield UNDECIDED, "outputs changed by no more than rounding, or are not finite", ""
        elif mixing:
            yield UNDECIDED, f"it reads padding in an operation that mixes positions ({mixing})", ""
        else:
            text = f"one computation leaves out padding, and with other vectors there, {seen.number:,} elements of the"
            text = f"{text} output for other tokens changed by up to {seen.change:.2g}"
            part = _part(padding, _other_lengths(call, use))
            yield DISAGREES, text, call.smallest_module(part, mode=OtherVectors(padding))


def _compare(
    call: ChangedCall, use: PaddingUse, before: Sequence[torch.Tensor], after: Sequence[torch.Tensor]
) -> Comparison:
    """Compare the outputs that belong to other tokens than padding, or to a sample as a whole."""
    pairs = [pair for pair in zip(before, after, strict=False) if pair[0].is_floating_point()]
    if use.has_losses:
        pairs = [(old, new) for old, new in pairs if old.numel() > use.form[0]]
    part = _part(use.padding, _other_lengths(call, use))
    return compare([old for old, _ in pairs], [new for _, new in pairs], part, call.rounding_unit)


def _other_lengths(call: ChangedCall, use: PaddingUse) -> set[int]:
    """The numbers of positions of other sequences of the call."""
    return {other[1] for other in call.inputs.forms if other != use.form}


def _part(padding: TrailingPadding, other_lengths: set[int]) -> Part:
    batch, length = padding.positions.shape
    of_tokens = first_dimensions((batch, length), ~padding.positions)

    def part(output: torch.Tensor) -> torch.Tensor | None:
        tokens = of_tokens(output)
        if tokens is not None or output.shape[:1] != (batch,):
            return tokens
        second = output.shape[1] if output.dim() > 1 else 1
        if output.dim() > 1 and second in (length - 1, length + 1):  # a first token may be added, or left out
            lengths = padding.lengths.to(output.device)[:, None]
            return output[torch.arange(second, device=output.device) < lengths - 1]
        if output.dim() > 2:
            return output if second in other_lengths else None
        return output if second % length else None  # vectors of all positions one after another

    return part
