"""Describes the modules of a model by their classes, buffers and plain attributes: flags, words, fractional numbers.

Integers are left out, because most of them are sizes, and so are numbers of many digits, because a program has computed
them. An attribute that a program changes while it trains (a temperature) is said to vary from the first change on.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from traincheck.sources.modules.live_modules import class_of_model, plain_name
from traincheck.sources.modules.variables import VariableCatalog
from traincheck.sources.tensors.reading import dtype_name
from traincheck.vocab.events import without_positions

MAX_DIGITS = 6
MAX_WORD = 24
"""Longer texts are no words that select something."""
VARIES = "varies"


class ModuleAttributes:
    """Remembers which attributes changed from one description to the next."""

    def __init__(self) -> None:
        self._seen: dict[tuple[str, str], object] = {}

    def describe(self, catalog: VariableCatalog) -> dict[str, tuple[str, ...]]:
        """The lines about the modules of each outermost module, by its class."""
        lines: dict[str, set[str]] = {}
        for root in catalog.models():
            model = catalog.module_name(root).partition("#")[0]
            for name, module in root.named_modules():
                path = plain_name(name)
                attributes = ", ".join(self._attributes(f"{catalog.module_name(root)}.{path}", module))
                kind = without_positions(f".{path}")[1:] if path else "the model"
                of_model = lines.setdefault(model, set())
                of_model.add(f"{kind} is {class_of_model(module).__name__}({attributes})")
                of_model.update(f"{kind} has the buffer {buffer}" for buffer in _buffers(module))
        return {model: tuple(sorted(of_model)) for model, of_model in lines.items()}

    def _attributes(self, path: str, module: Any) -> Iterator[str]:
        for name, value in sorted(vars(module).items()):
            if name.startswith("_") or name == "training" or not _is_plain(value):
                continue
            key = path, name
            if self._seen.setdefault(key, value) != value:
                self._seen[key] = VARIES
            yield f"{name}={self._seen[key]}"


def _buffers(module: torch.nn.Module) -> Iterator[str]:
    """The registered buffers of a module, without those of its children."""
    for name, tensor in module.named_buffers(recurse=False):
        ending = ", which checkpoints leave out" if name in module._non_persistent_buffers_set else ""
        yield f"{name} of {dtype_name(tensor.dtype)}{ending}"


def _is_plain(value: object) -> bool:
    if type(value) is str:
        return len(value) <= MAX_WORD and value.replace("-", "_").isidentifier()
    return type(value) is bool or (type(value) is float and float(f"{value:.{MAX_DIGITS}g}") == value)
