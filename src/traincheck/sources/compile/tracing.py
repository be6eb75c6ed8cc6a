"""Traced: whether the compiler of torch reads the code that runs, for a graph of it.

`torch.compiler.is_compiling()` takes two calls of Python to say so, and where a profiler is on (ours, before Python
3.12) each of them is told. So it is written out where it is asked at every call of a function or a module:

    if is_traced() or FLAGS.get(EXPORTS):
"""

from __future__ import annotations

from typing import Any

import torch

is_traced = torch.compiler.is_dynamo_compiling
"""True in the eyes of the compiler, which reads no further then; it says so of this function by its identity."""

FLAGS: dict[str, Any] = vars(torch.compiler)
EXPORTS = "_is_compiling_flag"
"""What is True while `torch.export` runs code to see what it does; missing in a torch without it."""
