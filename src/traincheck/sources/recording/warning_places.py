"""Gives a warning the place that it has without TrainCheck.

A warning names the line that called the function which warns, and Python shows it once for each such line. Where a
function mode or a wrapper of TrainCheck is the caller, Python takes a line of TrainCheck. So such a warning is issued
again with the line of the program that called: its filters, and whether it was shown before, are judged for that line.

Known limitations: a warning whose `stacklevel` reaches beyond the frames of TrainCheck names a line of torch. A warning
is lost if a filter ignores it except for a module of the program.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any

import torch.overrides

_OURS = str(Path(__file__).resolve().parents[2]) + os.sep
_CALLING = frozenset(("__torch_function__", "__torch_dispatch__", "_described", "_recorded", "wrapper"))
"""Functions of TrainCheck that call a function for the program."""


def show_in_program(show: Callable[[Any], None], message: warnings.WarningMessage) -> None:
    """Show a warning by `show`; one with a place in TrainCheck is issued again with its place in the program."""
    caller = None
    with suppress(Exception):  # then it keeps its place
        caller = _caller_of(message)
    if caller is None:
        show(message)
        return
    warnings.warn_explicit(
        message.message,
        message.category,
        caller.f_code.co_filename,
        caller.f_lineno,
        caller.f_globals.get("__name__") or "<string>",
        caller.f_globals.setdefault("__warningregistry__", {}),
        source=message.source,
    )


def _caller_of(message: warnings.WarningMessage) -> FrameType | None:
    """Return the frame of the program that a warning belongs to, and forget that it was shown at our line, or once.

    Returns None for a warning with another place.
    """
    frame: FrameType | None = sys._getframe(2) if message.filename.startswith(_OURS) else None
    while frame is not None and frame.f_code.co_filename != message.filename:
        frame = frame.f_back
    if frame is None or frame.f_code.co_name not in _CALLING:
        return None
    caller = _program_above(frame)
    if caller is not None:
        frame.f_globals.get("__warningregistry__", {}).clear()
        warnings.onceregistry.pop((str(message.message), message.category), None)  # type: ignore[attr-defined]
    return caller


def _program_above(frame: FrameType) -> FrameType | None:
    """Return the frame of the program that called the function which `frame` calls for it."""
    now: FrameType | None = frame
    while now is not None:
        file = now.f_code.co_filename
        if file == torch.overrides.__file__ and now.f_back is not None:
            now = now.f_back.f_back  # the function itself, which handed its call to the function mode
        elif file.startswith(_OURS):
            now = now.f_back
        else:
            break
    return now
