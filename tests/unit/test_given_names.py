"""Names that the user matches with `--map` come before those that are matched by value."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from recorded_operations import recorded
from traincheck.cli.main import main
from traincheck.trace.folder import RunFolder
from traincheck.trace.operation_files import OperationWriter
from traincheck.trace.run_notes import Manifest
from traincheck.vocab.events import TRAIN, Window
from traincheck.vocab.operations import StepOperations

WIDTH = 8


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(2))
        self.qkv, self.head = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x).relu()
        q, k, v = self.qkv(x).split(WIDTH, dim=-1)
        return self.head((q @ k.T).softmax(-1) @ v)


class Port(nn.Module):
    """The same model with other names, and one weight each for queries, keys and values."""

    def __init__(self, scale: float = 1.0) -> None:
        super().__init__()
        net = Net()
        self.stack, self.out = nn.ModuleList(nn.Sequential(layer) for layer in net.layers), net.head
        self.q, self.k, self.v = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        with torch.no_grad():
            for own, weight, bias in zip(
                (self.q, self.k, self.v), net.qkv.weight.split(WIDTH), net.qkv.bias.split(WIDTH), strict=True
            ):
                own.weight.copy_(weight * scale)
                own.bias.copy_(bias * scale)
            self.stack[1][0].weight.mul_(scale)
            self.out.weight.mul_(scale)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.stack:
            x = layer(x).relu()
        return self.out((self.q(x) @ self.k(x).T).softmax(-1) @ self.v(x))


class Twins(nn.Module):
    """Two layers with the same values. Of their names, the port has those of the other layer."""

    def __init__(self, port: bool) -> None:
        super().__init__()
        self.port = port
        self.first, self.second = (nn.Linear(WIDTH, WIDTH) for _ in range(2))
        self.head = nn.Linear(WIDTH, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first, second = (self.second, self.first) if self.port else (self.first, self.second)
        return self.head(second(first(x).relu()))


def swapped() -> Twins:
    twins = Twins(port=True)
    twins.first, twins.second = twins.second, twins.first
    return twins


def record(path: Path, make: Callable[[], nn.Module]) -> Path:
    """Record two steps into a run folder."""
    steps: list[StepOperations] = []
    torch.manual_seed(0)
    with recorded(steps):
        model = make()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        generator = torch.Generator().manual_seed(1)
        for _ in range(2):
            loss = F.cross_entropy(model(torch.randn(6, WIDTH, generator=generator)), torch.arange(6) % 4)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    folder = RunFolder.create(path, Manifest(traincheck="1"))
    writer = OperationWriter(folder.path, 1)
    for step in steps:
        writer.add(step)
    writer.feed(Window(0, 1, TRAIN))
    return path


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("names")
    record(folder / "net", Net)
    record(folder / "scaled", lambda: Port(1.5))
    record(folder / "twins", lambda: Twins(port=False))
    record(folder / "swapped", swapped)
    return folder


BY_HAND = ("--map", "layers.*=stack.*.0", "--map", "qkv=q,k,v", "--map", "head=out")


def test_parameters_with_other_values_are_compared_by_hand(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", str(runs / "net"), str(runs / "scaled"), *BY_HAND, "--json"]) == 3
    report = json.loads(capsys.readouterr().out)
    weights = {origin["module"] for origin in report["origins"] if origin["kind"] == "initial weights"}
    assert weights == {"Net.layers.1.weight", "Net.qkv.weight", "Net.qkv.bias", "Net.head.weight"}
    assert report["map"]["head=out"] == {"Port.out": "Net.head"}
    assert report["map"]["qkv=q,k,v"]["Port.q.bias, Port.k.bias, Port.v.bias"] == "Net.qkv.bias"
    assert report["only"] == {"a": [], "b": []}


def test_the_report_names_what_was_given(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", str(runs / "net"), str(runs / "scaled"), *BY_HAND]) == 3
    printed = capsys.readouterr().out
    assert "  by hand: layers.*=stack.*.0 (2 names of scaled)\n" in printed and "qkv=q,k,v (2 names" in printed


def test_a_name_by_hand_comes_before_an_equal_name(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The layers changed their names, so those with equal names are different layers."""
    command = ["compare", str(runs / "twins"), str(runs / "swapped")]
    assert main(command) == 3
    capsys.readouterr()
    assert main([*command, "--map", "first=second", "--map", "second=first"]) == 0
    assert capsys.readouterr().out.startswith("equal: ")
    assert main([*command, "--map", "first=second"]) == 0, "the other layer is matched by value"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("layers", "expected OLD=NEW, a name in the first run and its name in the second"),
        ("a,b=c,d", "expected one name on one side at least"),
        ("layers.*=stack", "expected as many * in each name"),
        ("layer.*=stack.*", "a name in the first run in place of 'layer.*', such as layers.*"),
        ("layers.0=stac.0", "a name in the second run in place of 'stac.0', such as stack.0"),
        ("stack.0=layers.0", "It is a name in the other run"),
        ("layers.0.weight=stack.0", "names with two modules or two parameters in both runs"),
        ("qkv.weight=q.weight", "as many elements in both runs; Net.qkv.weight has 24x8, Port.q.weight has 8x8"),
        ("qkv=q,k", "as many elements in both runs; Net.qkv.weight has 24x8, Port.q.weight has 8x8, Port.k.weight"),
    ],
)
def test_names_that_do_not_fit(runs: Path, capsys: pytest.CaptureFixture[str], text: str, expected: str) -> None:
    assert main(["compare", str(runs / "net"), str(runs / "scaled"), "--map", text]) == 2
    printed = " ".join(capsys.readouterr().err.split())
    assert f"--map was given '{text}'; expected " in printed and expected in printed
