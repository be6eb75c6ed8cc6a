"""Executes a call of a model again with changed inputs.

Note [Statistics of the batch]
Batch normalization in training mixes the samples of a batch on purpose. Where it has running statistics, the call is
executed with these, as in evaluation: other layers compute as they do in training.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.utils._pytree import tree_flatten, tree_unflatten

from traincheck.sources.distributed.replica_readings import several_ranks
from traincheck.sources.replay.restorable_call import ROOT, Note, RestorableCall, tensors_in
from traincheck.sources.replay.state_snapshot import has_compiled_code
from traincheck.sources.tensors.deferred_values import fetch_values
from traincheck.sources.tensors.reading import Fingerprint, deferred_fingerprints, hidden_from_modes
from traincheck.sources.verification.inputs.input_changes import CallInputs, InputChange, Part, compare
from traincheck.sources.verification.inputs.loss_targets import compared_rows, scores_of
from traincheck.sources.verification.inputs.next_token import Shift, first_row

MAX_HELD = 512 * 1024**2
"""Bytes of outputs of inner modules that are held to locate a difference."""
MAX_LEVELS, LEVELS_APART = 16, 1000
"""The most values of an element in a code, and into how many parts the largest value is divided to compare them."""
MAX_COMPARED = 1 << 22
"""Elements of a tensor that are compared, those of the first vectors."""


class _ModuleCall(NamedTuple):
    """The tensors that a module inside gets and returns."""

    name: str
    inputs: list[torch.Tensor]
    outputs: list[torch.Tensor]


class ChangedCall:
    """A call of a model that is executed again with changed inputs, after its backward.

    Create it when the call begins. Raises CannotReplay where the call cannot be executed again.
    """

    def __init__(
        self,
        name: str,
        module: nn.Module,
        args: Any,
        keywords: Any,
        same_batch: bool = False,
        batch_sizes: Container[int] = (),
    ) -> None:
        self.call = RestorableCall(name, module, args, keywords)
        self.inputs = CallInputs(self.call.arguments)
        self._seen: list[Fingerprint] = []
        self.shapes: list[tuple[int, ...]] = []
        self.gradients: dict[int, torch.Tensor] = {}
        """Which positions of an output have a gradient, by the index of its tensor."""
        self.has_gradients = False
        self._after: tuple[InputChange, list[torch.Tensor]] | None = None
        self.same_batch = same_batch
        """Whether the call before had the same tensor as input: the program trains on one batch."""
        self.was_loaded = self.inputs.batch in batch_sizes and self.inputs.length not in batch_sizes
        """Whether the batch has as many samples as a data loader puts into one (`batch_sizes`), and positions not."""
        self._norms = [
            module
            for module in self.call.modules
            if _uses_batch_statistics(module) and getattr(module, "running_mean", None) is not None
        ]
        if has_compiled_code():  # torch would compile the model again for this mode
            self._norms = []
        self.keeps_buffers = True
        """Whether the call leaves the buffers of the model as they are; known after an execution."""

    def returns(self, output: Any) -> list[tuple[int, torch.Tensor]]:
        """Note the output of the program's call; returns the tensors in it that may receive gradients, numbered."""
        tensors = tensors_in(output)
        self.shapes = [tuple(tensor.shape) for tensor in tensors]
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
                    self.gradients[index] = by_position.ne(0).any(-1)
                    break

    @cached_property
    def unknown(self) -> str:
        """Why nothing can be said about the inputs of the call; empty if something can. It executes the call."""
        if self.inputs.ambiguous:
            return "its batch has as many samples as positions"
        if any(_uses_batch_statistics(module) and module not in self._norms for module in self.call.modules):
            return "it computes with statistics of the batch"
        expected = deferred_fingerprints(self.outputs(self.call.arguments)) if self._norms else self._seen
        with hidden_from_modes():
            if fetch_values(expected) != fetch_values(deferred_fingerprints(self.before)):
                return "the call gives other results when it is executed again"
        return ""

    @cached_property
    def before(self) -> list[torch.Tensor]:
        """The outputs of the call with its own arguments."""
        return self.outputs(self.call.arguments)

    def outputs(self, arguments: Any) -> list[torch.Tensor]:
        """The outputs of the call with these arguments. Raises CannotReplay."""
        with self._executing(arguments) as tensors:
            return [tensor.detach() for tensor in tensors]

    def outputs_under(self, mode: AbstractContextManager[Any]) -> list[torch.Tensor]:
        """The outputs of the call with its own arguments, executed under a mode. Raises CannotReplay."""
        with mode, self._executing(self.call.arguments) as tensors:
            return [tensor.detach() for tensor in tensors]

    def outputs_after(self, change: InputChange) -> list[torch.Tensor]:
        """The outputs of the call after a change; those after the last one are kept. Raises CannotReplay."""
        if self._after is None or self._after[0] is not change:
            self._after = change, self.outputs(change.arguments)
        return self._after[1]

    def scores(self, arguments: Any, shift: Shift, note: Note | None = None) -> torch.Tensor | None:
        """Return what the loss compares with its targets, if the call has these arguments. Raises CannotReplay.

        The form is (samples, rows, numbers). `note` is as in `RestorableCall.executing`.
        """
        with self._executing(arguments, note) as tensors, hidden_from_modes():
            for index, gradient in self.gradients.items():
                first = first_row(shift.samples_first(gradient), shift.counted)
                by_position = _by_position(tensors[index], tuple(gradient.shape))
                if first is not None and by_position is not None:
                    return shift.samples_first(by_position)[:, first : first + shift.rows].detach()
            scores = scores_of(tensors, *shift.samples_first(shift.counted).shape)
            return shift.samples_first(scores[0]) if scores else None

    def scores_with_latents(self, arguments: Any, shift: Shift) -> torch.Tensor | None:
        """Return the scores with other arguments, and with the latents that the call has with its own ones.

        A latent is what a module returns that has no positions, or that is quantized. None where there is none. Raises
        CannotReplay.
        """
        latents: dict[str, list[torch.Tensor | None]] = {}
        samples, *positions = shift.samples_first(shift.counted).shape
        positions += [size + step for form in self.inputs.forms for size in form[1:] for step in (-1, 0, 1)]
        positions += [samples * size for size in positions]

        def is_latent(tensor: torch.Tensor, given: Any) -> bool:
            return _is_sample_vector(tensor, samples, positions) or _is_quantized(tensor, tensors_in(given))

        def hold(name: str, output: Any, given: Any) -> None:
            with hidden_from_modes():
                tensors = [t.detach().clone() if is_latent(t, given) else None for t in tensors_in(output)]
            latents[name] = [] if name in latents or name == ROOT else tensors  # not those of a loop

        def use(name: str, output: Any, _: Any) -> Any:
            held = latents.get(name)
            if not held or not any(tensor is not None for tensor in held):
                return None
            leaves, spec = tree_flatten(output)
            with hidden_from_modes():
                order = iter(held)
                leaves = [_held_or(leaf, order) for leaf in leaves]
            return tree_unflatten(leaves, spec)

        self.scores(self.call.arguments, shift, hold)
        if not any(tensor is not None for held in latents.values() for tensor in held):
            return None
        return self.scores(arguments, shift, use)

    def compared(self, arguments: Any) -> list[torch.Tensor]:
        """The rows whose similarities the call returns, with these arguments: left ones, then right ones.

        Empty where no output is a matrix of similarities between all samples. Raises CannotReplay.
        """
        with self._executing(arguments) as tensors, hidden_from_modes():
            pairs = (compared_rows(tensor, self.inputs.batch) for tensor in tensors)
            return next((list(pair) for pair in pairs if pair is not None), [])

    @contextmanager
    def _executing(self, arguments: Any, note: Note | None = None) -> Iterator[list[torch.Tensor]]:
        """Execute the call with these arguments, see Note [Statistics of the batch]; yields the tensors it returns."""
        call = self.call
        with call.restored():
            for norm in self._norms:
                norm.training = False
            before = self._buffer_versions()
            with call.executing(several_ranks(), note, arguments) as output:
                self.keeps_buffers = before == self._buffer_versions()
                yield tensors_in(output)

    def _buffer_versions(self) -> list[tuple[int, int]]:
        """Return the identity and the version of each buffer of numbers."""
        buffers = (buffer for module in self.call.modules for buffer in module._buffers.values())
        return [
            (id(buffer), buffer._version) for buffer in buffers if buffer is not None and buffer.is_floating_point()
        ]

    def smallest_module(
        self, constant: Part, arguments: Any = None, mode: AbstractContextManager[Any] | None = None
    ) -> str:
        """Return the first module inside whose output changes where it must not, although its inputs do not.

        The change is that of other `arguments`, or of a mode. Of modules inside each other it is the innermost; it is
        the model itself where none is found. Raises CannotReplay.
        """
        held: list[_ModuleCall] = []
        size = 0
        found: list[str] = []
        any_differs = False

        def hold(name: str, output: Any, given: Any) -> None:
            nonlocal size
            with hidden_from_modes():
                inputs, outputs = tensors_in(given), tensors_in(output)
                size += sum(tensor.numel() * tensor.element_size() for tensor in (*inputs, *outputs))
                if size <= MAX_HELD:
                    held.append(_ModuleCall(name, _copies(inputs), _copies(outputs)))

        def compare_with_held(name: str, output: Any, given: Any) -> None:
            nonlocal any_differs
            if found or not expected:
                return
            before = expected.pop(0)
            if before.name != name or not compare(before.outputs, tensors_in(output), constant, unit).differs:
                return
            inputs = compare(before.inputs, tensors_in(given), constant, unit)
            if not (inputs.differs if inputs.compared else any_differs):
                found.append(name)
            any_differs = True

        unit = self.rounding_unit
        with self._executing(self.call.arguments, hold):
            expected = held
        with mode or nullcontext(), self._executing(arguments or self.call.arguments, compare_with_held):
            pass
        name = found[0] if found else ROOT
        return self.call.name if name == ROOT else f"{self.call.name}.{name}"

    @property
    def rounding_unit(self) -> float:
        """The relative rounding error of the numbers of the model and of its outputs."""
        dtypes = {tensor.dtype for tensor in (*self.before, *self.call.module.parameters())}
        dtypes.update(self.call.autocast_dtypes)
        return max((torch.finfo(dtype).eps for dtype in dtypes if dtype.is_floating_point), default=0.0)


def _copies(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    return [tensor.detach().clone() for tensor in tensors]


def _by_position(gradient: torch.Tensor, form: tuple[int, ...]) -> torch.Tensor | None:
    """Return the gradient of an output with one vector for each position, None for another form."""
    if tuple(gradient.shape[:2]) == form:
        return gradient.reshape(*form, -1)
    if gradient.dim() > 1 and gradient.shape[0] == form[0] * form[1]:
        return gradient.reshape(*form, -1)
    return None


def _is_sample_vector(tensor: torch.Tensor, samples: int, positions: Sequence[int]) -> bool:
    """Whether a tensor has samples, and no positions. A vector for each sample has none, whatever its width is."""
    shape = tuple(tensor.shape)
    if not tensor.is_floating_point() or samples not in shape or len(shape) < 2:
        return False
    return (len(shape) == 2 and shape[0] == samples) or not any(size in positions for size in shape)


def _is_quantized(tensor: torch.Tensor, given: Sequence[torch.Tensor]) -> bool:
    """Whether a module returns one of few values or vectors for each of many, as codes of a discrete autoencoder."""
    compared = [t for t in (tensor, *given) if t.is_floating_point() and t.dim() > 1 and t.numel()]
    if len(compared) < 2 or compared[0] is not tensor:
        return False
    rows = max(2, MAX_COMPARED // max(t.shape[-1] for t in compared))
    (values, share), *others = (_distinct(t.detach().flatten(0, -2)[:rows]) for t in compared)
    return any(values <= MAX_LEVELS < levels or 2 * share <= most for levels, most in others)


def _distinct(vectors: torch.Tensor) -> tuple[int, float]:
    """Return how many distinct values there are, and the share of distinct vectors, both apart from rounding."""
    values = vectors.double()
    levels = (values / values.abs().max() * LEVELS_APART).round()  # a straight-through estimator adds rounding
    return len(levels.unique()), len(levels.unique(dim=0)) / len(levels)


def _held_or(leaf: Any, held: Iterator[torch.Tensor | None]) -> Any:
    """Return the next held tensor, if `leaf` is a plain tensor of its form, else `leaf`."""
    if type(leaf) not in (torch.Tensor, nn.Parameter):
        return leaf
    tensor = next(held, None)
    return leaf if tensor is None or tensor.shape != leaf.shape else tensor


def _uses_batch_statistics(module: nn.Module) -> bool:
    if not isinstance(module, nn.modules.batchnorm._BatchNorm):
        return False
    return module.training or module.running_mean is None
