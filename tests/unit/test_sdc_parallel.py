"""The decoder that is split over ranks computes what the whole one does; and what several ranks found, as one."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from threaded_ranks import on_each_rank, trained
from traincheck.errors import BadOption, WorkloadUnusable
from traincheck.sdc.faults.fault import Fault
from traincheck.sdc.study.host import Host
from traincheck.sdc.study.plan import Plan, launcher_rank
from traincheck.sdc.study.rank_merge import merged
from traincheck.sdc.workload.parallel import SPLIT
from traincheck.sdc.workload.workload import load_workload, submodules_of

CPU = torch.device("cpu")


def test_the_split_decoder_trains_as_the_whole_one_but_for_rounding() -> None:
    losses, parameters, gradients = trained(load_workload("decoder-tiny-fp64", 3, CPU))
    parts = on_each_rank(lambda host: trained(load_workload("decoder-tiny-fp64", 3, CPU, host)))
    split = 0
    for own, _, _ in parts:
        assert own == pytest.approx(losses, abs=1e-10)
    for whole, index in ((parameters, 1), (gradients, 2)):
        for name, right in whole.items():
            of = [part[index][name] for part in parts]
            dimension = next((dimension for end, dimension in SPLIT.items() if name.endswith(end)), None)
            split += dimension is not None
            if dimension is None:
                assert torch.equal(*of), f"{name} is whole, and not the same on both"
            assert torch.allclose(of[0] if dimension is None else torch.cat(of, dimension), right, rtol=0, atol=1e-10)
    assert split == 2 * 2 * len(SPLIT)


def test_reductions_are_submodules_of_their_own() -> None:
    workload = load_workload("decoder-tiny", 0, CPU, Host(1, 2))
    kinds = submodules_of(workload, workload.build_model())
    assert kinds["layers.1.attention"] == "attention" and kinds["layers.1.attention_summed"] == "reduction"
    assert sum(kind == "reduction" for kind in kinds.values()) == 8 and len(kinds) == 19


def test_a_host_of_one_rank_has_the_whole_workload() -> None:
    names = [name for name, _ in load_workload("decoder-tiny", 0, CPU, Host(0, 1)).build_model().named_modules()]
    assert names == [name for name, _ in load_workload("decoder-tiny", 0, CPU).build_model().named_modules()]


@pytest.mark.parametrize(
    ("named", "size", "message"),
    [
        (
            "decoder-tiny",
            3,
            "--tensor-parallel was given 3; expected a number that divides what the workload has (4 heads",
        ),
        ("decoder-tiny", 4, "(2 heads of keys and values): 2; or a larger --workload"),
        ("decoder-8b", 16, "(8 heads of keys and values): 2 or 4 or 8; or"),
        ("own_parts.py:whole", 2, "own_parts.py:whole has no method tensor_parallel(host); leave the option out"),
    ],
)
def test_indivisible_sizes_are_reported(home: Path, named: str, size: int, message: str) -> None:
    with pytest.raises(BadOption) as error:
        load_workload(named, 0, CPU, Host(0, size))
    assert "--tensor-parallel" in str(error.value) and message in str(error.value)


OWN = """
from traincheck.sdc.workload.workload import load_workload

class Whole:
    build_model = build_optimizer = batch = loss = lambda *_: None

class Parts(Whole):
    def tensor_parallel(self, host):
        return load_workload("decoder-tiny", 0, "cpu", host)

class Nothing(Whole):
    def tensor_parallel(self, host):
        return host.size

class Broken(Whole):
    def tensor_parallel(self, host):
        raise OSError("no parts")

def whole(seed, device): return Whole()
def parts(seed, device): return Parts()
def nothing(seed, device): return Nothing()
def broken(seed, device): return Broken()
"""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "own_parts.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", ["", *__import__("sys").path])
    monkeypatch.delitem(__import__("sys").modules, "own_parts", raising=False)
    return tmp_path


def test_a_workload_of_the_user_makes_its_parts(home: Path) -> None:
    assert load_workload("own_parts.py:parts", 0, CPU, Host(1, 2)).host.rank == 1  # type: ignore[attr-defined]
    with pytest.raises(WorkloadUnusable, match="what tensor_parallel returns, a int, has no build_model"):
        load_workload("own_parts.py:nothing", 0, CPU, Host(1, 2))
    with pytest.raises(WorkloadUnusable, match="OSError: no parts"):
        load_workload("own_parts.py:broken", 0, CPU, Host(1, 2))


def test_launchers_of_two_hosts() -> None:
    four = {"RANK": "3", "WORLD_SIZE": "4"}
    assert launcher_rank(four, 2) == 3
    with pytest.raises(BadOption, match="'4 processes'; expected 6, two hosts of --tensor-parallel 3 ranks: torchrun"):
        launcher_rank(four, 3)
    with pytest.raises(BadOption, match=r"expected two, .* and --tensor-parallel N"):
        launcher_rank(four)
    with pytest.raises(BadOption, match="'1 process';"):
        launcher_rank({"RANK": "0", "WORLD_SIZE": "1"}, 2)


def test_a_fault_is_on_a_rank_that_there_is() -> None:
    assert Plan("decoder-tiny", 1, faults=(Fault(rank=1),), tensor_parallel=2)
    with pytest.raises(BadOption, match="rank= of --fault was given 2; expected a rank of the suspect host, 0 to 1"):
        Plan("decoder-tiny", 1, faults=(Fault(rank=2),), tensor_parallel=2)


def row(elements: int, different: int, rated: int, severity: float, **more: Any) -> dict[str, Any]:
    share = different / elements
    shares = {"different": different, "rated": rated, "frequency": share, "severity": severity, "worst": severity}
    return {"elements": elements, **shares, "not_finite": 0, **more}


def level(*rows: dict[str, Any], noise: float, loss: float, times: int) -> dict[str, Any]:
    of_step = {"step": 1, "loss": 2.0, "suspect_loss": loss, "noise_to_signal": noise, "gradient": noise / 2}
    tables = {"by_kind": list(rows), "by_module": list(rows), "series": [of_step]}
    facts = {"steps": 1, "injected": [{"fault": "zero@forward", "times": times}], "worst_noise_to_signal": noise}
    return {**facts, **tables}


def test_ranks_are_reported_as_one_host() -> None:
    first = level(row(10, 0, 0, 0.0, kind="a"), noise=0.0, loss=2.0, times=0)
    second = level(row(10, 4, 2, 0.5, kind="a"), noise=0.2, loss=2.5, times=3)
    third = level(row(10, 2, 2, 1.0, kind="a"), noise=math.nan, loss=2.25, times=1)
    assert merged([{"step": first}]) == {"step": first}
    whole_host = merged([{"step": of_rank} for of_rank in (first, second, third)])["step"]
    assert whole_host["by_kind"] == [
        {**row(30, 6, 4, 0.75, kind="a"), "worst": 1.0, "ranks": [1, 2]},
    ]
    (farthest,) = whole_host["series"]
    assert (farthest["rank"], farthest["suspect_loss"]) == (2, 2.25) and whole_host["worst_noise_to_signal"] == math.inf
    assert whole_host["injected"] == [{"fault": "zero@forward", "times": 4, "times_by_rank": [0, 3, 1]}]
    assert [of_rank["rank"] for of_rank in whole_host["by_rank"]] == [0, 1, 2]
    assert whole_host["by_rank"][1]["series"] == second["series"]
    two = merged([{"step": first}, {"step": second}])["step"]["series"][0]
    assert (two["rank"], two["noise_to_signal"], two["gradient"]) == (1, 0.2, 0.05)
