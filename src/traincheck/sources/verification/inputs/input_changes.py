"""Changes the inputs of a model's call in ways whose effect on the output is known, and compares two outputs.

Note [Batch, positions and padding by form]
The first tensor among the arguments has the batch as its first dimension. A sequence is a tensor of integers with two
dimensions, or of floating-point numbers with three; its second dimension are the positions. Integers that are only 0
and 1 are a mask, and negative ones are labels. A mask, or a tensor of lengths, says which positions are padding. It
counts only if all positions that it excludes hold the same token, because a mask may mark either side. Programs with
the batch in the second dimension have samples as positions.

Note [Several sequences]
A source may by chance be as long as the output that belongs to the target. So of several sequences, one is judged only
after its length was that of an output in each of `MIN_MATCHES` calls or more, and never another.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch.utils._pytree import tree_flatten, tree_unflatten

from traincheck.sources.tensors.reading import hidden_from_modes

MIN_LENGTH = 3
MIN_MATCHES = 3
ROUNDING = 32
"""Changes up to so many units of rounding of the largest output are not judged."""

Part = Callable[[torch.Tensor], torch.Tensor | None]
"""Returns the elements of an output that must not change, None where the output does not have the form."""


class InputChange(NamedTuple):
    """Other arguments of a call, and which elements of its outputs must keep their values.

    `expects_effect` says that other elements have to change, or the change shows nothing. `what` describes the change,
    and `kept` those elements. `others` are the samples that did not change, where one did.
    """

    arguments: Any
    constant: Part
    what: str
    kept: str
    expects_effect: bool = True
    others: torch.Tensor | None = None


class Padding(NamedTuple):
    """The index of a sequence among the leaves of the arguments, and which of its positions are padding."""

    sequence: int
    positions: torch.Tensor


class AlignedSequences:
    """Which sequences among the arguments of a model have the positions of its output, see Note [Several sequences].

    `calls` counts the calls of the model that were judged.
    """

    def __init__(self) -> None:
        self.calls = 0
        self._matches: Counter[int] = Counter()
        self._others: set[int] = set()

    def add(self, inputs: CallInputs, shapes: Sequence[tuple[int, ...]]) -> list[int]:
        """Add a call with outputs of these shapes; returns the sequences of it that can be judged."""
        self.calls += 1
        matching = [index for index in inputs.sequences if inputs.has_length_of(index, shapes)]
        self._matches.update(matching)
        self._others.update(set(inputs.sequences).difference(matching))
        if len(inputs.sequences) == 1:
            return matching
        return [index for index in matching if self._matches[index] >= MIN_MATCHES and index not in self._others]


class CallInputs:
    """The arguments of a call, read as in Note [Batch, positions and padding by form]."""

    def __init__(self, arguments: Any) -> None:
        self.leaves, self._spec = tree_flatten(arguments)
        tensors = [index for index, leaf in enumerate(self.leaves) if isinstance(leaf, torch.Tensor) and leaf.dim()]
        first = self.leaves[tensors[0]] if tensors else torch.empty(0)
        self.batch = int(first.shape[0])
        self._of_batch = [index for index in tensors if self.leaves[index].shape[0] == self.batch]
        self.length = int(first.shape[1]) if first.dim() > 1 else 0
        with hidden_from_modes():
            self.sequences = [index for index in self._of_batch if _is_sequence(self.leaves[index])]
            self.padding = self._find_padding()
        self.ambiguous = self.length == self.batch and len(tensors) > 1

    def has_length_of(self, index: int, shapes: Sequence[tuple[int, ...]]) -> bool:
        """Whether an output of these shapes has the positions of a sequence."""
        form = tuple(self.leaves[index].shape[:2])
        return any(shape[:2] == form or shape[:1] == (form[0] * form[1],) for shape in shapes)

    def other_sample(self, number: int = 0) -> InputChange | None:
        """Replace one sample by its neighbour; None where all samples are equal.

        It is the middle one for the call 0, and the next one for each later `number`: a sample may be alone.
        """
        if self.batch < 2:
            return None
        sample = (self.batch // 2 + number) % self.batch
        for other in (sample - 1, *range(self.batch)):
            new = {i: _with_row(self.leaves[i], sample, other) for i in self._of_batch}
            if any(not torch.equal(new[i], self.leaves[i]) for i in new):
                rows = torch.arange(self.batch) != sample
                part = first_dimensions((self.batch,), rows, self.length)
                what = f"sample {other} in place of sample {sample}"
                return InputChange(self._with(new), part, what, "the output of other samples", others=rows)
        return None

    @property
    def are_of_batch(self) -> bool:
        """Whether all tensors among the arguments have the batch as first dimension, and as no second one."""
        tensors = [leaf for leaf in self.leaves if isinstance(leaf, torch.Tensor) and leaf.dim()]
        return len(tensors) == len(self._of_batch) and all(t.shape[1:2] != (self.batch,) for t in tensors)

    def has_one_for_each_sample(self, target: torch.Tensor) -> bool:
        """Whether the first dimension of a target is known to be that of the batch.

        A sequence may have its positions in the first dimension; a target of that form does not tell.
        """
        first = next(leaf for leaf in self.leaves if isinstance(leaf, torch.Tensor) and leaf.dim())
        may_be_positions = first.dim() == 3 or (first.dim() == 2 and not first.is_floating_point())
        return target.shape[:1] == (self.batch,) and (target.numel() == self.batch or not may_be_positions)

    @property
    def forms(self) -> list[tuple[int, ...]]:
        """The numbers of samples and positions of the sequences, each once."""
        return list(dict.fromkeys(tuple(self.leaves[index].shape[:2]) for index in self.sequences))

    def token_change(self, index: int, changed: torch.Tensor, position: int, positions_first: bool) -> InputChange:
        """Replace a sequence; the outputs up to a position must not change. Samples may be in the second dimension."""
        form = tuple(changed.shape[:2])
        positions = torch.arange(form[0])[:, None] if positions_first else torch.arange(form[1])
        part = first_dimensions(form, (positions <= position).expand(form))
        return InputChange(self._with({index: changed}), part, "another token", f"the output up to position {position}")

    def slice_change(self, index: int, dimension: int, changed: int) -> InputChange | None:
        """Replace the tokens of a sequence at one index of a dimension by those at the next index, or at one after it.

        The outputs at the index before it must not change. None where all tokens are equal.
        """
        sequence = self.leaves[index]
        size = int(sequence.shape[dimension])
        now = sequence.select(dimension, changed)
        for other in ((changed + step) % size for step in range(1, size)):
            tokens = sequence.select(dimension, other)
            if not torch.equal(tokens, now):
                new = sequence.detach().clone()
                new.select(dimension, changed).copy_(tokens)
                form = tuple(sequence.shape[:2])
                kept = torch.zeros(form, dtype=torch.bool)
                kept.select(dimension, changed - 1).fill_(True)
                part = first_dimensions(form, kept)
                return InputChange(self._with({index: new}), part, "other tokens", "the output before them")
        return None

    def later_tokens(self, index: int) -> InputChange | None:
        """Replace the last third of a sequence by that of other samples; None where they are equal."""
        sequence = self.leaves[index]
        length = int(sequence.shape[1])
        begin = max(1, 2 * length // 3)
        last = sequence[:, begin:]
        for others in (last.roll(1, 0), last.flip(1)):
            if not torch.equal(others, last):
                changed = torch.cat((sequence[:, :begin], others), 1)
                earlier = (torch.arange(length) < begin).expand(self.batch, length)
                part = first_dimensions((self.batch, length), earlier)
                what = f"other tokens from position {begin} on"
                return InputChange(self._with({index: changed}), part, what, "the output at earlier positions")
        return None

    def padding_change(self, padding: Padding) -> InputChange | None:
        """Replace padding by the first token of each sequence; None where that is the same."""
        sequence, positions = self.leaves[padding.sequence], padding.positions
        first = (~positions).int().argmax(1)
        rows = torch.arange(self.batch, device=sequence.device)
        tokens = sequence[rows, first]
        changed = torch.where(_expanded(positions, sequence), tokens[:, None], sequence)
        if torch.equal(changed, sequence):
            return None
        within = first_dimensions(tuple(positions.shape), ~positions)

        def part(output: torch.Tensor) -> torch.Tensor | None:
            if output.dim() == 0 or (output.shape[0] == self.batch and output.shape[:2] != positions.shape):
                return output
            return within(output)

        what, kept = "other tokens at masked positions", "the output at other positions"
        return InputChange(self._with({padding.sequence: changed}), part, what, kept, expects_effect=False)

    def _with(self, changed: dict[int, torch.Tensor]) -> Any:
        leaves = [
            changed[i].detach().requires_grad_(leaf.requires_grad) if i in changed else leaf
            for i, leaf in enumerate(self.leaves)
        ]
        return tree_unflatten(leaves, self._spec)

    def _find_padding(self) -> Padding | None:
        if not self.sequences:
            return None
        index = self.sequences[0]
        sequence = self.leaves[index]
        form = sequence.shape[:2]
        candidates: list[torch.Tensor] = []
        for leaf in self.leaves:
            if not isinstance(leaf, torch.Tensor) or leaf is sequence:
                continue
            if leaf.shape == form and _is_mask(leaf):
                mask = leaf.bool()
                candidates += [mask, ~mask]
            elif leaf.shape == form[:1] and _is_integer(leaf) and int(leaf.max()) == form[1] and int(leaf.min()) > 0:
                positions = torch.arange(form[1], device=sequence.device)
                candidates.append(positions >= leaf[:, None].to(sequence.device))
        fitting = [positions for positions in candidates if _is_padding(positions, sequence)]
        return Padding(index, fitting[0]) if len(fitting) == 1 else None


def _is_sequence(tensor: torch.Tensor) -> bool:
    if tensor.dim() < 2 or tensor.shape[1] < MIN_LENGTH or not tensor.numel():
        return False
    if tensor.is_floating_point():
        return bool(tensor.dim() == 3)
    return bool(tensor.dim() == 2 and _is_integer(tensor) and int(tensor.min()) >= 0 and not _is_mask(tensor))


def _is_integer(tensor: torch.Tensor) -> bool:
    return not (tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool)


def _is_mask(tensor: torch.Tensor) -> bool:
    return tensor.dtype == torch.bool or bool(((tensor == 0) | (tensor == 1)).all())


def _is_padding(positions: torch.Tensor, sequence: torch.Tensor) -> bool:
    """Whether these positions are at one end of each sequence, leave some, and hold the same token."""
    steps = positions[:, 1:].int() - positions[:, :-1].int()
    if not positions.any() or positions.all(1).any() or (steps.abs().sum(1) > 1).any():
        return False
    tokens = sequence[positions.to(sequence.device)]
    return bool((tokens == tokens[:1]).all()) and not bool((sequence == tokens[0]).all())


def _expanded(positions: torch.Tensor, sequence: torch.Tensor) -> torch.Tensor:
    return positions.reshape(*positions.shape, *(1,) * (sequence.dim() - 2))


def _with_row(tensor: torch.Tensor, row: int, other: int) -> torch.Tensor:
    rows = torch.arange(tensor.shape[0], device=tensor.device)
    rows[row] = other
    return tensor.detach()[rows]


def first_dimensions(form: tuple[int, ...], chosen: torch.Tensor, length: int = 0) -> Part:
    """Return the part with the elements `chosen` of an output whose first dimensions have this form, or are flattened.

    With a `length`, the first dimension may also be that of samples and positions.
    """

    def part(output: torch.Tensor) -> torch.Tensor | None:
        if tuple(output.shape[: len(form)]) == form:
            return output[chosen.to(output.device)]
        flat = chosen.numel() if len(form) > 1 else form[0] * length
        if not output.dim() or not flat or output.shape[0] != flat:
            return None
        rows = chosen.flatten() if len(form) > 1 else chosen.repeat_interleave(length)
        return output[rows.to(output.device)]

    return part


def changed_samples(
    before: Sequence[torch.Tensor | None],
    after: Sequence[torch.Tensor | None],
    change: InputChange,
    length: int,
    unit: float,
) -> torch.Tensor | None:
    """Return which samples have other outputs after a change of one; None where no output has one row for each.

    The first dimension of an output may also be that of samples and of `length` positions. An output whose second
    dimension has the size of the batch may compare samples, and is left out.
    """
    assert change.others is not None
    number = len(change.others)
    changed: torch.Tensor | None = None
    with hidden_from_modes():
        for old, new in zip(before, after, strict=True):
            if old is None or new is None or old.shape != new.shape or not old.is_floating_point():
                continue
            if not old.dim() or old.shape[0] not in (number, number * length) or old.shape[1:2] == (number,):
                continue
            rows = (new.double() - old.double()).abs().reshape(number, -1).amax(1).cpu()
            bound = ROUNDING * max(unit, torch.finfo(old.dtype).eps) * float(_largest(old))
            differs = ~(rows <= bound) & ~rows.isnan()
            changed = differs if changed is None else changed | differs
    return changed


class Comparison(NamedTuple):
    """How much outputs changed: the largest change of an element that must not change, also in units of rounding, and
    the `number` of changed elements. `effect` says whether anything in these outputs changed, and `compared` whether
    there are outputs with the form."""

    change: float = 0.0
    units: float = 0.0
    number: int = 0
    effect: bool = False
    compared: bool = False

    @property
    def is_equal(self) -> bool:
        return not self.number

    @property
    def differs(self) -> bool:
        """Whether the change is more than rounding."""
        return self.units > ROUNDING


def compare(before: Sequence[torch.Tensor], after: Sequence[torch.Tensor], part: Part, unit: float) -> Comparison:
    """Compare the outputs of two executions. `unit` is the relative rounding error of the model's numbers.

    Outputs whose form changes are not compared.
    """
    result = Comparison()
    with hidden_from_modes():
        for old, new in zip(before, after, strict=False):
            if old.shape != new.shape or old.dtype != new.dtype:
                continue
            kept, other = part(old), part(new)
            if kept is not None and other is not None and kept.numel():
                effect = not _equal(old, new)
                result = _larger(result, _compare_parts(kept, other, float(_largest(old)), unit), effect)
    return result


def _larger(result: Comparison, other: Comparison, effect: bool) -> Comparison:
    worst = other if other.units > result.units else result
    return worst._replace(number=result.number + other.number, effect=result.effect or effect, compared=True)


def _compare_parts(old: torch.Tensor, new: torch.Tensor, scale: float, unit: float) -> Comparison:
    if _equal(old, new):
        return Comparison()
    if not (old.is_floating_point() or old.is_complex()):
        return Comparison(1.0, float("inf"), int((old != new).sum()))
    change = (old.detach() - new.detach()).abs()
    change = torch.where(old.detach() == new.detach(), torch.zeros_like(change), change)
    largest = float(change.max())
    if not largest >= 0:  # not a number: it was no number before, or is none now
        return Comparison(largest, 0.0, 1)
    own = torch.finfo(old.dtype).eps
    return Comparison(largest, largest / (max(unit, own) * scale) if scale else float("inf"), int((change > 0).sum()))


def _largest(tensor: torch.Tensor) -> torch.Tensor:
    """The largest finite absolute value of fractional numbers; others are not rounded."""
    if not (tensor.is_floating_point() or tensor.is_complex()):
        return torch.ones(())
    detached = tensor.detach().abs()
    finite = detached[torch.isfinite(detached)]
    return finite.max() if finite.numel() else torch.zeros(())


def _equal(old: torch.Tensor, new: torch.Tensor) -> bool:
    return bool(torch.equal(old.detach(), new.detach()))
