"""Two gloo ranks whose model is compiled inside of DistributedDataParallel, or around it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

import warm_commands
from rank_jobs import rank_starter
from traincheck.trace.folder import RunFolder

PROGRAM = """
import sys
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

def main(how):
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
    if how == "inside":
        model = torch.compile(model, backend="eager")
    model = DistributedDataParallel(model)
    called = torch.compile(model, backend="eager") if how == "around" else model
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    torch.manual_seed(dist.get_rank())
    for _ in range(8):
        x = torch.randn(16, 4)
        optimizer.zero_grad()
        (called(x) - x.sum(1, keepdim=True)).pow(2).mean().backward()
        optimizer.step()
    total = sum(float(p.detach().double().sum()) for p in model.parameters())
    frames = sum(torch._dynamo.convert_frame.FRAME_COMPILE_COUNTER.values())
    print(f"rank {dist.get_rank()} {total:.12f} {frames}\\n", end="", flush=True)
    dist.barrier()
    dist.destroy_process_group()

main(sys.argv[1])
"""


def launch(folder: Path, how: str, *words: str) -> list[str]:
    done = warm_commands.run([*words, *rank_starter(folder), "train.py", how], folder, timeout=600)
    assert done.returncode == 0, done.stderr
    return sorted(line for line in done.stdout.splitlines() if line.startswith("rank"))


@pytest.mark.slow
@pytest.mark.parametrize("how", ["inside", pytest.param("around", marks=pytest.mark.long)])
def test_compiled_ranks_train_as_without_us_and_agree(how: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(PROGRAM)
    traincheck = [sys.executable, "-m", "traincheck"]
    eager = launch(tmp_path, "eager", *traincheck, "collect", "-o", "good", "--")
    assert [line.split()[-1] for line in eager] == ["0", "0"]
    alone = launch(tmp_path, how)
    assert [line.split()[-1] for line in alone] != ["0", "0"]
    assert launch(tmp_path, how, *traincheck, "collect", "-o", "run", "--") == alone
    infer = [*traincheck, "infer", "good", "-o", "good.jsonl"]
    assert warm_commands.run(infer, tmp_path).returncode == 0
    words = [*traincheck, "run", "-o", "live", "-b", "good.jsonl", "--fail-on", "notice", "--"]
    assert launch(tmp_path, how, *words) == alone
    assert json.loads((tmp_path / "live" / "report.json").read_text())["verdict"] == "clean"
    trained = 0
    for _, windows in RunFolder.open(tmp_path / "run").windows():
        windows_of_rank = list(windows)
        if not any(window.step for window in windows_of_rank):
            continue  # the process that starts the ranks
        trained += 1
        assert max(window.step for window in windows_of_rank) == 8
        names = {change.variable for window in windows_of_rank for change in window.changes}
        assert "Sequential.0.weight" in names
        assert not [name for name in names if "_orig_mod" in name]
    assert trained == 2
