"""Executes a call of a model again with changed inputs, and judges which outputs changed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import nn

from traincheck.sources.distributed.replica_readings import several_ranks
from traincheck.sources.replay.fingerprints import CannotReplay
from traincheck.sources.replay.restorable_call import ROOT, RestorableCall, tensors_in
from traincheck.sources.tensors.deferred_values import fetch_values
from traincheck.sources.tensors.reading import Fingerprint, deferred_fingerprints, hidden_from_modes
from traincheck.sources.verification.inputs.input_changes import (
    ROUNDING,
    AlignedSequences,
    CallInputs,
    Comparison,
    InputChange,
    compare,
)
from traincheck.sources.verification.inputs.loss_targets import Target, scores_of
from traincheck.sources.verification.inputs.next_token import (
    Shift,
    change_token,
    first_row,
    furthest_seen,
    judge_shift,
    shift_between,
)
from traincheck.vocab.verification import (
    AGREES,
    DISAGREES,
    LATER_TOKENS,
    NEXT_TOKEN,
    PADDING,
    PADDING_LOSS,
    SAMPLES,
    UNDECIDED,
    Experiment,
)

MAX_HELD = 512 * 1024**2
"""Bytes of outputs of inner modules that are held to locate a difference."""


class Judgement(NamedTuple):
    """The verdict of an experiment about a call, what was seen, and the first module that shows it."""

    experiment: Experiment
    verdict: str
    found: str = ""
    first: str = ""


class ChangedCall:
    """A call of a model that is executed again with changed inputs, after its backward.

    Create it when the call begins. Raises CannotReplay where the call cannot be executed again.
    """

    def __init__(self, name: str, module: nn.Module, args: Any, keywords: Any) -> None:
        self.call = RestorableCall(name, module, args, keywords)
        self.inputs = CallInputs(self.call.arguments)
        self._seen: list[Fingerprint] = []
        self._shapes: list[tuple[int, ...]] = []
        self._gradients: dict[int, torch.Tensor] = {}  # of outputs, by position
        self.has_gradients = False

    def returns(self, output: Any) -> list[tuple[int, torch.Tensor]]:
        """Note the output of the program's call; returns the tensors in it that may receive gradients, numbered."""
        tensors = tensors_in(output)
        self._shapes = [tuple(tensor.shape) for tensor in tensors]
        with hidden_from_modes():
            self._seen = deferred_fingerprints(tensors)
        return [(index, tensor) for index, tensor in enumerate(tensors) if tensor.requires_grad]

    def receives(self, index: int, gradient: torch.Tensor | None) -> None:
        """Note which positions of an output receive a gradient. `index` is that of its tensor in `returns`."""
        self.has_gradients = True
        if gradient is None:
            return
        with hidden_from_modes():
            for form in self.inputs.forms:
                by_position = _by_position(gradient.detach(), form)
                if by_position is not None:
                    self._gradients[index] = by_position.ne(0).any(-1)
                    break

    def judge(self, sequences: AlignedSequences, targets: Sequence[Target] = ()) -> Iterator[Judgement]:
        """Yield the judgements of all experiments that apply to the inputs. Raises CannotReplay.

        `sequences` are those of the model's earlier calls, and `targets` those of the losses of its outputs.
        """
        aligned = sequences.add(self.inputs, self._shapes)
        yield from self._judge_padding_loss(aligned)
        experiments = [(experiment, changes) for experiment, changes in self._changes(aligned) if changes]
        shifts = self._shifts(targets)
        if not experiments and not shifts:
            return
        reason = "it computes with statistics of the batch" if _uses_batch_statistics(self.call.modules) else ""
        if self.inputs.ambiguous:
            reason = "its batch has as many samples as positions"
        before = [] if reason else self._outputs(self.call.arguments)
        if not reason and not self._repeats(before):
            reason = "the call gives other results when it is executed again"
        judging = [
            (experiment, partial(self._judge, experiment, changes, before)) for experiment, changes in experiments
        ]
        judging += [(NEXT_TOKEN, partial(self._judge_next_token, index, shifts[index])) for index in shifts]
        for experiment, judgements in judging:
            if reason:
                yield Judgement(experiment, UNDECIDED, reason)
                continue
            try:
                yield from list(judgements())
            except CannotReplay as error:
                yield Judgement(experiment, UNDECIDED, f"the call cannot be executed with other inputs: {error}")

    def _shifts(self, targets: Sequence[Target]) -> dict[int, list[Shift]]:
        """Return how far the targets are from their positions in each sequence, where they are tokens of it."""
        with hidden_from_modes():
            found = {
                index: [shift_between(self.inputs.leaves[index], target) for target in targets]
                for index in self.inputs.sequences
            }
        shifts = {index: [shift for shift in found[index] if shift is not None] for index in found}
        return {index: shifts[index] for index in shifts if shifts[index]}

    def _judge_next_token(self, index: int, shifts: list[Shift]) -> Iterator[Judgement]:
        """Yield the judgement about the targets of losses; one that asks for the next token is enough."""
        judgements = [judgement for shift in shifts for judgement in self._judge_shift(index, shift)]
        yield from sorted(judgements, key=lambda judgement: judgement.verdict != AGREES)[:1]

    def _judge_shift(self, index: int, shift: Shift) -> Iterator[Judgement]:
        sequence = self.inputs.leaves[index]
        with hidden_from_modes():
            token = change_token(sequence, shift)
        if token is None:
            return
        change = self.inputs.token_change(index, token.sequence, token.position - shift.offset)
        before, after = self._scores(self.call.arguments, shift), self._scores(change.arguments, shift)
        if before is None or after is None:
            return
        unit = self._rounding_unit([before])
        with hidden_from_modes():
            furthest = furthest_seen(before, after, token, ROUNDING * unit)
        if furthest is None:
            return
        verdict, found = judge_shift(shift.offset, furthest, not sequence.is_floating_point())
        sees_it = verdict == DISAGREES and 0 < shift.offset <= furthest
        yield Judgement(NEXT_TOKEN, verdict, found, self._first_module(change, unit) if sees_it else "")

    def _scores(self, arguments: Any, shift: Shift) -> torch.Tensor | None:
        """Return what the loss compares with its targets in another execution, in the form (samples, rows, numbers)."""
        call = self.call
        with call.restored(), call.executing(several_ranks(), None, arguments) as output, hidden_from_modes():
            tensors = tensors_in(output)
            for index, gradient in self._gradients.items():
                first = first_row(gradient, shift)
                by_position = _by_position(tensors[index], tuple(gradient.shape))
                if first is not None and by_position is not None:
                    return by_position[:, first : first + shift.rows].detach()
            scores = scores_of(tensors, *shift.counted.shape)
            return scores[0] if scores else None

    def _changes(self, aligned: list[int]) -> Iterator[tuple[Experiment, list[InputChange]]]:
        inputs = self.inputs
        later = [inputs.later_tokens(index) for index in aligned]
        padding = None if inputs.padding is None else inputs.padding_change(inputs.padding)
        for experiment, changes in ((SAMPLES, [inputs.other_sample()]), (LATER_TOKENS, later), (PADDING, [padding])):
            yield experiment, [change for change in changes if change is not None]

    def _repeats(self, outputs: list[torch.Tensor]) -> bool:
        with hidden_from_modes():
            return fetch_values(self._seen) == fetch_values(deferred_fingerprints(outputs))

    def _judge(
        self, experiment: Experiment, changes: list[InputChange], before: list[torch.Tensor]
    ) -> Iterator[Judgement]:
        """Yield the judgement of an experiment, which is one about each of several inputs."""
        unit = self._rounding_unit(before)
        pairs = [
            (change, compare(before, self._outputs(change.arguments), change.constant, unit)) for change in changes
        ]
        pairs = [
            (change, seen) for change, seen in pairs if seen.compared and (seen.effect or not change.expects_effect)
        ]
        if not pairs:
            return
        verdicts = {_verdict(seen) for _, seen in pairs}
        if verdicts == {AGREES}:
            yield Judgement(experiment, AGREES)
        elif verdicts == {DISAGREES}:
            change, seen = pairs[0]
            found = f"with {change.what}, {seen.number:,} elements of {change.kept} changed by up to {seen.change:.2g}"
            yield Judgement(experiment, DISAGREES, found, self._first_module(change, unit))
        elif len(verdicts) > 1:
            yield Judgement(experiment, UNDECIDED, "it holds for some of its inputs")
        else:
            yield Judgement(experiment, UNDECIDED, "outputs changed by no more than rounding, or are not finite")

    def _judge_padding_loss(self, aligned: list[int]) -> Iterator[Judgement]:
        padding = self.inputs.padding
        if padding is None or padding.sequence not in aligned:
            return
        masked = used = 0
        with hidden_from_modes():
            for nonzero in self._gradients.values():
                if nonzero.shape == padding.positions.shape:
                    masked += int(padding.positions.sum())
                    used += int((nonzero & padding.positions.to(nonzero.device)).sum())
        if masked and used:
            found = f"the loss has a gradient at {used:,} of {masked:,} masked positions of its output"
            yield Judgement(PADDING_LOSS, DISAGREES, found)
        elif masked:
            yield Judgement(PADDING_LOSS, AGREES)

    def _outputs(self, arguments: Any) -> list[torch.Tensor]:
        call = self.call
        with call.restored(), call.executing(several_ranks(), None, arguments) as output:
            return [tensor.detach() for tensor in tensors_in(output)]

    def _first_module(self, change: InputChange, unit: float) -> str:
        """Return the first module inside whose output changes where it must not, the innermost of several."""
        held: list[tuple[str, list[torch.Tensor]]] = []
        size = 0
        differs: list[str] = []

        def hold(name: str, output: Any) -> None:
            nonlocal size
            with hidden_from_modes():
                tensors = [tensor.detach() for tensor in tensors_in(output)]
                size += sum(tensor.numel() * tensor.element_size() for tensor in tensors)
                if size <= MAX_HELD:
                    held.append((name, [tensor.clone() for tensor in tensors]))

        def compare_with_held(name: str, output: Any) -> None:
            if differs or not expected:
                return
            own, tensors = expected.pop(0)
            if own == name and compare(tensors, tensors_in(output), change.constant, unit).differs:
                differs.append(name)

        call = self.call
        with call.restored(), call.executing(several_ranks(), hold):
            expected = held
        with call.restored(), call.executing(several_ranks(), compare_with_held, change.arguments):
            pass
        name = differs[0] if differs else ROOT
        return call.name if name == ROOT else f"{call.name}.{name}"

    def _rounding_unit(self, outputs: list[torch.Tensor]) -> float:
        dtypes = {tensor.dtype for tensor in (*outputs, *self.call.module.parameters())}
        dtypes.update(self.call.autocast_dtypes)
        return max((torch.finfo(dtype).eps for dtype in dtypes if dtype.is_floating_point), default=0.0)


def _verdict(seen: Comparison) -> str:
    return AGREES if seen.is_equal else DISAGREES if seen.differs else UNDECIDED


def _by_position(gradient: torch.Tensor, form: tuple[int, ...]) -> torch.Tensor | None:
    """Return the gradient of an output with one vector for each position, None for another form."""
    if tuple(gradient.shape[:2]) == form:
        return gradient.reshape(*form, -1)
    if gradient.dim() > 1 and gradient.shape[0] == form[0] * form[1]:
        return gradient.reshape(*form, -1)
    return None


def _uses_batch_statistics(modules: list[nn.Module]) -> bool:
    norms = (module for module in modules if isinstance(module, nn.modules.batchnorm._NormBase))
    return any(
        isinstance(norm, nn.modules.batchnorm._BatchNorm) and (norm.training or norm.running_mean is None)
        for norm in norms
    )
