"""The shell blocks of "Living with a book" do what it says, from the recordings of the tutorial on."""

from __future__ import annotations

from pathlib import Path

import pytest
from guides import follow

from recorded_runs import training, write_run


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Where the tutorial has recorded its runs."""
    for name, optimizer in (("regression", "SGD"), ("classifier", "Adam"), ("autoencoder", "AdamW")):
        write_run(tmp_path / "runs" / name, f"{name}.py", training(12, optimizer))
    return tmp_path


def test_living_with_a_book(place: Path) -> None:
    said = follow("living-with-a-book.md", place)
    assert len(said) >= 15
    told = "".join(said.values())
    assert "kept: in a call of Optimizer.zero_grad, some parameter grad is cleared [9238e" in told
    assert "What breaks it: Gradients are not cleared between steps" in told
    assert "1 mute of the older good.jsonl stayed: 9238e" in told
    assert "the reason was: we accumulate over 8 batches on purpose" in told
