"""With the whole values of a module, the comparison says which elements of a result differ."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from recorded_operations import recorded
from traincheck.cli.main import main
from traincheck.comparison.element_differences import ElementDifferences, element_differences
from traincheck.comparison.run_comparison import compare_runs
from traincheck.sources.operations import whole_values as module
from traincheck.sources.operations.whole_values import WholeValues
from traincheck.trace.folder import RunFolder
from traincheck.trace.operation_files import OperationWriter, whole_value_writer
from traincheck.trace.run_notes import Manifest
from traincheck.vocab.events import TRAIN, Window
from traincheck.vocab.operations import StepOperations, WholeValue

WIDTH = 16
Change = Callable[[Any], object]


class Changed(nn.Module):
    """Multiplies what a layer returns, and changes it as a wrong kernel would: no operation of torch shows it."""

    def __init__(self, change: Change) -> None:
        super().__init__()
        self.layer, self.change = nn.Linear(WIDTH, WIDTH), change

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.layer(x)
        self.change(hidden.detach().numpy())
        return hidden * 1.0


def by_index(dimension: int, indices: list[int]) -> Change:
    """Adds one at some indices of a dimension of the result."""

    def change(array: Any) -> None:
        array[(slice(None),) * dimension + (indices,)] += 1.0

    return change


def run(path: Path, change: Change, request: str = "Changed@1") -> Path:
    """Record two steps, with whole values."""
    steps: list[StepOperations] = []
    folder = RunFolder.create(path, Manifest(traincheck="1"))
    writer, values = OperationWriter(folder.path, 1), whole_value_writer(folder.path, 1)
    torch.manual_seed(0)
    with recorded(steps, WholeValues(request, values.add)):
        model = Changed(change)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(2):
            optimizer.zero_grad()
            model(torch.randn(3, 8, WIDTH)).sum().backward()
            optimizer.step()
    for step in steps:
        writer.add(step)
    for each in (writer, values):
        each.feed(Window(0, 1, TRAIN))
    return path


def compared(tmp_path: Path, change: Change) -> ElementDifferences:
    a, b = run(tmp_path / "a", by_index(0, [])), run(tmp_path / "b", change)
    found = element_differences(compare_runs(a, b).origins[0], a, b)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("dimension", "indices", "pattern"),
    [
        (2, [4, 5, 6, 7], "only indices 4 to 7, block 2 of 4, of dimension 2 (of 16)"),
        (2, [3, 7, 11, 15], "only each 4th index from 3 to 15 of dimension 2 (of 16)"),
        (1, [2], "only index 2 of dimension 1 (of 8)"),
        (1, [1, 2, 3], "only indices 1 to 3 of dimension 1 (of 8)"),
        (1, [0, 1, 5], "only indices 0, 1, 5 of dimension 1 (of 8)"),
    ],
)
def test_some_indices_of_a_dimension(tmp_path: Path, dimension: int, indices: list[int], pattern: str) -> None:
    found = compared(tmp_path, by_index(dimension, indices))
    assert found.patterns == (pattern,)
    assert found.size == 3 * 8 * WIDTH
    assert found.differing == found.size // (3, 8, WIDTH)[dimension] * len(indices)
    assert found.index[dimension] in indices and found.largest == pytest.approx(1.0)
    assert found.pair[1] - found.pair[0] == pytest.approx(1.0)


def test_a_factor_and_another_order(tmp_path: Path) -> None:
    def doubled(array: Any) -> None:
        array *= 2.0

    def reversed_batch(array: Any) -> None:
        array[:] = array[::-1].copy()

    def rotated(array: Any) -> None:
        array[:] = array[:, [*range(1, 8), 0]].copy()

    assert compared(tmp_path / "factor", doubled).patterns == ("the second run has 2 times the values of the first",)
    order = "the second run has the same parts in another order, along dimension 0"
    assert compared(tmp_path / "order", reversed_batch).patterns[0] == order
    assert compared(tmp_path / "rows", rotated).patterns == (order.replace("dimension 0", "dimension 1"),)


def test_it_is_printed_and_a_recording_without_values_says_how(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    a, b = run(tmp_path / "a", by_index(0, [])), run(tmp_path / "b", by_index(1, [2]))
    assert main(["compare", str(a), str(b)]) == 3
    printed = capsys.readouterr().out
    assert "  elements  48 of 384 differ; the largest difference is 1 at (" in printed
    assert "            only index 2 of dimension 1 (of 8)\n" in printed
    c = run(tmp_path / "c", by_index(1, [2]), "Changed@2")
    assert main(["compare", str(a), str(c)]) == 3
    printed = capsys.readouterr().out
    assert "elements  48" not in printed
    assert '  To see which elements differ, record both runs with --record "operations:Changed@1".\n' in printed


def test_only_the_requested_module_and_step_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[WholeValue] = []
    whole = WholeValues("Net.blocks.1@3", kept.append)
    assert whole.wants(3, "Net.blocks.1") and whole.wants(3, "Net.blocks.1.attention")
    assert not whole.wants(2, "Net.blocks.1") and not whole.wants(3, "Net.blocks.10") and not whole.wants(3, "")
    assert WholeValues("@1", kept.append).wants(1, "") and not WholeValues("@1", kept.append).wants(1, "Net")
    monkeypatch.setattr(module, "MAX_WHOLE_ELEMENTS", 8)
    steps: list[StepOperations] = []
    with recorded(steps, WholeValues("Linear@1", kept.append)):
        layer = nn.Linear(2, 4)
        optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
        layer(torch.ones(3, 2)).sum().backward()
        optimizer.step()
    by_shape = {each.shape: len(each.packed_values) for each in kept}
    assert by_shape[(3, 2)] == 4 * 6 and by_shape[(4, 2)] == 4 * 8
    assert by_shape[(3, 4)] == 0, "a value with too many elements has a shape alone"
