"""Writes calls of torch whose results need no gradient as lines, such as `mul <- max, float32`.

A line has the name of the function, its plain arguments, the dtype of the result if that is not float32, and what the
function takes, see Note [What no gradient shows] in no_grad_operations.py.

Another batch size must not change a line, so integers other than small ones are left out, and so are all that have
no tensor next to them. Fractional numbers are `~` in a line, and described apart, as in sources/gradients/graphs.py.

Note [Rows that no batch holds]
A loop by hand takes batches as slices of one tensor. Their bounds are sizes, but how they lie to each other is not: a
slice begins with the next rows, after a gap, or with rows from before. A wrong bound leaves a gap between all batches.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch

from traincheck.sources.functions.function_owners import FunctionOwners
from traincheck.sources.modules.variables import VariableCatalog
from traincheck.sources.recording.api_names import GRADIENT, function_name, listed_name
from traincheck.sources.recording.patches import TensorReference
from traincheck.sources.tensors.reading import dtype_name
from traincheck.vocab.bounded_cache import BoundedCache

MAX_TENSORS = 5_000
"""From so many tensors on, those that are gone are forgotten."""

ARRANGING = frozenset(
    (
        "view", "reshape", "contiguous", "expand", "expand_as", "view_as", "reshape_as", "flatten", "unflatten",
        "unsqueeze", "squeeze", "to", "cpu", "cuda", "type_as", "pin_memory",
    )
)  # fmt: skip
_VIEWS = ("torch.Tensor.data.__get__", GRADIENT, "torch.Tensor.T.__get__", "torch.Tensor.mT.__get__")
_GRAD = "grad.__get__"
_GRADIENT_OF = "gradient of "
_MAX_SHOWN = 2
"""Larger integers may be sizes."""
FRACTION = "~"
"""Stands for a fractional number, which is described apart."""
_CHANGING = frozenset(("__setitem__", "__iadd__", "__isub__", "__imul__", "__itruediv__"))
_UNNAMED = frozenset(("out", "dtype", "device", "layout", "generator", "requires_grad", "memory_format", "size"))


class Line(NamedTuple):
    """What a call computes for a function of the project, and the fractional numbers in it."""

    owner: str
    operation: str
    numbers: tuple[str, ...]


class _Function(NamedTuple):
    """A function of torch. `name` is empty for functions that no line shows."""

    name: str
    arranges: bool  # only takes or arranges what another function made
    changes: bool  # its first argument


class OperationLines:
    """Writes calls as lines. It remembers which function made a tensor, to name what the next function takes."""

    def __init__(self, catalog: VariableCatalog, owners: FunctionOwners) -> None:
        self._catalog = catalog
        self._owners = owners
        self._made: dict[int, tuple[weakref.ref[torch.Tensor], str]] = {}
        self._slices: dict[int, tuple[weakref.ref[torch.Tensor], int]] = {}  # where the last slice of a tensor ends
        self._functions: BoundedCache[Any, _Function] = BoundedCache()

    def forget_results(self) -> None:
        """Name tensors that were made before now as if their description had begun now."""
        self._made.clear()

    def begin_window(self, *, evaluates: bool, described: bool) -> None:
        """A window begins. `described`: its calls are written; `evaluates`: it takes nothing from windows before."""
        if evaluates:
            self._made.clear()
        if not described or len(self._slices) > MAX_TENSORS:
            self._slices.clear()

    def write(self, func: Any, args: Any, kwargs: Any, result: Any, frame: Any) -> Line | None:
        """The line of a call from `frame` whose result is no part of a graph; None for a call that no line shows."""
        function = self._functions.get(func)
        if function is None:
            function = self._functions.put(func, _function_of(func))
        name = function.name
        if not name:
            return None
        made: list[torch.Tensor] = []
        in_graph = False
        for tensor in result if isinstance(result, (tuple, list)) else (result,):
            if type(tensor) is torch.Tensor:
                made.append(tensor)
                in_graph = in_graph or tensor.requires_grad
        line: Line | None = None
        if function.arranges or (name == "__getitem__" and _arranges(args)):
            source = self._taken(args[0]) if args else ""
            shown = f"{_GRADIENT_OF}{source}" if name == _GRAD else source
        else:
            first = args[0] if args else next(iter((kwargs or {}).values()), None)  # init functions name all arguments
            if not made and not (function.changes and isinstance(first, torch.Tensor)):
                return None
            if in_graph and (torch.is_grad_enabled() or not function.changes):
                return None
            owner, library = self._owners.find(frame)
            if not owner:
                return None
            if library:
                shown, line = library.partition(" <- ")[0], Line(owner, f"calls {library}", ())
            else:
                shown, line = name, Line(owner, *self._direct(name, args, kwargs or {}, made))
        if len(self._made) > MAX_TENSORS:
            self._made = {key: entry for key, entry in self._made.items() if entry[0]() is not None}
        for tensor in made:
            self._made[id(tensor)] = (TensorReference(tensor), shown)
        return line

    def is_named_gradient(self, gradient: Any) -> bool:
        """Whether this gradient was taken before, and no function has changed it since: each is taken many times."""
        entry = self._made.get(id(gradient))
        return entry is not None and entry[1].startswith(_GRADIENT_OF) and entry[0]() is gradient

    def name_results(self, module: torch.nn.Module, results: list[torch.Tensor]) -> None:
        """Name what a model returned without gradients."""
        shown = f"result of {self._model(module)}"
        for tensor in results:
            self._made[id(tensor)] = (TensorReference(tensor), shown)

    def _model(self, module: torch.nn.Module) -> str:
        """The class of a model, and whether an optimizer trains it: a copy of a model has the same class."""
        self._catalog.refresh_holders()
        first = next((parameter for parameter in module.parameters() if parameter.requires_grad), None)
        variable = None if first is None else self._catalog.find(first)
        trained = variable is not None and bool(variable.holders)
        return f"{'trained ' if trained else ''}{type(module).__name__}"

    def _direct(
        self, name: str, args: Any, kwargs: dict[str, Any], made: list[torch.Tensor]
    ) -> tuple[str, tuple[str, ...]]:
        """The operation and the numbers of a call that a function of the project makes itself."""
        operands: list[str] = []
        seen: set[int] = set()
        plain: list[str] = []
        fractions: list[tuple[str, float]] = []
        items = [(str(position), value) for position, value in enumerate(args)]
        items += [(key, value) for key, value in kwargs.items() if key not in _UNNAMED]
        tensors = [tensor for _, value in items for tensor in _tensors_in(value)]
        for _, value in items:
            if isinstance(value, torch.Tensor):
                operands.append("itself" if id(value) in seen else self._taken(value))
                seen.add(id(value))
            else:
                operands += _of_list([self._taken(tensor) for tensor in _tensors_in(value)])
        for key, value in items:
            if type(value) is float:
                fractions.append((key, value))
                text = FRACTION
            else:
                text = plain_argument(value) if tensors else str(value) if isinstance(value, (bool, str)) else ""
            if text:
                plain.append(text if key.isdigit() else f"{key}={text}")
        if name == "__getitem__" and len(args) > 1:
            plain += self._slice_words(args[0], args[1])
        dtype = made[0].dtype if made else torch.float32
        shown = f"{name}({', '.join(plain)})" if plain else name
        ending = "" if dtype is torch.float32 else f" {dtype_name(dtype)}"
        line = f"{shown}{ending}" + (f" <- {', '.join(operands)}" if operands else "")
        if not fractions:
            return line, ()
        from traincheck.sources.tensors.program_numbers import (  # seldom needed at the start
            may_be_size,
            sizes_and_powers,
        )

        sizes = sizes_and_powers(size for tensor in (*tensors, *made) for size in (*tensor.shape, tensor.numel()))
        return line, tuple(
            f"{name}.{key}={value:.6g}"
            for key, value in fractions
            if not may_be_size(value, sizes, divides="div" in name)
        )

    def _slice_words(self, tensor: Any, index: Any) -> Iterator[str]:
        """How a slice of rows lies to the last one of the same tensor, see Note [Rows that no batch holds]."""
        rows = index[0] if type(index) is tuple and index else index
        if type(rows) is not slice or rows.step not in (None, 1) or not isinstance(tensor, torch.Tensor):
            return
        start, stop, _ = rows.indices(len(tensor)) if tensor.dim() else (0, 0, 1)
        entry = self._slices.get(id(tensor))
        self._slices[id(tensor)] = (TensorReference(tensor), stop)
        if start and entry is not None and entry[0]() is tensor:
            last = entry[1]
            yield "the next rows" if start == last else "rows after a gap" if start > last else "rows from before"

    def _taken(self, tensor: Any) -> str:
        """What a function takes, in words."""
        if not isinstance(tensor, torch.Tensor):
            return "-"
        entry = self._made.get(id(tensor))
        if entry is not None and entry[0]() is tensor:
            return entry[1]
        variable = self._catalog.find(tensor)
        if variable is not None:
            return f"state of {variable.name.partition('.')[0]}"
        if tensor.requires_grad:
            return "graph" if tensor.grad_fn is not None else "parameter"
        return dtype_name(tensor.dtype)


def _function_of(func: Any) -> _Function:
    name = _short_name(func)
    return _Function(name, name in ARRANGING or name == _GRAD, _changes(name))


def _short_name(func: Any) -> str:
    """`mul` for `torch.Tensor.mul`; empty for functions that no line shows."""
    resolved = listed_name(func)
    if resolved is None:
        return ""
    if resolved in _VIEWS:
        view = resolved.removeprefix("torch.Tensor.")
        return view if view == _GRAD else "view"
    name = resolved if resolved.endswith(".__set__") else function_name(func)
    if name is None:
        return ""
    return str(name).removeprefix("torch.Tensor.").rpartition("functional.")[2].removeprefix("torch.")


def _tensors_in(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif type(value) in (list, tuple):
        for item in value:
            if isinstance(item, torch.Tensor):
                yield item


def _of_list(operands: list[str]) -> list[str]:
    """The operands in a list, each once. Where some are equal, these are samples, whose order may be chance."""
    different = list(dict.fromkeys(operands))
    return different if len(different) == len(operands) else sorted(different)


def _arranges(args: Any) -> bool:
    """Whether an index only takes parts that a size may determine, such as `x[index]` with an integer."""
    return len(args) > 1 and type(args[1]) is int


def plain_argument(value: Any) -> str:
    """A flag, a word or a small integer as text, an index as it is written; empty for everything else."""
    if isinstance(value, (bool, str)):
        return str(value)
    if type(value) is int:
        return str(value) if abs(value) <= _MAX_SHOWN else ""
    if value is Ellipsis:
        return "..."
    if isinstance(value, slice):
        return ":".join(plain_argument(part) for part in (value.start, value.stop))
    if type(value) in (tuple, list) and not any(isinstance(item, (float, torch.Tensor)) for item in value):
        items = [plain_argument(item) for item in value]
        return f"[{' '.join(items)}]" if any(items) else ""
    return ""


def _changes(name: str) -> bool:
    """Whether a function changes its first argument."""
    if name.endswith("__"):
        return name in _CHANGING or name.endswith("__set__")
    return name.endswith("_")
