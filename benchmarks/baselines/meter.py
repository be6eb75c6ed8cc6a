"""Records loss and gradient norm of the program that this process runs."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook


def meter(file: Path, *, anomaly: bool) -> None:
    """Append to `file` a JSON line for each backward (the loss) and for each update (the norm of the gradients that the
    optimizer holds). Of several ranks only the first is metered; `anomaly` puts all of them under anomaly mode."""
    torch.autograd.set_detect_anomaly(anomaly)
    if os.environ.get("RANK", "0") != "0":
        return
    backward = torch.Tensor.backward

    def note(**values: float) -> None:
        with file.open("a") as notes:
            print(json.dumps(values), file=notes)

    def metered(self: torch.Tensor, *args: Any, **kwargs: Any) -> None:
        if self.numel() == 1:
            note(loss=self.item())
        backward(self, *args, **kwargs)

    def measured(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        held = [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
        norms = [torch.linalg.vector_norm(_local(grad.detach()).float()) for grad in held if not grad.is_sparse]
        note(norm=torch.stack(norms).norm().item() if norms else 0.0)

    torch.Tensor.backward = metered  # type: ignore[method-assign]
    register_optimizer_step_pre_hook(measured)


def _local(tensor: torch.Tensor) -> torch.Tensor:
    """Return the local part of a distributed tensor."""
    part: torch.Tensor = getattr(tensor, "_local_tensor", tensor)
    return part
