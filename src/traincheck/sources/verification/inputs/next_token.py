"""Judges whether the target of each output is the token after the last one that the output depends on.

Note [The next token]
Let the target of an output at position t be the token at t + k of the input, and the last token on which the output
depends be that at t + r. A model that learns to predict has k = r + 1. With a smaller k it sees its target (a causal
mask that is off by one, labels that are not shifted). With a larger one, it is asked for a token behind the next one
(labels that are shifted twice). Both numbers are measured: k from values of the batch, r from one execution with
another token at one position.

Several sequences may have the targets among their tokens. A source that a decoder translates may even be equal to them,
and one sequence with k = r + 1 is enough. Samples may be in the second dimension.

Targets may also be shifted along the samples, where a program takes these for the positions. Then they are tokens of
other samples, and no output can know them. It is measured where one sample or one position has no target.

The decoder of an autoencoder may be asked for the next token, and gets a latent of all tokens. So the call is executed
once more with the latents as they were: what modules return that has no positions, or few distinct values for many
(codes of a discrete autoencoder). If the output does not see its target then, it is left undecided.

An autoencoder may also have k = 0. It sees everything, and how little passes its bottleneck does not show. So k = 0 is
judged only where r = 0. Sequences of numbers are judged only where they see a later target: a forecast may skip values.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from traincheck.sources.verification.inputs.loss_targets import Target
from traincheck.vocab.verification import AGREES, DISAGREES, UNDECIDED

OFFSETS = range(-2, 5)
"""The offsets that are compared."""
MIN_SHARE, MAX_OTHER_SHARE = 0.9, 0.6
"""The least share of the targets that are the token at an offset, and the largest at any other offset: inputs may be
noisy, and texts repeat."""
MIN_ROWS, MIN_COUNTED = 3, 16


class Shift(NamedTuple):
    """How far the target of each row of scores is from its position in a sequence, and which targets count.

    `counted` has the form (samples, rows). `positions_first` says that samples are in the second dimension of the
    sequence and of the target.
    """

    offset: int
    counted: torch.Tensor
    positions_first: bool = False

    @property
    def rows(self) -> int:
        return int(self.counted.shape[1])

    def samples_first(self, tensor: torch.Tensor) -> torch.Tensor:
        """A tensor with samples and positions as its first dimensions, in this order; the reverse is the same."""
        return tensor.transpose(0, 1) if self.positions_first else tensor


class ChangedToken(NamedTuple):
    """A sequence with other tokens at one position, and the samples in which these differ."""

    sequence: torch.Tensor
    position: int
    samples: torch.Tensor


def shift_between(sequence: torch.Tensor, target: Target) -> Shift | None:
    """Return how far the targets are from their positions in `sequence`; None where they are no tokens of it."""
    shift = _shift_of_rows(sequence, target)
    if shift is not None or target.values.numel() % sequence[0].numel():
        return shift
    form = target.values.numel() // sequence[0].numel(), *sequence.shape[1:]
    by_position = Target(target.values.reshape(form).transpose(0, 1), target.counted.reshape(form).transpose(0, 1))
    shift = _shift_of_rows(sequence.transpose(0, 1), by_position)
    return None if shift is None else shift._replace(positions_first=True)


def _shift_of_rows(sequence: torch.Tensor, target: Target) -> Shift | None:
    samples, length, *rest = sequence.shape
    features = sequence[0, 0].numel()
    rows, left = divmod(target.values.numel(), samples * features)
    if left or not MIN_ROWS <= rows <= length or target.values.is_floating_point() != sequence.is_floating_point():
        return None
    values = target.values.detach().reshape(samples, rows, *rest).to(sequence.device)
    counted = target.counted.reshape(samples, rows, features).all(2).to(sequence.device)
    shares = {offset: _share(sequence, values, counted, offset) for offset in OFFSETS}
    best = max(shares, key=lambda offset: shares[offset])
    others = [share for offset, share in shares.items() if offset != best]
    if best < 0 or shares[best] < MIN_SHARE or max(others) > MAX_OTHER_SHARE:
        return None
    return Shift(best, counted)


def _share(sequence: torch.Tensor, values: torch.Tensor, counted: torch.Tensor, offset: int) -> float:
    """Return the share of counted targets that are the token at an offset; 0 where less than half can be compared."""
    first, end = max(0, -offset), min(values.shape[1], sequence.shape[1] - offset)
    if first >= end:
        return 0.0
    compared = counted[:, first:end]
    equal = values[:, first:end] == sequence[:, first + offset : end + offset]
    number = int(compared.sum())
    if number < max(MIN_COUNTED, int(counted.sum()) / 2):
        return 0.0
    return int((equal.flatten(2).all(2) if equal.dim() > 2 else equal)[compared].sum()) / number


class Crossed(NamedTuple):
    """A shift of targets in both dimensions of a sequence.

    The last index of the `dimension` has no target. `offset` is the shift in the other dimension, and in this one it is
    one.
    """

    dimension: int
    offset: int


def crossed_between(sequence: torch.Tensor, target: Target) -> Crossed | None:
    """Return how far targets are shifted in both dimensions of a sequence of tokens.

    None if they are no such tokens, or also tokens that are shifted in one dimension alone.
    """
    if sequence.dim() != 2 or sequence.is_floating_point() or target.values.is_floating_point():
        return None
    for dimension in (0, 1):
        form = list(sequence.shape)
        form[dimension] -= 1
        if target.values.numel() != form[0] * form[1]:
            continue
        grids = (tensor.detach().reshape(form).to(sequence.device) for tensor in target)
        values, counted = (grid.t() if dimension == 0 else grid for grid in grids)
        tokens = sequence.t() if dimension == 0 else sequence
        shares = {
            (offset, beside): _share(tokens[:, beside : beside + values.shape[1]].t(), values.t(), counted.t(), offset)
            for offset in OFFSETS
            for beside in (0, 1)
        }
        best = max(shares, key=lambda shift: shares[shift])
        others = [share for shift, share in shares.items() if shift != best]
        if min(best) > 0 and shares[best] >= MIN_SHARE and max(others) <= MAX_OTHER_SHARE:
            return Crossed(dimension, best[0])
    return None


def first_row(gradient: torch.Tensor, counted: torch.Tensor) -> int | None:
    """Return the position of an output that the first target belongs to; None where its gradient does not show it.

    `gradient` says which positions of the output have a gradient, and `counted` which targets count. Positions without
    such a target have none.
    """
    if gradient.shape[0] != counted.shape[0]:
        return None
    positions, rows = gradient.shape[1], counted.shape[1]
    counted = counted.to(gradient.device)
    for first in range(positions - rows + 1):
        within = gradient[:, first : first + rows]
        if int(within.sum()) == int(gradient.sum()) > 0 and not bool((within & ~counted).any()):
            return first
    return None


def change_token(sequence: torch.Tensor, shift: Shift) -> ChangedToken | None:
    """Put tokens of other samples or positions where a target is; None where all candidates are equal."""
    sequence = shift.samples_first(sequence)
    length = sequence.shape[1]
    row = min(2 * shift.rows // 3, shift.rows - 1, length - 1 - shift.offset)
    position = row + shift.offset
    now = sequence[:, position]
    for others in (now.roll(1, 0), *(sequence[:, (position + step) % length] for step in range(1, length))):
        differ = (others != now).reshape(len(now), -1).any(1) & shift.counted[:, row]
        if int(differ.sum()) * 2 >= int(shift.counted[:, row].sum()) > 0:
            changed = sequence.detach().clone()
            changed[:, position] = others
            return ChangedToken(shift.samples_first(changed), position, differ)
    return None


def furthest_seen(before: torch.Tensor, after: torch.Tensor, token: ChangedToken, rounding: float) -> int | None:
    """Return how far after its own row the last token is on which scores depend; None if no scores depend on it.

    Scores have the form (samples, rows, numbers). A row depends on the token if it changes in at least half of the
    samples whose token changed: experts with a capacity exchange few tokens.
    """
    largest = before.abs()[torch.isfinite(before)]
    if before.shape != after.shape or not largest.numel():
        return None
    change = (after.double() - before.double()).abs().amax(2) > rounding * float(largest.max())
    depends = change[token.samples].double().mean(0) >= 0.5
    rows = depends.nonzero().flatten().tolist()
    return token.position - rows[0] if rows else None


def judge_shift(offset: int, furthest: int, is_tokens: bool) -> tuple[str, str]:
    """Return the verdict about a shift, and what was seen; see Note [The next token]."""
    if offset == furthest + 1:
        return AGREES, ""
    if offset <= furthest:
        if offset == 0 and (furthest or not is_tokens):
            return UNDECIDED, "its target is its input, as that of an autoencoder"
        where = f"the token {offset} after its position" if offset else "the token at its own position"
        return DISAGREES, f"the target of an output is {where}, and the output depends on that token"
    if furthest == 0 and is_tokens:
        text = f"the target of an output is the token {offset} after its position, and the output depends on none "
        return DISAGREES, f"{text}after its own: it is not asked for the next one"
    return UNDECIDED, f"its target is {offset} positions later, and its output depends on none of the last {offset}"
