"""The built-in decoder, and workloads that the user names."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from threaded_ranks import losses_of
from traincheck.errors import BadOption, WorkloadUnusable
from traincheck.sdc.workload.decoder import Decoder, rotated
from traincheck.sdc.workload.sizes import SIZES
from traincheck.sdc.workload.workload import HELD_OUT, evaluation, load_workload, submodules_of

CPU = torch.device("cpu")

OWN = """
import torch
from beside import WIDTH

class Own:
    def __init__(self, seed, device):
        self.seed, self.device = seed, device

    def build_model(self):
        torch.manual_seed(self.seed)
        return torch.nn.Sequential(torch.nn.Linear(WIDTH, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1)).to(self.device)

    def build_optimizer(self, model):
        return torch.optim.SGD(model.parameters(), lr=0.1)

    def batch(self, step):
        return torch.randn(16, WIDTH, generator=torch.Generator().manual_seed(self.seed + step)).to(self.device)

    def loss(self, model, batch):
        return (model(batch) - batch.sum(1, keepdim=True)).pow(2).mean()

def make(seed, device):
    return Own(seed, device)

def broken(seed, device):
    raise OSError("no data here")

def nothing(seed, device):
    return object()

number = 3
"""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "own_work.py").write_text(OWN)
    (tmp_path / "beside.py").write_text("WIDTH = 4\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", ["", *__import__("sys").path])
    for name in ("own_work", "beside"):
        monkeypatch.delitem(__import__("sys").modules, name, raising=False)
    return tmp_path


def train(workload, steps: int = 30) -> list[float]:
    model = workload.build_model()
    return [*losses_of(workload, model, steps), evaluation(workload, model)]


def test_the_decoder_learns_and_is_the_same_by_seed() -> None:
    first, again = (train(load_workload("decoder-tiny", 1, CPU)) for _ in range(2))
    assert first == again != train(load_workload("decoder-tiny", 2, CPU))
    assert abs(first[0] - math.log(64)) < 0.6 and first[-1] < first[0] - 1


@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp64"])
def test_the_decoder_computes_in_other_types(dtype: str) -> None:
    workload = load_workload(f"decoder-tiny-{dtype}", 0, CPU)
    model = workload.build_model()
    loss = workload.loss(model, workload.batch(1))
    loss.backward()
    assert loss.isfinite() and all(p.grad is not None and p.grad.dtype == p.dtype for p in model.parameters())


def test_the_largest_has_the_shapes_of_llama() -> None:
    with torch.device("meta"):
        model = Decoder(SIZES["8b"])
    assert sum(p.numel() for p in model.parameters()) == 8_030_261_248


def test_attention_is_causal() -> None:
    model = load_workload("decoder-tiny", 0, CPU).build_model()
    tokens = torch.arange(16).view(1, 16)
    other = tokens.clone()
    other[0, 10] = 60
    first, second = model(tokens), model(other)
    assert torch.equal(first[0, :10], second[0, :10]) and not torch.equal(first[0, 10:], second[0, 10:])


def test_rotation_keeps_lengths_and_depends_on_distance() -> None:
    torch.manual_seed(0)
    query, key = torch.randn(8, dtype=torch.float64), torch.randn(8, dtype=torch.float64)
    turned = [rotated(vector.expand(1, 1, 12, 8), 100.0)[0, 0] for vector in (query, key)]
    assert torch.allclose(turned[0].norm(dim=-1), query.norm())
    products = turned[0] @ turned[1].T
    assert torch.allclose(products.diagonal(3), products[0, 3].expand(9), rtol=1e-5)


def test_batches_are_of_their_step() -> None:
    workload = load_workload("decoder-tiny", 0, CPU)
    assert torch.equal(workload.batch(3), workload.batch(3)) and not torch.equal(workload.batch(3), workload.batch(4))
    assert not torch.equal(workload.batch(HELD_OUT), workload.batch(1))


def test_submodules_are_named_by_kind(home: Path) -> None:
    workload = load_workload("decoder-tiny", 0, CPU)
    kinds = submodules_of(workload, workload.build_model())
    assert kinds["layers.1.feed_forward"] == "feed-forward" and kinds["head"] == "head" and len(kinds) == 11
    own = load_workload("own_work.py:make", 0, CPU)
    assert submodules_of(own, own.build_model()) == {"0": "Linear", "1": "Tanh", "2": "Linear"}


@pytest.mark.parametrize("named", ["own_work.py:make", "own_work:make"])
def test_a_workload_of_the_user(home: Path, named: str) -> None:
    losses = train(load_workload(named, 0, CPU))
    assert losses[-1] < losses[0]


@pytest.mark.parametrize(
    ("named", "part"),
    [
        ("decoder-huge", "decoder-tiny|small"),
        ("decoder-tiny-int8", "fp32|bf16"),
        ("mlp", "FILE.py:FUNCTION"),
    ],
)
def test_a_name_that_is_none(named: str, part: str) -> None:
    with pytest.raises(BadOption) as error:
        load_workload(named, 0, CPU)
    assert "--workload" in str(error.value) and part in str(error.value)


@pytest.mark.parametrize(
    ("named", "part"),
    [
        ("nowhere.py:make", "no such file"),
        ("nowhere:make", "ModuleNotFoundError"),
        ("bad.py:make", "SyntaxError"),
        ("own_work.py:mak", "has no function 'mak' (it has Own, make"),
        ("own_work.py:number", "has no function 'number'"),
        ("own_work.py:broken", "OSError: no data here"),
        ("own_work.py:nothing", "has no build_model and no build_optimizer and no batch and no loss"),
    ],
)
def test_a_workload_that_cannot_be_used(home: Path, named: str, part: str) -> None:
    (home / "bad.py").write_text("def make(:\n")
    with pytest.raises(WorkloadUnusable) as error:
        load_workload(named, 0, CPU)
    assert part in str(error.value)
