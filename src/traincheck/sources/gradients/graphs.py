"""Describes the autograd graph of a backward, module by module, for the source `graph`.

Note [A graph in lines]
torch keeps the operations between the parameters and the loss as a graph. Each operation becomes a line such as
`softmax(dim=-1) <- masked_fill`: its name, its plain attributes, its dtype if that is not float32, and what it takes.
torch numbers operations in the order in which they are called (`torch.autograd._get_sequence_nr`), so the numbers at
the start and the end of a module call show which operations are its own. An operation takes operations of its module
(by name), results of other modules (by path), parameters (by name), and `-` where no gradient flows. Equal lines of one
module count once, so the length of a sequence does not matter. Positions in lists of modules are written `*`.

Note [No sizes]
Another batch or width must not change a line. So sizes, strides and positions are left out, and so are operations that
only arrange memory (views, copies), because torch chooses them by shape. Numbers (the factor of a multiplication) are
described apart, because some programs change them while they train. A number that may follow from a size, such as one
over the square root of a width, is left out: whether it does may depend on the batch size.

A saved tensor that a hook has packed is never read: that can start a recomputation. Others show the form of masks and
targets, see graph_contents.py.

Known limitations: older releases of torch (2.4) report neither dtypes nor numbers. Operations of compiled code are one
node, so eager and compiled runs are not compared. The graph of a reentrant checkpoint ends at it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch

from traincheck.sources.gradients.graph_contents import expected_tokens, is_absent, mask_form, unpacked
from traincheck.sources.gradients.unreduced_gradients import sharded_by_whole
from traincheck.sources.modules.module_calls import Span
from traincheck.sources.modules.variables import Variable, VariableCatalog
from traincheck.sources.tensors.program_numbers import MAX_INTEGER, may_be_size, sizes_and_powers
from traincheck.vocab.events import without_positions

PROGRAM = "program"
"""Stands for operations outside any module."""

NO_GRADIENT, LEAF = "-", "leaf"

MAX_NODES = 100_000
"""Larger graphs are not described."""

_ARRANGES = re.compile(r"(Unsafe)?View|ReshapeAlias|Reshape|Expand|Clone|Alias|AsStrided|Contiguous")
_WRAPPERS = ("torch.distributed.fsdp", "torch.distributed._composable", "torch.nn.parallel")
"""Modules of torch whose functions only say when a gradient arrives."""
_TAIL = re.compile(r"Backward\d*$")
_SIZES = re.compile(
    r"size|stride|shape|start|end|index|split|offset|numel|batch|seed|philox|max_|options|layout|device"
)
_WORDS = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")

_OF_TWO = 2

_FACTORS = ("alpha", "beta")
"""Attributes that are 1 unless a program sets them."""

_LAST = 1 << 63
"""Attributes are unsigned: from here on they stand for negative numbers."""


class Lines(NamedTuple):
    """The lines of a module, sorted."""

    path: str
    operations: list[str]
    numbers: list[str]


def describe(roots: Sequence[Any], spans: Sequence[Span], catalog: VariableCatalog) -> tuple[list[Lines], int]:
    """The lines of each module in the graph that ends at `roots`, and the number of nodes.

    `spans` are the latest module calls. A graph with more than `MAX_NODES` nodes has no lines.
    """
    nodes = _nodes_of(roots)
    return list(_Description(nodes, spans, catalog, roots).by_module()), len(nodes)


def _nodes_of(roots: Iterable[Any]) -> list[Any]:
    """All nodes of a graph; none of one that is too large."""
    found: dict[Any, None] = {}
    waiting = [root for root in roots if root is not None]
    while waiting:
        node = waiting.pop()
        if node in found:
            continue
        found[node] = None
        if len(found) > MAX_NODES:
            return []
        waiting.extend(taken for taken, _ in node.next_functions if taken is not None)
    return list(found)


@dataclass(slots=True, eq=False)
class _Owner:
    """A call of a module, or the program around all calls."""

    path: str
    operations: dict[str, None] = field(default_factory=dict)
    numbers: dict[str, None] = field(default_factory=dict)


class _Description:
    """The lines of one graph."""

    def __init__(
        self, nodes: Sequence[Any], calls: Sequence[Span], catalog: VariableCatalog, roots: Sequence[Any]
    ) -> None:
        self._catalog = catalog
        self._roots = roots
        self._sharded: dict[int, torch.Tensor] | None = None  # searched at the first unknown tensor
        numbered = sorted(
            (node._sequence_nr(), position, node) for position, node in enumerate(nodes) if not _is_leaf(node)
        )
        self._nodes = [node for _, _, node in numbered]
        self._owners = dict(self._with_owners(numbered, calls))
        self._sizes = _sizes_of(self._nodes)
        self._products = dict(self._biased_products())
        self._absorbed = {product for product, _ in self._products.values()}

    def by_module(self) -> Iterator[Lines]:
        """The lines of each module."""
        owners: dict[_Owner, None] = {}
        for node in self._nodes:
            owner = self._owners[node]
            owners[owner] = None
            if _is_arranging(node) or node in self._absorbed:
                continue
            name, attributes, numbers = self._named(node), *_attributes_of(node, self._sizes)
            taken = dict.fromkeys(self._taken(node, owner))
            shown = f"{name}({', '.join(attributes)})" if attributes else name
            owner.operations[f"{shown}{_dtype_of(node)} <- {', '.join(taken)}"] = None
            for number in numbers:
                owner.numbers[f"{name}.{number}"] = None
            if form := mask_form(node):
                owner.numbers[f"{name}.mask={form}"] = None
            if tokens := expected_tokens(node, self._nodes):
                owner.numbers[f"{name}.target={tokens}"] = None
        if not self._nodes:
            return  # too large a graph
        program = next((owner for owner in owners if owner.path == PROGRAM), None) or _Owner(PROGRAM)
        owners[program] = None
        for root in self._roots:
            program.operations[f"loss <- {self._resolved(root, program)}"] = None
        for owner in owners:
            yield Lines(owner.path, sorted(owner.operations), sorted(owner.numbers))

    def _with_owners(
        self, numbered: Sequence[tuple[int, int, Any]], calls: Sequence[Span]
    ) -> Iterator[tuple[Any, _Owner]]:
        """Each node with the innermost call that made it."""
        program = _Owner(PROGRAM)
        first = numbered[0][0] if numbered else 0
        waiting = sorted((call for call in calls if call.end > first), key=lambda call: (-call.start, call.end))
        around: list[tuple[int, _Owner]] = []
        for number, _, node in numbered:
            while waiting and waiting[-1].start <= number:
                call = waiting.pop()
                module = call.module()
                if call.end > number and module is not None:
                    around.append((call.end, _Owner(self._catalog.module_name(module))))
            while around and around[-1][0] <= number:
                around.pop()
            yield node, around[-1][1] if around else program

    def _biased_products(self) -> Iterator[tuple[Any, tuple[Any, Any]]]:
        """Each addition of a bias to a matrix product, with the product and the bias.

        torch fuses both into `addmm` or not, depending on the shape of the input, so they get its name.
        """
        for node in self._nodes:
            if _name_of(node) == "add" and len(node.next_functions) == _OF_TWO:
                first, second = (_without_arranging(taken) for taken, _ in node.next_functions)
                for product, bias in ((first, second), (second, first)):
                    is_product = product is not None and not _is_leaf(product) and _name_of(product) == "mm"
                    if is_product and (bias is None or _is_leaf(bias)):
                        yield node, (product, bias)

    def _named(self, node: Any) -> str:
        return "addmm" if node in self._products else _name_of(node)

    def _taken(self, node: Any, owner: _Owner) -> Iterator[str]:
        if node in self._products:
            product, bias = self._products[node]
            yield self._resolved(bias, owner)
            node = product
        for taken, _ in node.next_functions:
            yield self._resolved(taken, owner)

    def _resolved(self, node: Any, owner: _Owner) -> str:
        """What an operation of `owner` takes from `node`, in words."""
        node = _without_arranging(node)
        if node is None:
            return NO_GRADIENT
        if _is_leaf(node):
            variable = self._variable_of(node.variable) if hasattr(node, "variable") else None
            return LEAF if variable is None else _relative(variable.name, owner.path)
        maker = self._owners[node]
        if maker is owner:
            return self._named(node)
        return _relative(maker.path, owner.path)

    def _variable_of(self, tensor: torch.Tensor) -> Variable | None:
        """The variable of a tensor that the graph ends at: a parameter, whole or sharded."""
        variable = self._catalog.find(tensor)
        if variable is not None:
            return variable
        if self._sharded is None:
            self._sharded = sharded_by_whole(self._catalog.live_modules.living())
        sharded = self._sharded.get(id(tensor))
        return None if sharded is None else self._catalog.find(sharded)


def _without_arranging(node: Any) -> Any:
    """The first node from `node` on that computes something; None if nothing needs a gradient there."""
    while node is not None and not _is_leaf(node) and _is_arranging(node):
        node = next((taken for taken, _ in node.next_functions if taken is not None), None)
    return node


def _relative(path: str, around: str) -> str:
    """`path` as seen from the module `around`, without positions in lists."""
    inside = path.removeprefix(f"{around}.")
    if inside == path:
        inside = path if path == PROGRAM else path.partition(".")[2] or path
    return without_positions(f".{inside}")[1:]


def _is_leaf(node: Any) -> bool:
    return hasattr(node, "variable") or not hasattr(node, "next_functions")


def _is_arranging(node: Any) -> bool:
    if _ARRANGES.fullmatch(_TAIL.sub("", node.name())) is not None:
        return True
    function = getattr(type(node), "_forward_cls", None)
    return function is not None and str(function.__module__).startswith(_WRAPPERS)


def _name_of(node: Any) -> str:
    """The name of the operation as torch's users know it: `layer_norm`, `nll_loss`; that of a Function stays."""
    name = _TAIL.sub("", node.name().rpartition("::")[2])
    return name if isinstance(node, torch.autograd.function.BackwardCFunction) else _WORDS.sub("_", name).lower()


_attribute_names: dict[type, tuple[tuple[str, ...], tuple[str, ...]]] = {}


def _attributes_of(node: Any, sizes: frozenset[float]) -> tuple[list[str], list[str]]:
    """The attributes of an operation that do not depend on sizes: those that are part of its line, and the numbers."""
    plain, saved = _attribute_names_of(node)
    divides = _name_of(node) == "div"
    parts, numbers = [], []
    for name in plain:
        try:
            value = getattr(node, name)
        except RuntimeError:
            continue  # freed by an earlier backward
        short = name.removeprefix("_saved_")
        if type(value) in (int, float) and short in _FACTORS and value == 1:
            continue
        if type(value) is float or (type(value) is int and short in ("other", *_FACTORS)):
            if not may_be_size(float(value), sizes, divides=divides):
                numbers.append(f"{short}={float(value):.6g}")
        else:
            text = _plain(value)
            if text is not None:
                parts.append(f"{short}={text}")
    has_optional = len(saved) > len(node.next_functions)
    for name in saved:
        kept = getattr(node, name)
        if has_optional and is_absent(kept):
            parts.append(f"without {name.removeprefix('_raw_saved_')}")
        number = _wrapped_number(kept, node)
        if number is not None and not may_be_size(number, sizes, divides=divides):
            numbers.append(f"{name.removeprefix('_raw_saved_')}={number:.6g}")
    return parts, numbers


def _attribute_names_of(node: Any) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The names of plain attributes, and of saved tensors."""
    kind = type(node)
    names = _attribute_names.get(kind)
    if names is None:
        found = dir(kind)
        saved = tuple(name for name in found if name.startswith("_raw_saved_"))
        plain = tuple(
            name
            for name in found
            if name.startswith("_saved_") and f"_raw{name}" not in saved and not _SIZES.search(name)
        )
        names = _attribute_names[kind] = plain, saved
    return names


def _wrapped_number(saved: Any, node: Any) -> float | None:
    """The number of a program that torch keeps as a tensor of its own: `0.3` in `0.3 * x`.

    It is known by its dtype, which is not that of the result. A tensor that a hook has packed is left alone.
    """
    tensor = unpacked(saved)
    if tensor is None or tensor.dim() or tensor.device.type != "cpu" or tensor.requires_grad:
        return None
    if tensor.dtype not in (torch.float64, torch.int64) or tensor.dtype is _result_of(node):
        return None
    return float(tensor)


def _plain(value: Any) -> str | None:
    """A flag, a word or a few small integers as text; None for everything else."""
    if isinstance(value, (bool, str)):
        return str(value)
    if type(value) is int:
        value = value - 2 * _LAST if value >= _LAST else value
        return str(value) if abs(value) <= MAX_INTEGER else None
    if isinstance(value, tuple) and value and all(type(item) in (int, bool) for item in value):
        items = [_plain(item) for item in value]
        return None if None in items else f"[{' '.join(map(str, items))}]"
    return None


def _sizes_of(nodes: Iterable[Any]) -> frozenset[float]:
    """Numbers that follow from the sizes of tensors, as powers of them."""
    sizes: set[int] = set()
    for node in nodes:
        for metadata in getattr(node, "_input_metadata", ()):
            shape = [int(size) for size in metadata.shape]
            sizes.update(shape)
            sizes.add(math.prod(shape))
    return sizes_and_powers(sizes)


def _dtype_of(node: Any) -> str:
    """The dtype of the result, where it is not float32."""
    dtype = _result_of(node)
    return "" if dtype is torch.float32 else f" {str(dtype).removeprefix('torch.')}"


def _result_of(node: Any) -> torch.dtype:
    """The dtype of the result; float32 in releases of torch that do not report it."""
    metadata = getattr(node, "_input_metadata", ())
    return metadata[0].dtype if metadata else torch.float32
