"""Finds how many micro-batches a program asked Accelerate to accumulate, and whether it counted them.

`Accelerator(gradient_accumulation_steps=N)` divides each loss by N in its `backward`. Its optimizers update if
`sync_gradients` is true, as it is from the start. Only `accumulate()` counts micro-batches in `step`, and sets the flag
for each Nth of them and for the last one of a loader.

Known limitations: only Accelerate is known. Other libraries accumulate by themselves whatever the program does.
"""

from __future__ import annotations

import sys

_MODULE, _METHOD = "accelerate.accelerator", "backward"

_MAX_FRAMES = 16
"""Frames between the backward of torch and that of Accelerate: ours, those of torch, and those of wrappers."""


EARLY, DUE = "early", "due"
"""Whether the accelerator has counted fewer than N micro-batches before the update, or all of them."""


def accumulation_before_update() -> tuple[int, str]:
    """Return N, and whether the update is early or due, if an accelerator lets an update follow this backward.

    Otherwise, and at the end of a loader, return 0 and nothing.
    """
    frame = sys._getframe(1)
    for _ in range(_MAX_FRAMES):
        if frame.f_code.co_name == _METHOD and frame.f_globals.get("__name__") == _MODULE:
            return _of_accelerator(frame.f_locals.get("self"))
        if frame.f_back is None:
            break
        frame = frame.f_back
    return 0, ""


def _of_accelerator(accelerator: object) -> tuple[int, str]:
    state = getattr(accelerator, "gradient_state", None)
    number, step = (getattr(accelerator, name, None) for name in ("gradient_accumulation_steps", "step"))
    if not isinstance(number, int) or not isinstance(step, int) or number <= 1:
        return 0, ""  # another release may count otherwise
    if getattr(state, "end_of_dataloader", None) is not False or getattr(state, "sync_gradients", None) is not True:
        return 0, ""
    return number, DUE if step > 0 and step % number == 0 else EARLY
