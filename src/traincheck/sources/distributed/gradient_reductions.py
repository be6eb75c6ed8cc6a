"""Reports gradients that ranks combine by another operation than a sum or a mean.

A derivative is linear, so parts of a gradient are added. `all_reduce` with MAX, MIN or PRODUCT leaves equal values on
all ranks, and training goes on with them. Two tensors are gradients for certain: `grad` of a parameter, and what the
backward of a custom `autograd.Function` returns. Statistics about gradients (scales, norms, flags) are neither.

Known limitations: gradients that are copied before or after the collective are not recognized.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed

from traincheck.sources.gradients.gradients import Gradients
from traincheck.sources.recording.recorder import Recorder
from traincheck.sources.tensors.reading import hidden_from_modes
from traincheck.sources.tensors.storages import version_of
from traincheck.vocab.builtin_rules import GRADIENT, REDUCTION
from traincheck.vocab.events import Reading
from traincheck.vocab.facts import facts

_OTHERS = ("MAX", "MIN", "PRODUCT")


class GradientReductions:
    """Follows the results of collectives; reports each line of the program once."""

    def __init__(self, source: str, recorder: Recorder, gradients: Gradients) -> None:
        self._source = source
        self._recorder = recorder
        self._gradients = gradients
        self._reported: set[str] = set()

    def collective_ends(self, operation: Any, result: Any, call: int, site: str) -> None:
        """Look at the result of a collective of this operation (the argument `op`, None if it is not passed)."""
        name = next((name for name in _OTHERS if operation == getattr(torch.distributed.ReduceOp, name)), "")
        if not name or site in self._reported:
            return
        tensors = [tensor for tensor in result if isinstance(tensor, torch.Tensor)] if _is_list(result) else [result]
        with hidden_from_modes():
            for tensor in tensors:
                if not isinstance(tensor, torch.Tensor) or not tensor.is_floating_point() or not tensor.numel():
                    continue
                if torch._C._current_graph_task_id() >= 0:
                    self._follow(tensor, lambda: self._report(name, call, site))
                elif any(_is_same(held.grad, tensor) for _, held in self._gradients.trainable()):
                    self._report(name, call, site)

    def _follow(self, tensor: torch.Tensor, report: Callable[[], None]) -> None:
        """Report if the operation whose backward runs returns this tensor as a gradient."""
        node = getattr(torch._C, "_current_autograd_node", lambda: None)()
        if node is None:
            return
        version = version_of(tensor)

        def ends(gradients: Any, _: Any) -> None:
            handle.remove()
            with hidden_from_modes():
                if version_of(tensor) == version and any(_is_same(gradient, tensor) for gradient in gradients):
                    report()

        handle = node.register_hook(self._recorder.guarded(self._source, ends))

    def _report(self, name: str, call: int, site: str) -> None:
        if site not in self._reported:
            self._reported.add(site)
            seq, context = self._recorder.next_seq(), facts(site=site)
            self._recorder.record_reading(Reading(seq, call, GRADIENT, GRADIENT, REDUCTION, name, context=context))


def _is_list(result: Any) -> bool:
    return isinstance(result, (list, tuple))


def _is_same(gradient: Any, tensor: torch.Tensor) -> bool:
    """Whether a gradient is in the memory of a tensor."""
    if not isinstance(gradient, torch.Tensor) or gradient.numel() != tensor.numel():
        return False
    return gradient is tensor or (gradient.device == tensor.device and gradient.data_ptr() == tensor.data_ptr())
