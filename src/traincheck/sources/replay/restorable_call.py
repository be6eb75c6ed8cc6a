"""Saves what a call of a model depends on when the call begins, so that it can be executed again.

See Note [Restored state] in state_snapshot.py.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from types import FrameType
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_hook
from torch.nn.parallel import DistributedDataParallel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from traincheck.sources.modules.live_modules import buffers_of, plain_name, unwrap_compiled
from traincheck.sources.recording.frames import keywords_of_module_call, local_values
from traincheck.sources.replay.fingerprints import CannotReplay
from traincheck.sources.replay.state_snapshot import (
    AttributeSnapshot,
    RandomStates,
    autocast_settings,
    has_compiled_code,
    iterator_of,
    without_hooks,
)
from traincheck.sources.tensors.reading import hidden_from_modes, is_copyable, kind_of

ROOT = "the result"
MAX_GAPS = 64 * 1024**2
"""Bytes between the elements of a tensor that a copy of it may have as well."""

COLLECTIVES = ("c10d", "_c10d_functional", "_c10d_functional_autograd")
"""Namespaces of operations that wait for other ranks."""


Note = Callable[[str, Any, Any], Any]
"""Receives the name, the output and the arguments of each module inside a call, except in compiled code. What it
returns takes the place of the output, unless it is None."""


class RestorableCall:
    """A call of a model, with copies of its arguments and of the state that it begins with.

    Create it when the call begins. Raises CannotReplay where the call cannot be executed again.
    """

    def __init__(self, name: str, module: nn.Module, args: Any, keywords: Any) -> None:
        inner = module.module if isinstance(module, DistributedDataParallel) else module
        self.name, self.outermost, self.module = name, module, inner
        self.site = ""
        self._called = _compiled_around(inner) or inner
        if self._called is not inner and inner is not module:
            raise CannotReplay("it is a distributed model inside a compiled one")
        self.modules = list(inner.modules())
        _check_replayable(inner, self.modules)
        self.arguments = copied((tuple(args), dict(keywords)))
        self._random = RandomStates()
        self._autocast = autocast_settings()
        self._attributes = AttributeSnapshot(self.modules)
        self._buffers = [
            (inner_module, key, buffer.detach().clone())
            for inner_module in self.modules
            for key, buffer in inner_module._buffers.items()
            if buffer is not None
        ]
        self._names = {id(inner_module): plain_name(key) or ROOT for key, inner_module in inner.named_modules()}
        self.versions = {id(parameter): parameter._version for parameter in inner.parameters()}

    @property
    def unchanged(self) -> bool:
        """Whether the parameters are unmodified since the call began."""
        return all(self.versions.get(id(parameter)) == parameter._version for parameter in self.module.parameters())

    @property
    def autocast_dtypes(self) -> list[torch.dtype]:
        """The dtypes in which autocast computes a part of the call."""
        return [settings["dtype"] for settings in self._autocast if settings["enabled"]]

    @contextmanager
    def restored(self, parameters: Iterable[torch.Tensor] = ()) -> Iterator[None]:
        """Restore the state of the call inside the block, without hooks of the program, also of `parameters`.

        The later state returns after the block. Errors inside are raised as CannotReplay.
        """
        now, attributes = RandomStates(), AttributeSnapshot(self.modules, also=self._attributes)
        try:
            with without_hooks(self.modules, parameters), self._buffers_as_they_were():
                self._attributes.restore()
                self._random.restore()
                yield
        except CannotReplay:
            raise
        except Exception as error:
            hooked = any(module._forward_hooks or module._forward_pre_hooks for module in self.modules)
            note = " (a replay does not call the hooks of the program)" if hooked else ""
            raise CannotReplay(f"{type(error).__name__}: {error}{note}") from error
        finally:
            now.restore()
            attributes.restore(unseen_writes=True)

    @contextmanager
    def executing(self, several_ranks: bool, note: Note | None, arguments: Any = None) -> Iterator[Any]:
        """Execute the call with its arguments, or with others; yields its output. Use it inside `restored`."""
        args, keywords = copied(self.arguments if arguments is None else arguments)

        def on_output(module: nn.Module, arguments: Any, output: Any) -> Any:
            name = self._names.get(id(module))
            if note is None or name is None:
                return None
            return note(name, output, (arguments, keywords_of_module_call()))

        with ExitStack() as stack:
            compiled = has_compiled_code()
            if note is not None and not compiled:
                stack.callback(register_module_forward_hook(on_output).remove)
            if several_ranks and not compiled:
                stack.enter_context(_NoCollectives())
            for autocast in self._autocast:
                stack.enter_context(torch.autocast(**autocast))
            with torch.enable_grad():
                output = self._called(*args, **keywords)
            yield output

    @contextmanager
    def _buffers_as_they_were(self) -> Iterator[None]:
        """Replace the buffers by copies of their earlier values.

        Compiled code identifies buffers by identity; there the memory is swapped instead.
        """
        now = [(module, key, module._buffers[key]) for module, key, _ in self._buffers]
        compiled, memory = has_compiled_code(), []
        try:
            for (module, key, before), (_, _, buffer) in zip(self._buffers, now, strict=True):
                if compiled and buffer is not None:
                    memory.append((buffer, buffer.data))
                    buffer.data = before.clone()
                else:
                    module._buffers[key] = before.clone()
            yield
        finally:
            for buffer, data in memory:
                buffer.data = data
            for module, key, buffer in now:
                module._buffers[key] = buffer


_MAX_FRAMES = 40
"""Frames between a compiled call and this module."""


def _compiled_around(module: nn.Module) -> nn.Module | None:
    """Return the compiled wrapper of a module, where the current call goes through it."""
    if "torch._dynamo.eval_frame" not in sys.modules:
        return None
    frame: FrameType | None = sys._getframe(1)
    for _ in range(_MAX_FRAMES):
        if frame is None:
            return None
        if frame.f_code.co_name == "_call_impl":
            caller = local_values(frame, ("self",)).get("self")
            if caller is not module and isinstance(caller, nn.Module) and unwrap_compiled(caller) is module:
                return caller
        frame = frame.f_back
    return None


class _NoCollectives(TorchDispatchMode):  # type: ignore[misc]  # torch does not say what it is
    """Raises on collectives: a rank that replays alone must not wait for other ranks."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace in COLLECTIVES:
            raise CannotReplay(f"it waits for other ranks ({func})")
        return func(*args, **(kwargs or {}))


def _check_replayable(module: nn.Module, modules: Sequence[nn.Module]) -> None:
    for inner in modules:
        if isinstance(inner, nn.SyncBatchNorm):
            raise CannotReplay("its layers wait for other ranks (SyncBatchNorm)")
        if type(inner).__name__.startswith(("FullyShardedDataParallel", "FSDP")):
            raise CannotReplay("its parameters are sharded")
    iterator = iterator_of(modules)
    if iterator:
        raise CannotReplay(f"it holds a {iterator}, which another execution would advance")
    with hidden_from_modes():
        for tensor in (*module.parameters(), *buffers_of(module)):
            if not is_copyable(tensor):
                raise CannotReplay(f"it holds a {kind_of(tensor)}, which TrainCheck does not copy")


def tensors_in(output: Any) -> list[torch.Tensor]:
    """Return the plain tensors in an output, in order."""
    return [leaf for leaf in tree_leaves(output) if type(leaf) in (torch.Tensor, nn.Parameter)]


def copied(value: Any) -> Any:
    """Return arguments with a copy of each tensor. Raises CannotReplay for tensors that cannot be copied."""

    def copied_leaf(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        if not is_copyable(leaf):
            raise CannotReplay(f"it is given a {kind_of(leaf)}, which TrainCheck does not copy")
        return copy_of(leaf).requires_grad_(leaf.requires_grad)

    with hidden_from_modes():
        return tree_map(copied_leaf, value)


def copy_of(tensor: torch.Tensor) -> torch.Tensor:
    """Return a copy with the strides of `tensor`, also of a view with gaps, or of one that repeats elements.

    torch chooses kernels by strides, and two kernels may round differently. Call under `hidden_from_modes`.
    """
    tensor = tensor.detach()
    copy = tensor.clone()
    if type(tensor) is not torch.Tensor or tensor.layout is not torch.strided or tensor.is_nested or not tensor.numel():
        return copy
    sizes, strides = tensor.shape, tensor.stride()
    span = 1 + sum((size - 1) * stride for size, stride in zip(sizes, strides, strict=True))
    if copy.stride() == strides or (span - copy.numel()) * copy.element_size() > MAX_GAPS:
        return copy
    return tensor.as_strided((span,), (1,)).clone().as_strided(sizes, strides, 0)
