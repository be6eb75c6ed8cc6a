"""The shell blocks of "Managing rule books" run as shown, on the recordings of the tutorial."""

from __future__ import annotations

from pathlib import Path

import pytest
from guides import follow

from recorded_runs import training, write_run


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with the three runs of the tutorial."""
    for name, optimizer in (("regression", "SGD"), ("classifier", "Adam"), ("autoencoder", "AdamW")):
        write_run(tmp_path / "runs" / name, f"{name}.py", training(12, optimizer))
    return tmp_path


def test_managing_rule_books(folder: Path) -> None:
    outputs = follow("managing-rule-books.md", folder)
    assert len(outputs) >= 15
    text = "".join(outputs.values())
    assert "kept: in a call of Optimizer.zero_grad, some parameter grad is cleared [9238e" in text
    assert "If it breaks: Gradients are not cleared between steps [gradients-not-cleared]" in text
    assert "1 mute of the older good.jsonl stayed: 9238e" in text
    assert "the reason was: we accumulate over 8 batches on purpose" in text
