"""Checks whether the compiler of torch is tracing the current code.

`torch.compiler.is_compiling()` makes two Python calls, and an active profiler (TrainCheck's, before Python 3.12)
reports each. Callers on hot paths, at every call of a function or module, therefore write the check out:

    if is_traced() or FLAGS.get(EXPORTS):
"""

from __future__ import annotations

from typing import Any

import torch

is_traced = torch.compiler.is_dynamo_compiling
"""True while the compiler traces, which then reads no further; the compiler recognises this function by identity."""

FLAGS: dict[str, Any] = vars(torch.compiler)
EXPORTS = "_is_compiling_flag"
"""The flag that is True while `torch.export` runs code to trace it; missing in builds without export."""
