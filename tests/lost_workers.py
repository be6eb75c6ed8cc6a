"""Functions that lose their Ray worker, in a module that the worker can import."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

from traincheck.errors import TraceOutOfReach


def lost(work: Callable[[Any], Any], victim: str, mark: str, always: bool, part: Any) -> Any:
    """`work` of `part`; the process is killed over the victim, once or always."""
    if victim in str(part) and (always or not Path(mark).exists()):
        Path(mark).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return work(part)


def faltering(work: Callable[[Any], Any], victim: str, mark: str, always: bool, part: Any) -> Any:
    """`work` of `part`; the victim cannot be read, once."""
    if victim in str(part) and not Path(mark).exists():
        Path(mark).touch()
        raise TraceOutOfReach(str(part), "the network was down")
    return work(part)
