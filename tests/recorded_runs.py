"""Writes run folders without training, from windows described as text."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from traincheck.testing.readable_traces import from_text
from traincheck.trace.folder import RunFolder
from traincheck.trace.run_notes import Manifest
from traincheck.trace.writer import TraceWriter
from traincheck.vocab.events import Window

STEP = """
window train step=1
  lifecycle torch.optim.SGD.zero_grad < torch.optim.Optimizer.zero_grad receiver=SGD
    change Net.w parameter.grad some -> none changed owner=SGD
  lifecycle torch.autograd.backward
    change Net.w parameter.grad none -> some changed owner=SGD
  lifecycle torch.optim.SGD.step < torch.optim.Optimizer.step receiver=SGD context={"grads":"some"}
    change Net.w parameter.data some -> some changed owner=SGD context={"held":"this"}
    change Net.frozen parameter.data some -> some owner=SGD context={"held":"none"}
"""
"""A training step as it should be."""


def training(steps: int = 8, optimizer: str = "SGD", rank: int = 0) -> list[Window]:
    """Return `steps` training steps with an optimizer of this name."""
    windows = from_text(STEP.replace("SGD", optimizer) * steps)
    return [replace(window, step=number, rank=rank) for number, window in enumerate(windows, start=1)]


def write_run(
    path: Path,
    script: str,
    processes: Mapping[tuple[int, int], Iterable[Window]] | Iterable[Window],
    started: str = "2026-01-02T03:04:05+00:00",
) -> Path:
    """Create a run folder of these windows, by rank and process (one process by default)."""
    folder = RunFolder.create(path, Manifest(script=script, script_digest=f"digest of {script}", started=started))
    windows_of = processes if isinstance(processes, Mapping) else {(0, 1): processes}
    for (rank, process), windows in windows_of.items():
        with TraceWriter(folder.path, rank, process) as writer:
            for window in windows:
                writer.write(window)
    return folder.path
