"""What the compiler of torch traced, as lines: operations, numbers, and what good runs never compiled."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
import torch._dynamo
import torch.nn.functional as F
from torch import nn

import traincheck
from observed_process import observing
from torch_version import TORCH
from traincheck.checking.offline import check_folder
from traincheck.inference.accept_run import accept
from traincheck.relations.consistent.computation import DESCRIPTIONS

leaves_modules_whole = pytest.mark.skipif(TORCH < (2, 6), reason="older compilers have a module as one operation")


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.drop = nn.Dropout(0.1)
        self.residual = True

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.drop(F.gelu(self.linear(x)))
        return x + 0.3 * y if self.residual else y


class Net(nn.Module):
    def __init__(self, layers: int = 2) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Block() for _ in range(layers))
        self.head = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return self.head(x.mean(1).float())


@pytest.fixture(autouse=True)
def nothing_compiled() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def train(net: Net, seed: int = 0, batch: int = 2, backend: str = "eager") -> None:
    torch.manual_seed(seed)
    compiled = torch.compile(net, backend=backend)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(4):
        optimizer.zero_grad()
        compiled(torch.randn(batch, 5, 4)).sum().backward()
        optimizer.step()


def described(body: Callable[[], object]) -> dict[str, set[str]]:
    """The lines of compiled code, by attribute."""
    with observing(DESCRIPTIONS) as seen:
        body()
    assert seen.faults == []
    lines: dict[str, set[str]] = {}
    for window in seen.windows:
        for reading in window.readings:
            if reading.variable == "compiled code of Net":
                lines.setdefault(reading.attribute, set()).update(str(reading.value).split("\n")[1:])
    return lines


@leaves_modules_whole
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_a_compiled_graph_is_lines_with_modules(backend: str) -> None:
    lines = described(lambda: train(Net(), backend=backend))
    assert lines["operations"] == {
        "layers.*.linear: linear <- input, state, state",
        "layers.*.linear: linear <- add, state, state",
        "layers.*: gelu <- linear",
        "layers.*.drop: dropout(~, True, False) <- gelu",
        "layers.*: mul(~) <- dropout",
        "layers.*: add <- input, mul",
        "layers.*: add <- add, mul",
        "mean(1) <- add",
        "float <- mean",
        "head: linear <- float, state, state",
    }
    assert lines["numbers"] == {"layers.*.drop: dropout.1=0.1", "layers.*: mul.0=0.3"}


def test_another_batch_size_and_depth_change_no_line() -> None:
    lines = described(lambda: train(Net()))
    torch._dynamo.reset()
    assert described(lambda: train(Net(layers=3), batch=7)) == lines


def test_what_good_runs_never_compiled_is_an_error(tmp_path: Path) -> None:
    def recorded(name: str, change: Callable[[Net], object] = lambda net: None) -> Path:
        torch._dynamo.reset()
        net = Net()
        change(net)
        with traincheck.observe(tmp_path / name):
            train(net, seed=len(name), batch=len(name), backend="aot_eager")
        return tmp_path / name

    def drop_residual(net: Net) -> None:
        for layer in net.layers:
            layer.residual = False  # type: ignore[assignment]

    book = accept([recorded(name) for name in ("aa", "bbb", "cccc")], tmp_path / "library").book
    assert [f for f in check_folder(recorded("ddddd"), book).report.findings if f.severity == "error"] == []
    found = check_folder(recorded("eeeeee", drop_residual), book).report.findings
    (finding,) = [finding for finding in found if finding.diagnosis in ("computation-differs", "module-differs")]
    observed = " ".join((finding.observed, *(f.expected for f in found)))
    assert finding.severity == "error" and "layers.*" in observed
