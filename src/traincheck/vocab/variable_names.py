"""Names of variables and modules: the class of the outermost module, then the path (`Net.layers.3.weight`)."""

from __future__ import annotations

import functools
import re

_POSITION = re.compile(r"\.\d+(?=\.|$)")


@functools.lru_cache(10_000)
def without_positions(name: str) -> str:
    """The name with `*` for positions in lists of modules, so that modules of one kind share it."""
    return _POSITION.sub(".*", name)
