"""Finds settings that a program wrote where nothing reads them.

Python accepts any attribute. Only the parameters of a module have `requires_grad`: set on the module it does nothing,
and neither does a misspelled name on a parameter. A program that freezes a part in this way trains it.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator

from torch import nn

from traincheck.sources.modules.live_modules import plain_name

FLAG = "requires_grad"
"""The only flag of a tensor that programs set."""

LIKENESS = 0.85
"""Names that are at least so similar, by `difflib`, are misspelled: `require_grad`, `requires_gradient`."""


def unread_settings(model: nn.Module, name: str) -> Iterator[tuple[str, str]]:
    """The modules and parameters of a model called `name` with such a flag that is False, each with the attribute."""
    for path, module in model.named_modules():
        if module.__dict__.get(FLAG) is False and not hasattr(type(module), FLAG):
            yield f"{name}.{plain_name(path)}" if path else name, FLAG
    for path, parameter in model.named_parameters():
        for attribute, value in parameter.__dict__.items():
            if value is False and difflib.SequenceMatcher(None, attribute, FLAG).ratio() >= LIKENESS:
                yield f"{name}.{plain_name(path)}", attribute
