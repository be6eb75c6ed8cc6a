"""Prints as JSON what can be observed in this interpreter; `traincheck doctor` runs it in a child.

It imports torch, which the command line itself never does.
"""

from __future__ import annotations

import json
import sys
from typing import Any

ATTACHED = "traincheck.runtime.launching.child_processes" in sys.modules
"""Whether the bootstrap has run in this process."""

NO_TORCH = (
    "PyTorch is not installed for this Python. To observe training, install TrainCheck into the environment of the "
    "program; commands such as infer, check, report and show work without PyTorch."
)


def probe() -> dict[str, Any]:
    """Torch, its accelerator, and each source: its name, whether it is available, and the reason."""
    result: dict[str, Any] = {"attached": ATTACHED, "torch": None, "accelerator": "", "why": "", "sources": []}
    try:
        import torch
    except Exception as error:
        if isinstance(error, ModuleNotFoundError) and error.name == "torch":
            return {**result, "why": NO_TORCH}
        return {**result, "why": f"torch cannot be imported: {type(error).__name__}: {error}"}
    result["torch"] = str(torch.__version__)
    if torch.cuda.is_available():
        result["accelerator"] = f"{torch.cuda.device_count()} x {torch.cuda.get_device_name(0)}"
    try:
        from traincheck.sources import registry

        result["sources"] = [[name, bool(available), str(reason)] for name, available, reason in registry.offers()]
    except Exception as error:
        result["why"] = f"the sources cannot be imported: {type(error).__name__}: {error}"
    return result


if __name__ == "__main__":
    print(json.dumps(probe()))
