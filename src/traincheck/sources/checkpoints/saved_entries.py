"""Describes what a checkpoint holds: the names of its entries, with the dtype or the type of each.

Sizes and values are left out, and `*` stands for positions in lists, so that another width, depth or length of the run
changes no line. The state of an optimizer is one line, because people change the class of the optimizer.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from traincheck.sources.recording.descriptions import Descriptions
from traincheck.sources.recording.recorder import Recorder
from traincheck.sources.tensors.reading import form_of
from traincheck.vocab.demand import CHECKPOINT, ENTRIES
from traincheck.vocab.events import SAVED, without_positions

MAX_DEPTH = 6
"""Entries that lie deeper are described by their type."""
MAX_ITEMS = 10_000
"""Items of one list or mapping that are described."""

IN_MEMORY = "a file in memory"

_NUMBERS = re.compile(r"\d+(\.\d+)*")


class SavedEntries:
    """Takes a reading for each file and set of entries that is new."""

    def __init__(self, recorder: Recorder) -> None:
        self._entries = Descriptions(recorder, CHECKPOINT)

    def forget_reported(self) -> None:
        """Report entries again that no reader of windows has got."""
        self._entries.forget_unread()

    def record(self, call: int, saved: Any, target: Any) -> None:
        """Describe what is saved to `target` (a path or a file) in `call`. Call under `hidden_from_modes`."""
        lines = sorted(set(_lines(saved, "", 0)))
        if lines:
            self._entries.report(call, file_name(target), ENTRIES, "\n".join(lines), SAVED)


def file_name(target: Any) -> str:
    """The name of a file without its folder, with `*` for numbers: `epoch-*.pt` is one kind of checkpoint."""
    path = path_of(target)
    return IN_MEMORY if path is None else _NUMBERS.sub("*", path.name)


def path_of(target: Any) -> Path | None:
    """The path of a file, given by a path or an open file; None for a file in memory."""
    path = target if isinstance(target, (str, os.PathLike)) else getattr(target, "name", None)
    return Path(os.fsdecode(path)) if isinstance(path, (str, os.PathLike)) else None


def _lines(value: Any, path: str, depth: int) -> Iterator[str]:
    named = without_positions(f".{path}")[1:] or "the checkpoint"
    if isinstance(value, torch.Tensor):
        yield f"{named} is {form_of(value)}"
    elif isinstance(value, torch.nn.Module):
        yield f"{named} is the whole module {type(value).__name__}"
    elif isinstance(value, Mapping) and depth < MAX_DEPTH:
        if "state" in value and "param_groups" in value:
            yield f"{named} is the state of an optimizer{'' if value['state'] else ' that keeps none'}"
        elif not value:
            yield f"{named} is empty"
        else:
            for key, item in islice(value.items(), MAX_ITEMS):
                yield from _lines(item, f"{path}.{key}" if path else str(key), depth + 1)
    elif isinstance(value, (list, tuple)) and depth < MAX_DEPTH:
        for item in islice(value, MAX_ITEMS):
            yield from _lines(item, f"{path}.0", depth + 1)
    else:
        yield f"{named} is of type {type(value).__name__}"
