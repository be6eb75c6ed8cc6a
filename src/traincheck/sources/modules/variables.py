"""The catalog of variables: the name of each parameter, the module that owns it, and the optimizers that hold it."""

from __future__ import annotations

import itertools
import sys
import weakref
from collections.abc import Callable, Collection, Iterator, Sequence, Set
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed

from traincheck.sources.modules.live_modules import (
    LiveModules,
    children,
    class_of_model,
    has_parameters,
    named_parameters,
    plain_name,
    unwrap_compiled,
    wrapped_model,
)
from traincheck.sources.recording.patches import TensorReference
from traincheck.sources.tensors.reading import PLAIN, is_empty
from traincheck.vocab.events import REPLACED
from traincheck.vocab.facts import Facts, FactValue, facts

THIS, OTHER, NOBODY = "this", "other", "none"

_LOW_PRECISION = 4
"""Floating point with fewer bytes than this is low precision."""

_TORCH_HOOKS = "torch.distributed.algorithms.ddp_comm_hooks"
_AVERAGING_HOOKS = ("default_hooks", "mixed_precision_hooks", "powerSGD_hook", "quantization_hooks")
"""The modules of this package whose hooks average gradients over all ranks."""

_LONGEST_MARK = 24
"""Maximum length of a text attribute that counts as a mark. Names of devices, layouts and modes are shorter."""


@dataclass(slots=True, eq=False)
class Variable:
    """A parameter or buffer of the program; `tensor` is a weak reference, so TrainCheck keeps nothing alive.

    `module` is the first module that owns it, `root` the outermost module around that one. `data_parallel` says whether
    a wrapper averages its gradient over all ranks. `graded` says whether a backward has ever given it a gradient.
    `fact_cache` holds facts built for it, `last_readings` its attributes at the last reading. `sample_history`
    describes a large parameter (parameter_changes.py). `holders` are the optimizers that hold it, and `owner` is the
    first of them by name. `released` says that the last optimizer that held it is gone. `filled` says that it had
    elements at first sight. `version` counts the writes to it up to its last backward (gradients.py).
    `unchanged_updates` counts the updates in a row that left it unchanged although it had a gradient.
    """

    name: str
    tensor: weakref.ref[torch.Tensor]
    owned: bool
    module: weakref.ref[Any] | None = None
    root: weakref.ref[Any] | None = None
    data_parallel: bool = False
    graded: bool = False
    holders: frozenset[str] = frozenset()
    owner: str = ""
    released: bool = False
    filled: bool = True
    version: int = -1
    aliases: tuple[str, ...] = ()
    fact_cache: dict[tuple[bool, str, str], Facts] = field(default_factory=dict)
    last_readings: dict[str, object] = field(default_factory=dict)
    sample_history: Any = None
    unchanged_updates: int = 0

    def hold(self, optimizer: str, *, held: bool) -> None:
        """Add or remove an optimizer that holds the variable."""
        self.holders = self.holders | {optimizer} if held else self.holders - {optimizer}
        self.released = self.released and not held
        self.owner = min(self.holders, default="")

    def facts(self, tensor: torch.Tensor, viewer: str) -> Facts:
        """The facts of the variable itself; equal facts are one object. `held` is this, other or none, as seen from the
        optimizer `viewer`."""
        held = THIS if viewer in self.holders else OTHER if self.holders else NOBODY
        key = (tensor.requires_grad, held, marks(tensor) if tensor.__dict__ else "")
        cached = self.fact_cache.get(key)
        if cached is None:
            cached = self.fact_cache[key] = facts(
                **_placement(tensor),
                attributes=key[2],
                requires_grad=tensor.requires_grad,
                tied=len(self.aliases) > 1,
                held=held,
                owned=self.owned,
                precision="low" if tensor.element_size() < _LOW_PRECISION else "full",
                scalar=tensor.numel() == 1,
            )
        return cached


def _placement(tensor: torch.Tensor) -> dict[str, FactValue]:
    """Whether a tensor on a device mesh is replicated on each device; no facts for other tensors."""
    placements = getattr(tensor, "placements", None) if hasattr(tensor, "_local_tensor") else None
    return {} if placements is None else {"replicated": all(placed.is_replicate() for placed in placements)}


def marks(tensor: torch.Tensor) -> str:
    """The marks that a framework has set on a parameter, joined by +: flags that are True, and words (`mode=sharded`).

    Numbers are left out, because they may be ids or sizes. Names with a leading underscore are left out, because torch
    and other libraries keep internal state there.
    """
    names = []
    for name, value in tensor.__dict__.items():
        if value is True and not name.startswith("_"):
            names.append(name)
        elif type(value) is str and len(value) <= _LONGEST_MARK and value.isidentifier() and not name.startswith("_"):
            names.append(f"{name}={value}")
    return "+".join(sorted(names))


def averages_gradients(module: Any) -> bool:
    """Whether a module is a data-parallel wrapper that averages gradients over all ranks.

    As `DistributedDataParallel`, it has a `process_group` and a context manager `no_sync`. With a communication hook of
    the program, a wrapper may average something else, for example among the ranks of one node (local SGD).
    """
    if not hasattr(type(module), "no_sync"):
        return False
    group = getattr(module, "process_group", None)
    if group is None or not all(_averages(hook) for hook, *_ in getattr(module, "_comm_hooks", ())):
        return False
    distributed = torch.distributed
    if not (distributed.is_available() and distributed.is_initialized()):
        return False
    return bool(distributed.get_world_size(group) == distributed.get_world_size())


def _averages(hook: Any) -> bool:
    """Whether a communication hook of torch averages over all ranks; one that wraps another hook may not."""
    package, _, module = getattr(hook, "__module__", "").rpartition(".")
    return package == _TORCH_HOOKS and module in _AVERAGING_HOOKS and "<locals>" not in hook.__qualname__


def _averaged_parameters(wrapper: Any) -> Iterator[int]:
    """The ids of the parameters whose gradients a data-parallel wrapper averages."""
    ignored = getattr(wrapper, "parameters_to_ignore", ())
    for name, param in named_parameters(wrapper):
        if name.partition(".")[2] not in ignored:
            yield id(param)


MAX_STALE = 64
"""Maximum number of entries of dead modules before a cleanup, because each cleanup costs more than they do."""


class VariableCatalog:
    """Finds the variables of the program by the identity of their tensors.

    A parameter is named by the class of its outermost module and its qualified name there. A wrapper for several ranks
    around a model does not count: it has a name of its own, and changes none in the model. A parameter that only an
    optimizer holds is named by its position in the optimizer. The catalog searches again when an optimizer holds an
    unknown tensor, when an unknown outermost module is called, or when a module got another parameter or child.
    """

    def __init__(self) -> None:
        self.live_modules = LiveModules()
        self._variables: dict[int, Variable] = {}
        self._optimizers: dict[str, weakref.ref[Any]] = {}
        self._sizes: dict[str, tuple[int, ...]] = {}
        self._modules: dict[int, tuple[weakref.ref[Any], str]] = {}
        self._taken: dict[str, weakref.ref[Any]] = {}  # by name
        self._retired: set[str] = set()
        self._counts: dict[str, int] = {}
        self.has_emptied = False

    # -- optimizers ------------------------------------------------------------------------------------------------

    def add_optimizer(self, optimizer: Any) -> str:
        """The name of `optimizer`, assigned at first sight: its class, numbered from the second on."""
        for name_in_use, reference in list(self._optimizers.items()):
            if reference() is optimizer:
                return name_in_use
        base = type(optimizer).__name__
        self._counts[base] = count = self._counts.get(base, 0) + 1
        name = base if count == 1 else f"{base}#{count}"
        self._optimizers[name] = weakref.ref(optimizer)
        return name

    def hold(self, optimizer: str, tensors: Sequence[torch.Tensor]) -> list[tuple[Variable, torch.Tensor]]:
        """The variables of `tensors`, which an optimizer of another library holds."""
        if any(self.find(tensor) is None for tensor in tensors):
            self.refresh_modules()
        held = []
        for index, tensor in enumerate(tensors):
            variable = self.find(tensor) or self._add(tensor, f"{optimizer}.parameters[{index}]", owned=False)
            if optimizer not in variable.holders:
                variable.hold(optimizer, held=True)
            held.append((variable, tensor))
        return held

    def release(self, optimizer: str) -> None:
        """An optimizer that held variables by `hold` is gone."""
        self._forget_optimizer(optimizer)

    def optimizers(self) -> Iterator[tuple[str, Any]]:
        """The living optimizers by name."""
        for name, reference in list(self._optimizers.items()):
            optimizer = reference()
            if optimizer is None:
                self._forget_optimizer(name)
            else:
                yield name, optimizer

    def _forget_optimizer(self, name: str) -> None:
        self._optimizers.pop(name, None)
        self._sizes.pop(name, None)
        for variable in list(self._variables.values()):
            if name in variable.holders:
                variable.hold(name, held=False)
                variable.released = not variable.holders

    def refresh_holders(self) -> None:
        """Update which optimizer holds which variable; cheap while no parameter group or module changes."""
        if self.live_modules.has_replaced:
            self.refresh_modules()
        for name, optimizer in self.optimizers():
            groups = optimizer.param_groups
            params = [group["params"] for group in groups]
            sizes = tuple(map(len, params))
            if self._sizes.get(name) == sizes and all(map(self._is_current, params)):
                continue
            self._sizes[name] = sizes
            self._update_holders(name, groups)

    def _is_current(self, params: list[torch.Tensor]) -> bool:
        """Whether the first and the last tensor of a group are still known."""
        return not params or (self.find(params[0]) is not None and self.find(params[-1]) is not None)

    def _update_holders(self, name: str, groups: list[dict[str, Any]]) -> None:
        if any(self.find(param) is None for group in groups for param in group["params"]):
            self.refresh_modules()
        for variable in list(self._variables.values()):
            variable.hold(name, held=False)
        for number, group in enumerate(groups):
            for index, param in enumerate(group["params"]):
                variable = self.find(param) or self._add(param, f"{name}.param_groups[{number}][{index}]", owned=False)
                variable.hold(name, held=True)

    # -- modules ---------------------------------------------------------------------------------------------------

    def module_name(self, module: Any) -> str:
        """The qualified name of a module (its class for an outermost one), assigned at first sight."""
        entry = self._modules.get(id(module))
        if entry is not None and entry[0]() is module:
            return entry[1]
        module = unwrap_compiled(module)
        entry = self._modules.get(id(module))
        if entry is not None and entry[0]() is module:
            return entry[1]
        self.live_modules.add(module)
        if has_parameters(module):  # a loss built in every step is not worth a search
            self.refresh_modules()
        entry = self._modules.get(id(module))
        if entry is None or entry[0]() is not module:
            return self._name_outermost(module, self._is_taken)
        return entry[1]

    def model_name(self, module: Any) -> str:
        """The name of an outermost module, or of the model inside if it is a wrapper for several ranks."""
        return self.module_name(wrapped_model(module))

    def ensure_named(self, module: Any) -> None:
        """Name a used module with parameters if TrainCheck did not see its construction."""
        if module not in self.live_modules:
            self.module_name(module)

    def refresh_modules(self) -> None:
        """Find the outermost modules of the program and name their parameters."""
        self.live_modules.has_replaced = False
        modules = self.live_modules.living()
        if len(self._modules) > 2 * len(modules) + MAX_STALE:
            self._drop_dead()
        inner = {id(child) for module in modules for child in children(module)}
        roots = [root for root in modules if id(root) not in inner and "_modules" in root.__dict__]
        wrappers = [root for root in roots if wrapped_model(root) is not root]
        averaged = {key for root in wrappers if averages_gradients(root) for key in _averaged_parameters(root)}
        models = list(map(wrapped_model, wrappers))
        wrapped = set(map(id, models))
        roots = [root for root in roots if wrapped_model(root) is root] + models
        taken = {name for root in (*wrappers, *roots) if (name := self._reported_name(root))} | self._prefixes()
        for wrapper in wrappers:
            name = self._reported_name(wrapper) or self._name_outermost(wrapper, taken.__contains__)
            taken.add(name)
            self._retired.add(name)
        for root in roots:
            prefix = self._reported_name(root)
            if not prefix:
                prefix = self._name_outermost(root, taken.__contains__)
                taken.add(prefix)
            if id(root) in wrapped or class_of_model(root) is not type(root):
                self._retired.add(prefix)
            try:
                self._name_tree(root, prefix, averaged)
            except RuntimeError as error:
                if "changed size during iteration" not in str(error):
                    raise  # another thread is building the module, which gets its name when it is used

    def _prefixes(self) -> set[str]:
        """The first parts of the names of parameters in living modules. What was a model may be a part of one now."""
        return {
            variable.name.partition(".")[0]
            for variable in list(self._variables.values())
            if variable.owned and variable.module is not None and variable.module() is not None
        }

    def _drop_dead(self) -> None:
        """Drop modules that no longer exist, because a program may build new ones all the time."""
        self._modules = {key: entry for key, entry in list(self._modules.items()) if entry[0]() is not None}
        self._taken = {name: reference for name, reference in list(self._taken.items()) if reference() is not None}

    def _name_outermost(self, root: Any, is_taken: Callable[[str], bool]) -> str:
        """Name an outermost module by its class, numbered from the second on.

        A new module gets the name of one that no longer exists, because a program may build one in every step. The name
        of a wrapped model does not come back: Python frees wrappers of several ranks at any time, on each rank at
        another, and the ranks need equal names.
        """
        base = class_of_model(root).__name__
        numbered = (f"{base}#{number}" for number in itertools.count(2))
        names = itertools.chain((base,), numbered)
        name = next(name for name in names if name not in self._retired and not is_taken(name))
        reference = weakref.ref(root)
        self._modules[id(root)], self._taken[name] = (reference, name), reference
        return name

    def _is_taken(self, name: str) -> bool:
        reference = self._taken.get(name)
        holder = None if reference is None else reference()
        return holder is not None and self._reported_name(holder) == name

    def _reported_name(self, root: Any) -> str:
        """The name of an outermost module that is in use already and stays; empty for a new module."""
        entry = self._modules.get(id(root))
        return entry[1] if entry is not None and entry[0]() is root and "." not in entry[1] else ""

    def _name_tree(self, root: Any, prefix: str, averaged: Set[int]) -> None:
        """Name the modules and parameters in `root`. `averaged` are the ids of parameters whose gradients a wrapper
        around it averages."""
        owners: dict[int, weakref.ref[Any]] = {}
        averaged = set(averaged)
        for name, module in root.named_modules():
            reference = weakref.ref(module)
            if averages_gradients(module):
                averaged.update(_averaged_parameters(module))
            name = plain_name(name)
            self._modules[id(module)] = (reference, f"{prefix}.{name}" if name else prefix)
            for param in module._parameters.values():
                owners.setdefault(id(param), reference)
        aliases: dict[int, list[str]] = {}
        for qualified, param in named_parameters(root):
            name = plain_name(qualified)
            aliases.setdefault(id(param), []).append(f"{prefix}.{name}")
            variable = self.find(param)
            if variable is None:
                self._add(param, f"{prefix}.{name}", owned=True)
            elif not variable.owned:
                variable.owned, variable.name = True, f"{prefix}.{name}"
                variable.fact_cache.clear()
        self._disown(root, aliases.keys())
        for key, names in aliases.items():
            variable = self._variables[key]
            variable.module, variable.root = owners.get(key), weakref.ref(root)
            variable.data_parallel = key in averaged
            if variable.aliases != tuple(names):
                variable.aliases = tuple(names)
                variable.fact_cache.clear()

    def _disown(self, root: Any, kept_ids: Collection[int]) -> None:
        """Mark parameters as replaced that `root` no longer has."""
        for key, variable in list(self._variables.items()):
            if key not in kept_ids and variable.owned and variable.root is not None and variable.root() is root:
                variable.owned, variable.name = False, f"{variable.name}{REPLACED}"
                variable.fact_cache.clear()

    def outermost(self) -> list[Any]:
        """The living outermost modules found last: wrappers for several ranks, and the models inside."""
        return [
            module for ref, name in list(self._modules.values()) if "." not in name and (module := ref()) is not None
        ]

    def models(self) -> list[Any]:
        """The living outermost modules found last, without wrappers for several ranks around them."""
        return [module for module in self.outermost() if wrapped_model(module) is module]

    def named_buffers(self) -> Iterator[tuple[str, torch.Tensor]]:
        """The buffers of all models, each with all of its names."""
        for model in self.models():
            prefix = self.module_name(model)
            for name, buffer in model.named_buffers(remove_duplicate=False):
                yield f"{prefix}.{plain_name(name)}", buffer

    # -- variables -------------------------------------------------------------------------------------------------

    def find(self, tensor: torch.Tensor) -> Variable | None:
        """The variable of this tensor."""
        variable = self._variables.get(id(tensor))
        return variable if variable is not None and variable.tensor() is tensor else None

    def is_trained(self, tensor: torch.Tensor) -> bool:
        """Whether an optimizer updates a parameter. Programs often give it the frozen ones as well. Call inside
        `hidden_from_modes()`."""
        variable = self.find(tensor)
        return variable is not None and bool(variable.holders) and tensor.requires_grad

    def _add(self, tensor: torch.Tensor, name: str, *, owned: bool) -> Variable:
        variable = Variable(name, TensorReference(tensor), owned)
        with torch._C.DisableTorchFunction():
            variable.filled = torch.jit.is_tracing() or not is_empty(tensor)  # reading a size would be traced
        self._variables[id(tensor)] = variable
        return variable

    def is_pruned(self, optimizer: str) -> bool:
        """Whether torch prunes a parameter of an optimizer: a hook multiplies it by a mask."""
        prune = sys.modules.get("torch.nn.utils.prune")
        modules = {
            variable.module for variable, _ in self.living() if optimizer in variable.holders and variable.module
        }
        hooks = (hook for module in modules for hook in getattr(module(), "_forward_pre_hooks", {}).values())
        return prune is not None and any(isinstance(hook, prune.BasePruningMethod) for hook in hooks)

    def living(self) -> list[tuple[Variable, torch.Tensor]]:
        """All variables whose tensors are alive and not empty, because an empty tensor has no value.

        `has_emptied` says afterwards whether a trained one was left out that had elements once: DeepSpeed's ZeRO 3
        keeps a parameter empty outside of its module's calls.
        """
        dead, living, emptied = [], [], False
        tracing = torch.jit.is_tracing()  # reading a size would be traced
        with torch._C.DisableTorchFunction():
            for key, variable in list(self._variables.items()):
                tensor = variable.tensor()
                if tensor is None:
                    dead.append(key)
                elif tracing or (tensor.numel() if type(tensor) in PLAIN else not is_empty(tensor)):
                    living.append((variable, tensor))
                elif variable.filled and tensor.requires_grad and type(tensor) in PLAIN:  # else a shard
                    emptied = True
        for key in dead:
            self._variables.pop(key, None)  # another thread may have removed it
        self.has_emptied = emptied
        return living
