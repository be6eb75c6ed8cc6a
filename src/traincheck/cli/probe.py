"""The probe: what can be observed in this interpreter, as JSON on stdout. `traincheck doctor` runs it in a child.

It is the one file here that imports torch, and so it is no part of the command line's own process.
"""

from __future__ import annotations

import json
import sys
from typing import Any

ATTACHED = "traincheck.runtime.launching.child_processes" in sys.modules
"""Whether the bootstrap has run in this process."""

NO_TORCH = (
    "PyTorch is not installed for this Python. To observe training, install TrainCheck where the program finds its "
    "torch; infer, check, report, show and the like work without."
)


def probe() -> dict[str, Any]:
    """Torch and its accelerator, and what each source offers: name, whether it is available, why (not)."""
    found: dict[str, Any] = {"attached": ATTACHED, "torch": None, "accelerator": "", "why": "", "sources": []}
    try:
        import torch
    except Exception as error:
        if isinstance(error, ModuleNotFoundError) and error.name == "torch":
            return {**found, "why": NO_TORCH}
        return {**found, "why": f"torch cannot be imported: {type(error).__name__}: {error}"}
    found["torch"] = str(torch.__version__)
    if torch.cuda.is_available():
        found["accelerator"] = f"{torch.cuda.device_count()} x {torch.cuda.get_device_name(0)}"
    try:
        from traincheck.sources import registry

        found["sources"] = [[name, bool(available), str(reason)] for name, available, reason in registry.offers()]
    except Exception as error:
        found["why"] = f"the sources cannot be asked: {type(error).__name__}: {error}"
    return found


if __name__ == "__main__":
    print(json.dumps(probe()))
