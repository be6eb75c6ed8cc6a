"""Describes what a compiled callable computes, from the graphs that the compiler of torch hands to its backend.

Nothing is observed while compiled code runs, and a backward sees it as one operation. But the compiler has traced the
program into graphs, and passes each to the backend. TrainCheck reads a graph at that moment and changes nothing. Its
operations become lines in the form of sources/functions/operation_lines.py, such as `layers.*.drop: dropout(~, True,
False) <- gelu`: the module, the function, its plain arguments and what it takes. `input` and `state` stand for what the
callable gets, and for parameters and buffers.

Known limitations: what the compiler leaves to Python between two graphs is not seen, nor is a graph that a process
takes from a cache of compiled packages. A graph that is compiled in a window that is not watched is not reported.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch

from traincheck.sources.base import replace
from traincheck.sources.functions.operation_lines import ARRANGING, FRACTION, plain_argument
from traincheck.sources.recording.api_names import release
from traincheck.sources.recording.descriptions import Descriptions
from traincheck.sources.recording.patches import UndoStack
from traincheck.sources.recording.recorder import Recorder
from traincheck.sources.tensors.program_numbers import may_be_size, sizes_and_powers
from traincheck.sources.tensors.reading import dtype_name
from traincheck.vocab.demand import COMPILED_CODE, GRAPH, OPERATION_NUMBERS, OPERATIONS, Demand
from traincheck.vocab.events import NO_CALL, without_positions

BACKENDS = ("_TorchCompileInductorWrapper", "_TorchCompileWrapper")
"""The classes of torch whose objects pass a graph to a backend."""

SOURCE = "graph"
"""The source whose readings these are."""

MAX_NODES = 100_000
"""Longer graphs are not described."""

_INDEX = re.compile(r"\[(\d+)\]")
_STATE = re.compile(r".*_(parameters|buffers)_(\w+?)_*")


class CompiledGraphs:
    """Reports each graph that is compiled. `callable_name` is the name of the compiled callable that runs now."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._descriptions = Descriptions(recorder, GRAPH)
        self._attributes: tuple[str, ...] = ()
        self.callable_name = ""

    def attach(self, undo: UndoStack, demand: Demand) -> None:
        """Read graphs from now on, as `demand` requests them."""
        self._attributes = tuple(name for name in (OPERATIONS, OPERATION_NUMBERS) if demand.takes_reading(GRAPH, name))
        for name in BACKENDS if self._attributes else ():
            if hasattr(torch, name):
                replace(undo, getattr(torch, name), "__call__", self._reading)

    def _reading(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def compile_graph(backend: Any, graph_module: Any, *args: Any, **kwargs: Any) -> Any:
            try:  # guarded functions do not run while hooks are suspended
                self._report(graph_module)
            except Exception as error:
                self._recorder.fault(SOURCE, error)
            return original(backend, graph_module, *args, **kwargs)

        return compile_graph

    def _report(self, graph_module: Any) -> None:
        recorder, nodes = self._recorder, list(graph_module.graph.nodes)
        if not (recorder.active and recorder.watching and self.callable_name) or len(nodes) > MAX_NODES:
            return
        if SOURCE in recorder.availability.disabled:
            return
        lines = _Lines(nodes)
        operations = sorted({line.operation for line in lines.of_nodes})
        numbers = sorted({number for line in lines.of_nodes for number in line.numbers})
        for attribute, texts in ((OPERATIONS, operations), (OPERATION_NUMBERS, numbers)):
            if texts and attribute in self._attributes:
                text = "\n".join((release(), *texts))
                self._descriptions.report(NO_CALL, f"{COMPILED_CODE}{self.callable_name}", attribute, text)


class _Line(NamedTuple):
    operation: str
    numbers: tuple[str, ...]


class _Lines:
    """The lines of the nodes of a graph."""

    def __init__(self, nodes: list[Any]) -> None:
        self._sizes = sizes_and_powers(_sizes_of(nodes))
        self.of_nodes = list(self._lines(nodes))

    def _lines(self, nodes: list[Any]) -> Iterator[_Line]:
        for node in nodes:
            if node.op.startswith("call_") and not _is_arranging(node):
                yield self._line(node)

    def _line(self, node: Any) -> _Line:
        name, place = _name_of(node), _place_of(node)
        plain: list[str] = []
        numbers: list[str] = []
        items = [(str(position), value) for position, value in enumerate(node.args)]
        for key, value in (*items, *node.kwargs.items()):
            text = FRACTION if type(value) is float else _argument(value)
            if type(value) is float and not may_be_size(value, self._sizes, divides="div" in name):
                numbers.append(f"{place}{name}.{key}={value:.6g}")
            if text:
                plain.append(text if key.isdigit() else f"{key}={text}")
        shown = f"{name}({', '.join(plain)})" if plain else name
        operands = [_operand(taken) for taken in node.all_input_nodes if _is_tensor(taken)]
        return _Line(
            f"{place}{shown}{_dtype_of(node)}" + (f" <- {', '.join(operands)}" if operands else ""), tuple(numbers)
        )


def _name_of(node: Any) -> str:
    """The name of a function or method, or the class of a module that the compiler has left whole."""
    target = node.target
    if node.op == "call_module":
        return type(node.graph.owning_module.get_submodule(target)).__name__
    return (target if isinstance(target, str) else getattr(target, "__name__", str(target))).rpartition(".")[2]


def _is_arranging(node: Any) -> bool:
    name = _name_of(node)
    return name in ARRANGING or (name == "getitem" and len(node.args) > 1 and type(node.args[1]) is int)


def _place_of(node: Any) -> str:
    """The module that an operation belongs to, as the beginning of a line; empty for the callable itself."""
    stack = node.meta.get("nn_module_stack")
    if not stack:
        return ""
    path = str(next(reversed(stack.values()))[0])
    inside = _INDEX.sub(r".\1", path).partition(".")[2]
    return f"{without_positions(f'.{inside}')[1:]}: " if inside else ""


def _argument(value: Any) -> str:
    return dtype_name(value) if isinstance(value, torch.dtype) else plain_argument(value)


def _operand(node: Any) -> str:
    """What an operation takes, in words."""
    while node.op.startswith("call_") and _is_arranging(node) and node.all_input_nodes:
        node = node.all_input_nodes[0]
    if node.op == "get_attr":
        return "state"
    if node.op == "placeholder":
        return "state" if _STATE.fullmatch(str(node.target)) else "input"
    return _name_of(node)


def _example(node: Any) -> Any:
    return node.meta.get("example_value", node.meta.get("val"))


def _is_tensor(node: Any) -> bool:
    """Whether a node stands for a tensor or several of them, and not for a size."""
    return node.op == "get_attr" or isinstance(_example(node), (torch.Tensor, tuple, list))


def _dtype_of(node: Any) -> str:
    """The dtype of the result, where it is not float32."""
    example = _example(node)
    if not isinstance(example, torch.Tensor) or example.dtype is torch.float32:
        return ""
    return f" {dtype_name(example.dtype)}"


def _sizes_of(nodes: list[Any]) -> Iterator[int]:
    for node in nodes:
        example = _example(node)
        if isinstance(example, torch.Tensor):
            yield from (size for size in example.shape if type(size) is int)
