"""Names the torch version of the test run, for tests that need a newer torch."""

from __future__ import annotations

import torch

TORCH = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])
"""Major and minor version of the installed torch, such as `(2, 13)`."""


def reports_graph_details() -> bool:
    """Whether nodes of an autograd graph have the dtype of their result, and numbers of the program."""
    node = torch.ones(1, requires_grad=True).mul(2).grad_fn
    return hasattr(node, "_input_metadata") and hasattr(node._raw_saved_other, "unpack_hook")  # type: ignore[union-attr]
