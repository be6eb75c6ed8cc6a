"""TrainCheck catches silent errors in deep learning training. `import traincheck` does not import torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from traincheck.errors import StopTraining, TrainCheckError
from traincheck.runtime.marks import mark
from traincheck.version import __version__

if TYPE_CHECKING:
    from traincheck.runtime.callbacks import before_stop, on_violation
    from traincheck.runtime.observe import checked, observe, stage, step

__all__ = [
    "StopTraining",
    "TrainCheckError",
    "__version__",
    "before_stop",
    "checked",
    "load_ipython_extension",
    "mark",
    "observe",
    "on_violation",
    "stage",
    "step",
]

_LAZY = ("checked", "observe", "stage", "step")
_CALLBACKS = ("before_stop", "on_violation")


def load_ipython_extension(shell: Any) -> None:
    """What `%load_ext traincheck` calls in a notebook: it makes the magic `%%traincheck` known."""
    from traincheck.integrations.notebook import load

    load(shell)


def __getattr__(name: str) -> Any:
    # Imported on use: a child process that imports only our bootstrap should not pay for reports and readers.
    if name in _LAZY:
        from traincheck.runtime import observe

        return getattr(observe, name)
    if name in _CALLBACKS:  # a program that only registers some pays for no reader
        from traincheck.runtime import callbacks

        return getattr(callbacks, name)
    raise AttributeError(f"module 'traincheck' has no attribute {name!r}")
