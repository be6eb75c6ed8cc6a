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

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from traincheck.sources.replay.state_snapshot import has_compiled_code
from traincheck.sources.tensors.reading import hidden_from_modes
from traincheck.sources.verification.inputs.changed_calls import ChangedCall
from traincheck.sources.verification.inputs.input_changes import ROUNDING, Comparison, compare
from traincheck.vocab.verification import AGREES, DISAGREES, UNDECIDED

ROUNDING_ON_HOST = 2
"""Changes on a CPU up to so many units of rounding are not judged: no number is added in another order, so that equal
results have equal bits. Kernels of accelerators may choose their order, so the usual bound applies there."""

MIN_SAMPLES = 4
"""Numbers of fewer samples may be equal to their lengths by chance."""

_SEPARATE = frozenset(
    [
        "embedding",
        "index",
        "view",
        "_unsafe_view",
        "reshape",
        "_reshape_alias",
        "unsqueeze",
        "squeeze",
        "expand",
        "clone",
        "detach",
        "alias",
        "_to_copy",
        "to",
        "contiguous",
        "add",
        "mul",
        "sub",
        "div",
        "native_layer_norm",
        "native_dropout",
        "dropout",
        "relu",
        "gelu",
        "silu",
        "tanh",
        "mm",
        "addmm",
        "t",
    ]
)
"""Operations that keep positions separate, in the first dimensions of a tensor."""

_MIXING = frozenset(
    [
        "convolution",
        "_convolution",
        "convolution_overrideable",
        "mkldnn_convolution",
        "cudnn_convolution",
        "native_batch_norm",
        "_native_batch_norm_legit",
        "_native_batch_norm_legit_functional",
        "_batch_norm_with_update",
        "cudnn_batch_norm",
        "native_group_norm",
        "_fft_r2c",
        "_fft_c2c",
        "_fft_c2r",
        "cumsum",
        "cumprod",
        "logcumsumexp",
        "roll",
        "unfold",
        "constant_pad_nd",
        "topk",
        "sort",
        "argsort",
        "argmax",
        "argmin",
        "max_pool2d_with_indices",
        "avg_pool2d",
        "avg_pool3d",
        "_adaptive_avg_pool2d",
        "mkldnn_rnn_layer",
        "_thnn_fused_gru_cell",
        "_thnn_fused_lstm_cell",
        "_cudnn_rnn",
        "aminmax",
    ]
)
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


class PaddingMode(TorchDispatchMode):  # type: ignore[misc]  # torch does not say what it is
    """Looks at the operations of a call; with `replace`, it puts other vectors at the padding, once for each embedding.

    `leaves_out` says whether a computation treats the positions as padding, `mixing` names an operation that may read
    padding on purpose, and `has_losses` says whether the call computes losses.
    """

    def __init__(self, padding: TrailingPadding, replace: bool) -> None:
        super().__init__()
        self.padding, self.replace = padding, replace
        self.leaves_out = False
        self.mixing = ""
        self.has_losses = False
        self.replaced = False
        self._form = tuple(padding.positions.shape)
        self._vectors: list[torch.Tensor] = []  # made of the embedding, which are zero at padding so far
        self._steps: set[int] = set()  # positions that were selected alone

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        output = func(*args, **(kwargs or {}))
        with hidden_from_modes():
            name = func._schema.name.rpartition("::")[2].rstrip("_") if hasattr(func, "_schema") else str(func)
            tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
            if self.replace:
                return self._with_other_vectors(name, tensors, output)
            first = output if isinstance(output, torch.Tensor) else None
            self.leaves_out = self.leaves_out or self._shows_padding(name, tensors, args, first)
            self.has_losses = self.has_losses or name in _LOSSES
            self.mixing = self.mixing or self._mixes(name, tensors, args, output)
        return output

    def _with_other_vectors(self, name: str, tensors: Sequence[torch.Tensor], output: Any) -> Any:
        """Return the output with other vectors at padding, if it is the first that is not zero there."""
        held = any(tensor is vector for tensor in tensors for vector in self._vectors)
        if not held and not self._is_embedding(name, tensors):
            return output
        first = output[0] if isinstance(output, tuple | list) and output else output
        if name not in _SEPARATE or not isinstance(first, torch.Tensor) or not first.is_floating_point():
            return output
        positions = self.padding.positions
        if tuple(first.shape[:2]) != self._form or first.dim() != 3 or not bool(first[positions].any()):
            self._vectors.append(first)
            return output
        self.replaced = True
        self._vectors = [vector for vector in self._vectors if not any(vector is tensor for tensor in tensors)]
        other = first.detach().clone()
        rows = torch.arange(self._form[0], device=first.device)[:, None].expand(self._form)
        other[self.padding.replaced] = first[:, 0][rows[self.padding.replaced]]
        return other if first is output else type(output)((other, *output[1:]))

    def _is_embedding(self, name: str, tensors: Sequence[torch.Tensor]) -> bool:
        """Whether an operation takes a vector for each token of the sequence from a table."""
        if name not in ("embedding", "index") or len(tensors) != 2:
            return False
        table, indices = tensors
        same_form = tuple(indices.shape) == self._form and not indices.is_floating_point() and table.dim() == 2
        return same_form and bool((indices == self.padding.sequence).all())

    def _shows_padding(
        self, name: str, tensors: Sequence[torch.Tensor], args: Any, output: torch.Tensor | None
    ) -> bool:
        """Whether an operation treats the positions as padding: see the first note of this module."""
        batch, length = self._form
        if name in ("_softmax", "_safe_softmax"):
            return output is not None and output.dim() > 2 and self._leaves_out(output != 0)
        if name.startswith("_scaled_dot_product"):
            masks = [tensor for tensor in tensors[3:] if tensor.dim() > 2 and tensor.shape[-1] == length]
            return any(self._leaves_out(_allowed(mask)) for mask in masks)
        if name in ("index", "gather") and tensors and tuple(tensors[0].shape[:2]) == self._form:
            along = name == "index" or args[1] == 1
            last = self.padding.lengths[:, None] - 1
            return along and tensors[0].is_floating_point() and any(_has_rows(t, last) for t in tensors[1:])
        if name == "div" and len(tensors) == 2 and tensors[0].shape[:1] == (batch,) and tensors[0].dim() == 2:
            wide = tensors[0].shape[1] > 1 and tensors[0].shape[1] != length
            return wide and tensors[1].numel() == batch and _has_rows(tensors[1], self.padding.lengths[:, None])
        return False

    def _leaves_out(self, allowed: torch.Tensor) -> bool:
        """Whether these weights, for each query and key, leave out padding as keys, or all other tokens."""
        batch, length = self._form
        if allowed.shape[-1] != length or allowed.shape[0] % batch or not allowed.numel():
            return False
        keys = allowed.reshape(batch, -1, length).any(1)
        padded, others = self.padding.replaced, ~self.padding.positions
        rows = padded.any(1)
        read_padding, read_others = bool(keys[padded].any()), bool(keys[rows][others[rows]].any())
        return read_padding != read_others

    def _mixes(self, name: str, tensors: Sequence[torch.Tensor], args: Any, output: Any) -> str:
        """Return the name of an operation that may mix positions, empty for others."""
        batch, length = self._form
        first = tensors[0] if tensors else None
        if first is None or not first.is_floating_point():
            return ""
        mixes = name in _MIXING
        if name in _OF_ALL:
            mixes = isinstance(output, torch.Tensor) and output.numel() == 1 < first.numel()
            mixes = mixes or (name == "max" and isinstance(output, tuple) and args[1] in (-1, first.dim() - 1))
        if name in _SPREADS:
            dims = args[1] if len(args) > 1 and isinstance(args[1], list | tuple) else ()
            mixes = mixes or not dims or any(dim not in (-1, first.dim() - 1) for dim in dims)
        elif name == "native_layer_norm":
            mixes = len(args[1]) > 1
        elif name in ("view", "_unsafe_view", "_reshape_alias"):
            shape = tuple(output.shape)
            mixes = first.dim() > 2 and length in first.shape[1:] and shape == (batch, first[0].numel())
        elif name in ("mm", "addmm", "bmm", "baddbmm") and len(tensors) > 1:
            left, right = tensors[-2:]
            shared = 0 in (left.stride(0), right.stride(0)) and left.shape[0] > 1
            mixes = left.shape[-1] == length and (name in ("mm", "addmm") or shared)
        elif name in ("select", "unbind"):
            dim = args[1] if len(args) > 1 else 0
            if first.dim() > 2 and first.shape[dim] == length and batch in first.shape:
                self._steps.update(range(length) if name == "unbind" else [args[2] % length])
            mixes = 2 * len(self._steps) >= length
        return name if mixes else ""


def _allowed(mask: torch.Tensor) -> torch.Tensor:
    return mask if mask.dtype == torch.bool else mask > torch.finfo(mask.dtype).min / 2


def _has_rows(tensor: torch.Tensor, rows: torch.Tensor) -> bool:
    """Whether a tensor has these numbers as rows, one for each sample, each any number of times."""
    if tensor.dtype == torch.bool or not tensor.numel() or tensor.numel() % len(rows) or tensor.device != rows.device:
        return False
    return tensor.shape[0] == len(rows) and bool((tensor.reshape(len(rows), -1) == rows).all())


def judge_padding(call: ChangedCall) -> Iterator[tuple[str, str, str]]:
    """Yield the verdict about the padding of each sequence, what was seen, and no module. Raises CannotReplay."""
    if has_compiled_code():
        return
    for index in call.inputs.sequences:
        with hidden_from_modes():
            padding = trailing_padding(call.inputs.leaves[index])
        if padding is None:
            continue
        looking, replacing = PaddingMode(padding, replace=False), PaddingMode(padding, replace=True)
        before = call.outputs_under(looking)
        if not looking.leaves_out:
            continue
        if call.unknown:
            yield UNDECIDED, call.unknown, ""
            continue
        seen = _compare(call, looking, before, call.outputs_under(replacing))
        if not replacing.replaced or not seen.compared:
            continue
        mixing = looking.mixing or next((type(m).__name__ for m in call.call.modules if _is_recurrent(m)), "")
        if seen.is_equal:
            yield AGREES, "", ""
        elif not seen.units > (ROUNDING_ON_HOST if all(output.is_cpu for output in before) else ROUNDING):
            yield UNDECIDED, "outputs changed by no more than rounding, or are not finite", ""
        elif mixing:
            yield UNDECIDED, f"it reads padding in an operation that mixes positions ({mixing})", ""
        else:
            text = f"one computation leaves out padding, and with other vectors there, {seen.number:,} elements of the"
            yield DISAGREES, f"{text} output for other tokens changed by up to {seen.change:.2g}", ""


def _is_recurrent(module: nn.Module) -> bool:
    return isinstance(module, nn.RNNBase | nn.RNNCellBase)


def _compare(
    call: ChangedCall, looking: PaddingMode, before: Sequence[torch.Tensor], after: Sequence[torch.Tensor]
) -> Comparison:
    """Compare the outputs that belong to other tokens than padding, or to a sample as a whole."""
    form = tuple(looking.padding.positions.shape)
    lengths = {other[1] for other in call.inputs.forms if other != form}
    pairs = [pair for pair in zip(before, after, strict=False) if pair[0].is_floating_point()]
    if looking.has_losses:
        pairs = [(old, new) for old, new in pairs if old.numel() > form[0]]
    part = _part(looking.padding, lengths)
    return compare([old for old, _ in pairs], [new for _, new in pairs], part, call.rounding_unit)


def _part(padding: TrailingPadding, other_lengths: set[int]) -> Callable[[torch.Tensor], torch.Tensor | None]:
    batch, length = padding.positions.shape

    def part(output: torch.Tensor) -> torch.Tensor | None:
        kept = ~padding.positions.to(output.device)
        if tuple(output.shape[:2]) == (batch, length):
            return output[kept]
        if not output.dim() or output.shape[0] not in (batch, batch * length):
            return None
        if output.shape[0] == batch * length:
            return output[kept.flatten()]
        second = output.shape[1] if output.dim() > 1 else 1
        if output.dim() > 1 and second in (length - 1, length + 1):  # a first token may be added, or left out
            near = torch.arange(second, device=output.device) < kept.sum(1, keepdim=True) - 1
            return output[near]
        if output.dim() > 2:
            return output if second in other_lengths else None
        return output if second % length else None  # vectors of all positions one after another

    return part
