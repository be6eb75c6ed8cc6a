"""Judges a call of a model by executing it again with changed inputs: which outputs change, and which must not.

Note [Mixed samples]
In most programs, an output of a sample depends on this sample alone. A softmax over the wrong dimension, statistics
over the batch, or attention whose batch is in the other dimension make each output depend on all samples. That is
judged without good runs where it is an error: the first dimension is known to be the batch (each sample has a target,
each position the next token, or a data loader chose as many samples), the program trains on other batches in each step
(a graph or a Gaussian process has one), all arguments are of the batch (no edges between samples), the call keeps its
buffers (no running statistics), and the output has no samples in its second dimension (no similarities). Then a changed
sample must not change the outputs of all others. Where it changes some, samples may compete, as tokens do for experts
with a capacity.

A similarity of two samples depends on both. There the features that are compared are looked at: it is an error if those
of one side depend on all samples, and those of the other on their own one. Some losses decorrelate both sides.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

import torch

from traincheck.sources.replay.fingerprints import CannotReplay
from traincheck.sources.tensors.reading import hidden_from_modes
from traincheck.sources.verification.inputs.changed_calls import ChangedCall
from traincheck.sources.verification.inputs.input_changes import (
    ROUNDING,
    AlignedSequences,
    Comparison,
    InputChange,
    changed_samples,
    compare,
)
from traincheck.sources.verification.inputs.loss_targets import Target
from traincheck.sources.verification.inputs.next_token import (
    ChangedToken,
    Crossed,
    Shift,
    change_token,
    crossed_between,
    furthest_seen,
    judge_shift,
    shift_between,
)
from traincheck.sources.verification.inputs.padded import judge_padding
from traincheck.vocab.verification import (
    AGREES,
    DISAGREES,
    LATER_TOKENS,
    MIXED_SAMPLES,
    NEXT_TOKEN,
    PADDED,
    PADDING,
    PADDING_LOSS,
    SAMPLES,
    UNDECIDED,
    Experiment,
)

MIN_SAMPLES = 4
"""Of fewer samples, all others may change by chance."""


class Judgement(NamedTuple):
    """The verdict of an experiment about a call, what was seen, and the smallest module that shows it."""

    experiment: Experiment
    verdict: str
    found: str = ""
    first: str = ""


def judge(call: ChangedCall, sequences: AlignedSequences, targets: Sequence[Target] = ()) -> Iterator[Judgement]:
    """Yield the judgements of all experiments that apply to a call. Raises CannotReplay.

    `sequences` are those of the model's earlier calls, and `targets` those of the losses of its outputs.
    """
    aligned = sequences.add(call.inputs, call.shapes)
    yield from _padding_loss(call, aligned)
    shifts = _shifts(call, targets)
    other_sample = call.inputs.other_sample(sequences.calls - 1)
    judging: list[tuple[Experiment, Callable[[], Iterator[Judgement]]]] = []
    if other_sample is not None and _samples_are_known(call, targets, shifts):
        judging.append((MIXED_SAMPLES, partial(_mixed_samples, call, targets, other_sample)))
    changes = _changes(call, aligned, other_sample)
    judging += [(experiment, partial(_change, call, experiment, some)) for experiment, some in changes if some]
    if shifts:
        judging.append((NEXT_TOKEN, partial(_next_token, call, shifts)))
    elif crossed := _crossed(call, targets):
        judging.append((NEXT_TOKEN, partial(_other_sample, call, *crossed)))
    try:
        yield from [Judgement(PADDED, *judgement) for judgement in judge_padding(call)]
    except CannotReplay as error:
        yield Judgement(PADDED, UNDECIDED, f"the call cannot be executed with other vectors: {error}")
    for experiment, judgements in judging:
        if call.unknown:
            yield Judgement(experiment, UNDECIDED, call.unknown)
            continue
        try:
            yield from list(judgements())
        except CannotReplay as error:
            yield Judgement(experiment, UNDECIDED, f"the call cannot be executed with other inputs: {error}")


def _changes(
    call: ChangedCall, aligned: list[int], other_sample: InputChange | None
) -> Iterator[tuple[Experiment, list[InputChange]]]:
    inputs = call.inputs
    later = [inputs.later_tokens(index) for index in aligned]
    padding = None if inputs.padding is None else inputs.padding_change(inputs.padding)
    for experiment, changes in ((SAMPLES, [other_sample]), (LATER_TOKENS, later), (PADDING, [padding])):
        yield experiment, [change for change in changes if change is not None]


def _change(call: ChangedCall, experiment: Experiment, changes: list[InputChange]) -> Iterator[Judgement]:
    """Yield the judgement of an experiment, which is one about each of several inputs."""
    unit = call.rounding_unit
    pairs = [(change, compare(call.before, call.outputs_after(change), change.constant, unit)) for change in changes]
    pairs = [(change, seen) for change, seen in pairs if seen.compared and (seen.effect or not change.expects_effect)]
    if not pairs:
        return
    verdicts = {_verdict(seen) for _, seen in pairs}
    if verdicts == {AGREES}:
        yield Judgement(experiment, AGREES)
    elif verdicts == {DISAGREES}:
        change, seen = pairs[0]
        found = f"with {change.what}, {seen.number:,} elements of {change.kept} changed by up to {seen.change:.2g}"
        yield Judgement(experiment, DISAGREES, found, call.smallest_module(change.constant, change.arguments))
    elif len(verdicts) > 1:
        yield Judgement(experiment, UNDECIDED, "it holds for some of its inputs")
    else:
        yield Judgement(experiment, UNDECIDED, "outputs changed by no more than rounding, or are not finite")


def _verdict(seen: Comparison) -> str:
    return AGREES if seen.is_equal else DISAGREES if seen.differs else UNDECIDED


def _padding_loss(call: ChangedCall, aligned: list[int]) -> Iterator[Judgement]:
    padding = call.inputs.padding
    if padding is None or padding.sequence not in aligned:
        return
    masked = used = 0
    with hidden_from_modes():
        for nonzero in call.gradients.values():
            if nonzero.shape == padding.positions.shape:
                masked += int(padding.positions.sum())
                used += int((nonzero & padding.positions.to(nonzero.device)).sum())
    if masked and used:
        found = f"the loss has a gradient at {used:,} of {masked:,} masked positions of its output"
        yield Judgement(PADDING_LOSS, DISAGREES, found)
    elif masked:
        yield Judgement(PADDING_LOSS, AGREES)


def _shifts(call: ChangedCall, targets: Sequence[Target]) -> list[tuple[int, Shift]]:
    """Return how far the targets are from their positions in each sequence, where they are tokens of it."""
    inputs = call.inputs
    with hidden_from_modes():
        shifts = [(i, shift_between(inputs.leaves[i], target)) for i in inputs.sequences for target in targets]
    return [(index, shift) for index, shift in shifts if shift is not None]


def _next_token(call: ChangedCall, shifts: list[tuple[int, Shift]]) -> Iterator[Judgement]:
    """Yield the judgement about the targets of losses; one that asks for the next token is enough."""
    judgements = [judgement for index, shift in shifts for judgement in _shift(call, index, shift)]
    yield from sorted(judgements, key=lambda judgement: judgement.verdict != AGREES)[:1]


def _shift(call: ChangedCall, index: int, shift: Shift) -> Iterator[Judgement]:
    sequence = call.inputs.leaves[index]
    with hidden_from_modes():
        token = change_token(sequence, shift)
    if token is None:
        return
    change = call.inputs.token_change(index, token.sequence, token.position - shift.offset, shift.positions_first)
    before, after = call.scores(call.call.arguments, shift), call.scores(change.arguments, shift)
    if before is None or after is None:
        return
    with hidden_from_modes():
        furthest = furthest_seen(before, after, token, ROUNDING * call.rounding_unit)
    if furthest is None:
        return
    verdict, text = judge_shift(shift.offset, furthest, not sequence.is_floating_point())
    sees_it = verdict == DISAGREES and 0 < shift.offset <= furthest
    if sees_it and _sees_latent_alone(call, shift, change, token, before):
        yield Judgement(
            NEXT_TOKEN, UNDECIDED, "its output depends on the target through a latent, as in an autoencoder"
        )
        return
    yield Judgement(
        NEXT_TOKEN, verdict, text, call.smallest_module(change.constant, change.arguments) if sees_it else ""
    )


def _sees_latent_alone(
    call: ChangedCall, shift: Shift, change: InputChange, token: ChangedToken, before: torch.Tensor
) -> bool:
    """Whether an output depends on its target only through a latent, see Note [The next token]."""
    after = call.scores_with_latents(change.arguments, shift)
    if after is None:
        return False
    with hidden_from_modes():
        furthest = furthest_seen(before, after, token, ROUNDING * call.rounding_unit)
    return furthest is None or furthest < shift.offset


def _crossed(call: ChangedCall, targets: Sequence[Target]) -> tuple[int, Crossed] | None:
    """Return a sequence whose tokens are targets with a shift in both dimensions, where gradients show the outputs."""
    for index in call.inputs.sequences:
        sequence = call.inputs.leaves[index]
        with hidden_from_modes():
            all_crossed = [crossed for target in targets if (crossed := crossed_between(sequence, target))]
            for gradient in call.gradients.values() if all_crossed else ():
                dimension = all_crossed[0].dimension
                if tuple(gradient.shape) == tuple(sequence.shape[:2]):
                    used = gradient.any(1 - dimension)
                    if bool(used[0]) and not bool(used[-1]):
                        return index, all_crossed[0]
    return None


def _other_sample(call: ChangedCall, index: int, crossed: Crossed) -> Iterator[Judgement]:
    """Yield the judgement about targets that are shifted in both dimensions: see Note [The next token]."""
    size = int(call.inputs.leaves[index].shape[crossed.dimension])
    change = call.inputs.slice_change(index, crossed.dimension, size // 2)
    if change is None:
        return
    seen = compare(call.before, call.outputs_after(change), change.constant, call.rounding_unit)
    if not seen.compared or not seen.effect:
        return
    if seen.differs:
        yield Judgement(NEXT_TOKEN, UNDECIDED, "its targets are tokens of other samples, which its output depends on")
    else:
        text = f"the target of an output is the token {crossed.offset} after its position in another sample, "
        yield Judgement(NEXT_TOKEN, DISAGREES, f"{text}and the output does not depend on that sample")


def _samples_are_known(call: ChangedCall, targets: Sequence[Target], shifts: list[tuple[int, Shift]]) -> bool:
    """Whether each output is known to belong to a sample, see Note [Mixed samples]."""
    inputs = call.inputs
    has_targets = any(inputs.has_one_for_each_sample(target.values) for target in targets)
    has_targets = has_targets or any(not shift.positions_first for _, shift in shifts)
    return (has_targets or call.was_loaded) and inputs.are_of_batch and not call.same_batch


def _one_of_two(call: ChangedCall, change: InputChange) -> Iterator[Judgement]:
    """Yield the judgement about a matrix of similarities: see Note [Mixed samples]."""
    before = call.compared(call.call.arguments)
    after = call.compared(change.arguments) if before else []
    if len(before) != len(after) or not before:
        return
    of_sides = [
        changed_samples([old[:, None]], [new[:, None]], change, 0, call.rounding_unit)  # the width is that of features
        for old, new in zip(before, after, strict=True)
    ]
    others = [changed[change.others] for changed in of_sides if changed is not None]
    own = [changed[~change.others] for changed in of_sides if changed is not None and change.others is not None]
    if len(others) < len(before) or not all(changed.any() for changed in own):
        return
    mixed = [bool(changed.all()) for changed in others]
    if not any(changed.any() for changed in others):
        yield Judgement(MIXED_SAMPLES, AGREES)
    elif sum(mixed) == 1 and not others[mixed.index(False)].any():
        side = ("left", "right")[mixed.index(True)]
        text = f"with {change.what}, the {side} features of all {len(others[0])} other samples changed, the others not"
        yield Judgement(MIXED_SAMPLES, DISAGREES, text)
    else:
        yield Judgement(MIXED_SAMPLES, UNDECIDED, "it compares features that depend on other samples on both sides")


def _mixed_samples(call: ChangedCall, targets: Sequence[Target], change: InputChange) -> Iterator[Judgement]:
    """Yield the judgement whether one sample changes the outputs of all others."""
    if call.inputs.batch < MIN_SAMPLES:
        return
    before, after = call.before, call.outputs_after(change)
    if not call.keeps_buffers:
        yield Judgement(MIXED_SAMPLES, UNDECIDED, "the call changes buffers, as running statistics do")
        return
    if call.was_loaded:  # in an episode, the samples of one side may be a context for each other
        yield from _one_of_two(call, change)
    changed = changed_samples(before, after, change, call.inputs.length, call.rounding_unit)
    if changed is None:
        for target in targets:
            rows, left = divmod(target.values.numel(), call.inputs.batch)
            if not left:
                all_rows = Shift(0, torch.ones(call.inputs.batch, rows, dtype=torch.bool))
                scores = call.scores(call.call.arguments, all_rows), call.scores(change.arguments, all_rows)
                changed = changed_samples(scores[:1], scores[1:], change, call.inputs.length, call.rounding_unit)
    if changed is None or not changed.any():
        return
    others = changed[change.others]
    if others.all():
        text = f"with {change.what}, the outputs of all {len(others)} other samples changed"
        yield Judgement(MIXED_SAMPLES, DISAGREES, text, call.smallest_module(change.constant, change.arguments))
    elif others.any():
        yield Judgement(MIXED_SAMPLES, UNDECIDED, "some of its samples change the outputs of some others")
    else:
        yield Judgement(MIXED_SAMPLES, AGREES)
