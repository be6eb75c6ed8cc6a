"""Finds random weights of a model that are neither parameters nor buffers.

No optimizer trains such a tensor, and no state dict holds it: a model that is built again computes something else.

Note [Random weights by their use]
Programs keep many tensors as plain attributes on purpose: constants, noise, data. A tensor counts as a weight if
* a constructor of the project made it from random numbers of torch, and no other code handles it
  (constructor_code.py), it requires no gradient, and most of its elements differ (it is no mask),
* one update and two calls of the model left it as it was,
* in a call in training it is combined with activations, which depend on the input of the model and on its parameters,
  and parameters are applied to the result. Random features of the raw input, data of a physical problem and the
  projections of a loss do not have this form.
The last point needs the operations of a call. A function mode follows one call, and only where the other points hold.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from traincheck.sources.compile.tracing import EXPORTS, FLAGS, is_traced
from traincheck.sources.functions.torch_functions import is_replacement, original_function
from traincheck.sources.modules.construction import MODULE, PerModule
from traincheck.sources.modules.live_modules import plain_name, wrapped_model
from traincheck.sources.modules.modules import keywords_of_call
from traincheck.sources.modules.variables import VariableCatalog
from traincheck.sources.recording.call_sites import CallSites
from traincheck.sources.recording.global_hooks import insert_mode, remove_mode
from traincheck.sources.recording.patches import TensorReference
from traincheck.sources.recording.recorder import Recorder
from traincheck.sources.replay.state_snapshot import MODULE_INTERNALS, has_compiled_code
from traincheck.sources.tensors.reading import first_elements, hidden_from_modes, is_copyable
from traincheck.sources.tensors.storages import version_of
from traincheck.vocab.builtin_rules import RANDOM_WEIGHTS
from traincheck.vocab.events import NO_CALL, Reading
from traincheck.vocab.facts import facts

MAX_ENTRIES = 64
"""Entries of a list or dict that are looked at; longer ones are data."""
MAX_SUSPECTS = 256
"""Tensors of a model; a program with more keeps data in them."""

_FAST_PATHS = (nn.MultiheadAttention, nn.TransformerEncoder, nn.TransformerEncoderLayer)
"""Modules that compute otherwise in evaluation mode while a function mode is active."""
_OF_STATE = ("state_dict", "_save_to_state_dict", "get_extra_state", "__getstate__")
"""Methods by which a class may save more than its parameters and buffers."""


class PlainTensor(NamedTuple):
    """A tensor in an attribute of a module, and its version at the first call of the model."""

    path: str
    module: weakref.ref[nn.Module]
    attribute: str
    tensor: TensorReference
    version: int | None

    def current(self) -> torch.Tensor | None:
        """The tensor, if it is unchanged and in its place."""
        module, tensor = self.module(), self.tensor()
        if module is None or tensor is None or version_of(tensor) != self.version:
            return None
        return tensor if any(tensor is other for other in _tensors_of(vars(module).get(self.attribute))) else None


def plain_tensors(model: nn.Module, sites: CallSites) -> list[PlainTensor]:
    """The tensors of floating-point numbers in plain attributes of a model. Call inside `hidden_from_modes()`."""
    tensors = []
    for path, module in model.named_modules():
        code = getattr(type(module).__init__, "__code__", None)
        if code is None or not sites.file_of(code):
            continue
        for attribute, value in vars(module).items():
            for tensor in () if attribute in MODULE_INTERNALS else filter(_may_be_weight, _tensors_of(value)):
                reference = TensorReference(tensor)
                tensors.append(PlainTensor(path, weakref.ref(module), attribute, reference, version_of(tensor)))
        if len(tensors) > MAX_SUSPECTS:
            return []
    return tensors


def _tensors_of(value: Any) -> Iterator[torch.Tensor]:
    if type(value) is torch.Tensor:
        yield value
    elif type(value) in (list, tuple, dict) and len(value) <= MAX_ENTRIES:
        for entry in value.values() if isinstance(value, dict) else value:
            if type(entry) is torch.Tensor:
                yield entry


def _may_be_weight(tensor: torch.Tensor) -> bool:
    return tensor.is_floating_point() and tensor.numel() > 1 and not tensor.requires_grad and is_copyable(tensor)


def random_weights(
    model: nn.Module, tensors: Iterable[PlainTensor], sites: CallSites
) -> Iterator[tuple[PlainTensor, str]]:
    """Those of the tensors that nothing has changed, that random numbers made, and that nothing else handles; each with
    the site that made it. Call inside `hidden_from_modes()`."""
    from traincheck.sources.modules.constructor_code import is_handled_elsewhere, random_site  # seldom needed

    if has_compiled_code() or any(isinstance(m, _FAST_PATHS) and not m.training for m in model.modules()):
        return
    registered = [*nn.Module.parameters(model), *nn.Module.buffers(model)]
    memory = {tensor.untyped_storage().data_ptr() for tensor in registered if is_copyable(tensor)}
    names = {name for module in model.modules() for name in (*module._parameters, *module._buffers)}
    site_of: dict[tuple[type, str], str] = {}
    for suspect in tensors:
        tensor, module = suspect.current(), suspect.module()
        if tensor is None or module is None or tensor.untyped_storage().data_ptr() in memory or not _varies(tensor):
            continue
        attribute = suspect.attribute
        key = type(module), attribute
        if key not in site_of:
            site = "" if _saves_more(model, suspect.path) else random_site(module, attribute, sites)
            handled = site and is_handled_elsewhere(module, attribute, sites, is_parameter=attribute in names)
            site_of[key] = "" if handled else site
        if site_of[key]:
            yield suspect, site_of[key]


def _varies(tensor: torch.Tensor) -> bool:
    """Whether most elements differ, as random numbers of a continuous distribution do."""
    elements = first_elements(tensor)
    return bool(2 * torch.unique(elements.float()).numel() > elements.numel())


def _saves_more(model: nn.Module, path: str) -> bool:
    """Whether a module on the way to this path has a method or a hook that may save more."""
    parts = path.split(".") if path else []
    for module in (model.get_submodule(".".join(parts[:count])) for count in range(len(parts) + 1)):
        if module._state_dict_hooks or any(
            getattr(type(module), name, None) is not getattr(nn.Module, name, None) for name in _OF_STATE
        ):
            return True
    return False


# -- calls of models -------------------------------------------------------------------------------------------------


class PlainTensorReadings:
    """Looks at the first two calls of each model in training, with an update between them, and reports."""

    def __init__(self, catalog: VariableCatalog, recorder: Recorder) -> None:
        self._catalog, self._recorder = catalog, recorder
        self._models: PerModule[list[PlainTensor]] = PerModule()  # empty for a model that needs no further look
        self._followed: tuple[weakref.ref[nn.Module], list[tuple[PlainTensor, str]], UseInCall] | None = None

    @property
    def follows(self) -> bool:
        """Whether a call is under way whose operations are followed."""
        return self._followed is not None

    def call_begins(self, module: nn.Module, args: Any) -> None:
        """An outermost module is called."""
        self.leave()  # the last call may never have ended
        if not module.training or not torch.is_grad_enabled() or torch._C._current_graph_task_id() >= 0 or is_traced():
            return
        model = wrapped_model(module)
        tensors = self._models.get(model)
        if tensors is not None and not (tensors and self._recorder.steps.updates_made):
            return
        with hidden_from_modes():
            if tensors is None:
                self._models.put(model, plain_tensors(model, self._recorder.sites))
                return
            self._models.put(model, [])
            if self._recorder.hooks.in_one_thread:
                self._follow(model, tensors, _leaves((args, dict(keywords_of_call(self._recorder)))))

    def _follow(self, model: nn.Module, tensors: list[PlainTensor], inputs: list[torch.Tensor]) -> None:
        given = {id(tensor) for tensor in inputs}
        held = [
            (tensor, suspect)
            for suspect in random_weights(model, tensors, self._recorder.sites)
            if (tensor := suspect[0].tensor()) is not None and id(tensor) not in given
        ]
        if held and inputs:
            use = UseInCall([tensor for tensor, _ in held], inputs)
            self._followed = weakref.ref(model), [suspect for _, suspect in held], use
            insert_mode(use, 0)  # below modes that others suspend and resume

    def call_ends(self, output: Any) -> None:
        """The call of an outermost module ends: report what it used."""
        followed = self._followed
        self.leave()
        if followed is None or (model := followed[0]()) is None:
            return
        _, suspects, use = followed
        outputs, name = _leaves(output), self._catalog.module_name(model)
        with hidden_from_modes():
            used = [suspect for index, suspect in enumerate(suspects) if use.used(index, outputs)]
        for suspect, site in used:
            variable = ".".join(filter(None, (name, plain_name(suspect.path), suspect.attribute)))
            seq, context = self._recorder.next_seq(), facts(kind=MODULE, site=site)
            self._recorder.record_reading(
                Reading(seq, NO_CALL, variable, MODULE, RANDOM_WEIGHTS, True, context=context)
            )

    def leave(self) -> None:
        """Follow no call any more."""
        followed, self._followed = self._followed, None
        if followed is not None:
            remove_mode(followed[2])


def _leaves(value: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(value) if isinstance(leaf, torch.Tensor)]


# -- the use of a tensor in a call -----------------------------------------------------------------------------------

_INPUT, _PARAMETER, _FIRST = 1, 2, 4
"""What a tensor depends on, as bits: the input of the call, parameters, and from `_FIRST` on the tensors."""


class UseInCall(TorchFunctionMode):  # type: ignore[misc]  # torch is not typed here
    """Follows which results of a call depend on some tensors, on its input and on parameters.

    It holds weak references. Custom functions and functions of libraries hide what they compute. A failure ends it.
    """

    def __init__(self, tensors: Sequence[torch.Tensor], inputs: Iterable[torch.Tensor]) -> None:
        super().__init__()
        self._bits: dict[int, tuple[TensorReference, int]] = {}
        self._combined = 0
        self._weights = 0
        self._is_on = True
        for index, tensor in enumerate(tensors):
            self._put(tensor, _FIRST << index)
        for tensor in inputs:
            self._put(tensor, self._of(tensor) | _INPUT)

    def used(self, index: int, outputs: Iterable[torch.Tensor]) -> bool:
        """Whether the outputs depend on a tensor, which the call used as a weight."""
        bit = _FIRST << index
        depend = [tensor for tensor in outputs if self._of(tensor) & bit]
        return bool(self._weights & bit) and any(tensor.requires_grad for tensor in depend)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if is_replacement(func):
            return original_function(func)(*args, **(kwargs or {}))
        result = func(*args, **kwargs) if kwargs else func(*args)
        if self._is_on and not is_traced() and not FLAGS.get(EXPORTS):
            try:
                with torch._C.DisableTorchFunction():
                    self._follow(func, args, kwargs, result)
            except Exception:
                self._is_on = False
                self._weights = 0
        return result

    def _put(self, tensor: torch.Tensor, bits: int) -> None:
        self._bits[id(tensor)] = TensorReference(tensor), bits

    def _of(self, tensor: torch.Tensor) -> int:
        known = self._bits.get(id(tensor))
        if known is not None and known[0]() is tensor:
            return known[1]
        return _PARAMETER if tensor.requires_grad else 0

    def _follow(self, func: Any, args: Any, kwargs: Any, result: Any) -> None:
        operands = [(tensor, self._of(tensor)) for tensor in _operands((args, list((kwargs or {}).values())), 0)]
        joint = 0
        for _, bits in operands:
            joint |= bits
        results = list(_operands(result, 0))
        if joint >= _FIRST and any(tensor.requires_grad for tensor in results):
            self._judge(operands)
        for tensor in results:
            self._put(tensor, joint)
        name = getattr(func, "__name__", "")
        if operands and (name == "__setitem__" or (name.endswith("_") and not name.endswith("__"))):
            self._put(operands[0][0], joint)

    def _judge(self, operands: Sequence[tuple[torch.Tensor, int]]) -> None:
        """Note which tensors an operation combines with activations, and to which of these it applies parameters."""
        weights = activations = results = 0
        is_parameter_there = False
        for tensor, bits in operands:
            if not (tensor.is_floating_point() or tensor.is_complex()):
                continue
            if bits & _INPUT:
                results |= bits
                activations |= tensor.numel() > 1 and bool(bits & _PARAMETER)
            else:
                weights |= bits if tensor.numel() > 1 else 0
                is_parameter_there |= bits == _PARAMETER
        combined = weights if activations else 0
        if is_parameter_there:
            self._weights |= combined | (self._combined & results)
        self._combined |= combined


def _operands(value: Any, depth: int) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, list | tuple) and depth < 4:
        for entry in value:
            yield from _operands(entry, depth + 1)
