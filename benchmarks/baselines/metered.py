"""metered.py SCRIPT OUT ARGS...: run a script as Python would, in anomaly mode, and note loss and gradient norm.

A JSON line for each backward (the loss) and for each update (the norm of the gradients that the optimizer holds), in a
file for each rank.
"""

from __future__ import annotations

import json
import os
import runpy
import sys
from pathlib import Path
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook


def main(script: str, out: Path, args: list[str]) -> None:
    """Hook, then run."""
    with (out / f"{os.environ.get('RANK', '0')}.jsonl").open("a") as file:
        meter(lambda found: print(json.dumps(found), file=file, flush=True))
        torch.autograd.set_detect_anomaly(True)
        sys.path[0] = str(Path.cwd())
        sys.argv = [script, *args]
        runpy.run_path(script, run_name="__main__")


def meter(note: Any) -> None:
    """Tell `note` each loss and each gradient norm."""
    backward = torch.Tensor.backward

    def metered(self: torch.Tensor, *args: Any, **kwargs: Any) -> None:
        if self.numel() == 1:
            note({"loss": self.item()})
        backward(self, *args, **kwargs)

    def measured(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        held = [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
        norms = [torch.linalg.vector_norm(grad.detach().float()) for grad in held if not grad.is_sparse]
        note({"norm": torch.stack(norms).norm().item() if norms else 0.0})

    torch.Tensor.backward = metered  # type: ignore[method-assign]
    register_optimizer_step_pre_hook(measured)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3:])
