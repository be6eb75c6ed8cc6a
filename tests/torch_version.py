"""Names the torch version of the test run, for tests that need a newer torch."""

from __future__ import annotations

import torch

TORCH = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])
"""Major and minor version of the installed torch, such as `(2, 13)`."""
