"""Captures a call of a model and its backward, so that they can be executed again from the same inputs.

See Note [Restored state], and Note [Gradients from outside] in outside_gradients.py. Gradients come from
`torch.autograd.grad`, which does not touch `.grad` and bypasses wrappers that reduce gradients over ranks. The
comparison covers fingerprints of the output of each module inside, and of the gradients of the parameters.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_map

from traincheck.sources.modules.live_modules import plain_name
from traincheck.sources.replay.fingerprints import CannotReplay, ExecutionResult, Fingerprints, PeerCall
from traincheck.sources.replay.outside_gradients import Edge, edge_of, edges_from_outside, edges_inside
from traincheck.sources.replay.restorable_call import ROOT, RestorableCall, copy_of, tensors_in
from traincheck.sources.replay.state_snapshot import has_compiled_code, has_only_torch_hooks
from traincheck.sources.tensors.leaf_hooks import register_leaf_hook
from traincheck.sources.tensors.reading import fingerprints, hidden_from_modes

Guarded = Callable[[Callable[..., Any]], Callable[..., Any]]


class CapturedCall(RestorableCall):
    """A call of a model under way, with everything needed to replay it. Create it when the call begins.

    `guarded` makes a hook safe for the backward that calls it. Raises CannotReplay where a replay is impossible.
    """

    def __init__(self, name: str, module: nn.Module, args: Any, keywords: Any, guarded: Guarded = lambda f: f) -> None:
        super().__init__(name, module, args, keywords)
        self._parameters = {plain_name(key): p for key, p in self.module.named_parameters() if p.requires_grad}
        self._hooked = {key for key, parameter in self._parameters.items() if not has_only_torch_hooks(parameter)}
        self._left_out = set(self._hooked)  # parameters whose gradients are not compared
        self.seen = ExecutionResult()
        self.returned = False
        self.shared_calls = 0
        self._results: list[Edge] = []  # that may get gradients
        self._inner: dict[int, torch.Tensor] = {}  # results that others are computed from, by position
        self._replaced: set[int] = set()  # inner results that get gradients from outside
        self._result_grads: dict[int, torch.Tensor] = {}  # by the position of the result
        self._fired: dict[str, int] = {}
        self._guarded = guarded
        self._undo = ExitStack()

    # -- while the program computes --------------------------------------------------------------------------------

    def inner_returned(self, module: nn.Module, output: Any) -> None:
        """Record the output of a module inside."""
        name = self._names.get(id(module))
        if name is not None:
            _add_outputs(self.seen.results, name, output)

    def returns(self, output: Any) -> None:
        """Note the end of the call: follow the gradients of its result and of the parameters."""
        self.returned = True
        if not self.seen.results:  # no module inside was observed: all of it is compiled
            _add_outputs(self.seen.results, ROOT, output)
        results = _with_gradients(output)
        self._results = list(map(edge_of, results))
        inside = edges_inside(self._results) if len(results) > 1 else set()
        for index, (tensor, edge) in enumerate(zip(results, self._results, strict=True)):
            if edge in inside:
                self._inner[index] = tensor
            else:
                self._follow(index, tensor)
        for name, parameter in self._parameters.items():
            if name not in self._hooked:
                self._undo.callback(register_leaf_hook(parameter, self._guarded(self._parameter_hook(name))))

    def backward_begins(self, starts: Any) -> None:
        """A backward from these tensors is about to begin: find results and parameters that it reaches from outside."""
        edges = edges_from_outside(starts, self._results)
        if edges is None or any(edge_of(tensor) != self._results[index] for index, tensor in self._inner.items()):
            self.shared_calls += 1  # gradients may come from elsewhere, or a result was changed in place
            return
        for index, tensor in self._inner.items():
            if self._results[index] in edges and index not in self._replaced:
                self._replaced.add(index)
                self._follow(index, tensor)
        leaves = {id(getattr(function, "variable", None)) for function, _ in edges}
        self._left_out |= {name for name, parameter in self._parameters.items() if id(parameter) in leaves}

    def _follow(self, index: int, result: torch.Tensor) -> None:
        """Keep the gradient of a result."""
        with torch._C.DisableTorchFunction():  # modes of the program do not see this hook
            self._undo.callback(result.register_hook(self._guarded(self._output_hook(index))).remove)

    def _output_hook(self, index: int) -> Callable[[torch.Tensor | None], None]:
        def on_gradient(grad: torch.Tensor | None) -> None:
            if grad is None:  # only another result of the same function has a gradient
                return
            is_first = index not in self._result_grads
            if is_first:
                with hidden_from_modes():
                    self._result_grads[index] = copy_of(grad)
            self._fired[ROOT] = max(self._fired.get(ROOT, 0), 1 if is_first else 2)

        return on_gradient

    def _parameter_hook(self, name: str) -> Callable[[torch.Tensor | None], None]:
        def on_gradient(grad: torch.Tensor | None) -> None:
            if grad is None or name in self._left_out:
                return
            self._fired[name] = self._fired.get(name, 0) + 1
            if self._fired[name] == 1:
                self.seen.gradients.add(name, grad)

        return on_gradient

    def remove_hooks(self) -> None:
        """Remove the hooks on tensors, and forget the results."""
        self._undo.close()
        self._results, self._inner = [], {}

    @property
    def has_gradients(self) -> bool:
        """Whether a backward passed through the result."""
        return ROOT in self._fired

    @property
    def one_backward(self) -> bool:
        """Whether the gradients come from this call alone: from one backward, without other calls in it."""
        return self.has_gradients and not self.shared_calls and max(self._fired.values()) == 1

    # -- replay ----------------------------------------------------------------------------------------------------

    def execute(self, several_ranks: bool, observe_modules: bool = False) -> ExecutionResult:
        """Execute the call once more, without lasting effects.

        `observe_modules` also records the output of modules inside; so does a call without a single backward, which
        alone would not locate a difference. Raises CannotReplay.
        """
        result = ExecutionResult()
        observes = (observe_modules or not self.one_backward) and not has_compiled_code()

        def note(name: str, output: Any, _: Any) -> None:
            _add_outputs(result.results, name, output)

        with (
            self.restored(self._parameters.values()),
            self.executing(several_ranks, note if observes else None) as output,
        ):
            if not observes:
                _add_outputs(result.results, ROOT, output)
            if self.one_backward:
                self._backward(result, _with_gradients(output))
        return result

    def for_peer(self) -> PeerCall:
        """Return the call in a form that another rank can execute. Raises CannotReplay for arguments that cannot be
        sent."""
        if self._replaced:
            raise CannotReplay("a result gets gradients from outside, and another one is computed from it")
        with hidden_from_modes():
            return PeerCall(
                tree_map(_on_cpu, self.arguments),
                self._random.streams,
                [_on_cpu(buffer) for _, _, buffer in self._buffers],
                {index: _on_cpu(grad) for index, grad in self._result_grads.items()},
                self.one_backward,
                fingerprints(list(self.module.parameters())),
                **self.seen.prints(),
            )

    def execute_peer_call(self, peer_call: PeerCall, parameters: Sequence[torch.Tensor]) -> ExecutionResult | None:
        """Execute a call of another rank with `parameters`, copies of this model's parameters in that step.

        Returns None where they differ from those of the other rank. Raises CannotReplay.
        """
        with hidden_from_modes():
            if fingerprints(list(parameters)) != peer_call.parameters or len(peer_call.buffers) != len(self._buffers):
                return None
        device = parameters[0].device
        replica = copy.copy(self)
        replica.arguments = _moved(peer_call.arguments, device)
        replica._random = self._random.with_streams(peer_call.streams)
        pairs = zip(self._buffers, peer_call.buffers, strict=True)
        replica._buffers = [(inner, key, value.to(own_buffer.device)) for (inner, key, own_buffer), value in pairs]
        replica._result_grads = {index: grad.to(device) for index, grad in peer_call.result_grads.items()}
        replica._replaced = set()
        replica._left_out = set(self._parameters) - set(peer_call.gradients)
        replica._fired = {ROOT: 1} if peer_call.one_backward else {}
        replica.shared_calls = 0
        own = list(self.module.parameters())
        now = [parameter.data for parameter in own]
        try:
            for parameter, value in zip(own, parameters, strict=True):
                parameter.data = value
            return replica.execute(several_ranks=True, observe_modules=True)
        finally:
            for parameter, data in zip(own, now, strict=True):
                parameter.data = data

    def _backward(self, result: ExecutionResult, results: Sequence[torch.Tensor]) -> None:
        if any(index >= len(results) for index in self._result_grads):
            raise CannotReplay("its result has another structure")
        if any(result._backward_hooks for result in results):  # DeepSpeed reduces gradients in one
            raise CannotReplay("its forward puts hooks on its result")
        parameters = {name: p for name, p in self._parameters.items() if name not in self._left_out}
        if not parameters:
            return
        for index in self._replaced & set(self._result_grads):
            results[index].register_hook(functools.partial(_instead, self._result_grads[index]))
        grads = torch.autograd.grad(
            [results[index] for index in self._result_grads],
            list(parameters.values()),
            list(self._result_grads.values()),
            allow_unused=True,
        )
        for name, grad in zip(parameters, grads, strict=True):
            if grad is not None:
                result.gradients.hold(name, grad)


def _instead(grad: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
    """The whole gradient of an inner result. It holds what other results pass on to it."""
    return grad


def _add_outputs(prints: Fingerprints, name: str, output: Any) -> None:
    tensors = tensors_in(output)
    for index, tensor in enumerate(tensors):
        prints.add(name if len(tensors) == 1 else f"{name}[{index}]", tensor)


def _with_gradients(output: Any) -> list[torch.Tensor]:
    """The tensors in a result that may get gradients. (A parameter may be returned unchanged.)"""
    return [tensor for tensor in tensors_in(output) if tensor.requires_grad and not tensor.is_leaf]


def _on_cpu(leaf: Any) -> Any:
    if leaf is None or isinstance(leaf, (bool, int, float, str, bytes)):
        return leaf
    if not isinstance(leaf, torch.Tensor):
        raise CannotReplay(f"it is given a {type(leaf).__name__}")
    return leaf.detach().cpu().requires_grad_(leaf.requires_grad)


def _moved(value: Any, device: torch.device) -> Any:
    """Return the arguments of a peer call on the device that executes it."""

    def moved(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        return leaf.detach().to(device).requires_grad_(leaf.requires_grad)

    with hidden_from_modes():
        return tree_map(moved, value)
