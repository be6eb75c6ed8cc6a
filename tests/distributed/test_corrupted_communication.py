"""A communication fault corrupts the collective results of one rank only."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PROGRAM = """
import sys, time
import torch
import torch.distributed as dist
from traincheck.testing.corruption import inject, parse_fault

ZEROS = "intermittent@communication:%s,zeros=1,nonfinite=0,stride=1,share=1,chance=1,rank=1"

def main(rank, store):
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    original = dist.all_reduce
    with inject(None, None, parse_fault(ZEROS % "all_reduce")) as injected:
        found = torch.ones(4)
        work = dist.all_reduce(found, async_op=True)
        work.wait()
        parts = [torch.zeros(2), torch.zeros(2)]
        dist.all_gather(parts, torch.ones(2))
        told = f"{rank} all_reduce {found.tolist()} all_gather {parts[0].tolist()} {injected.times}"
        print(f"{told}\\n", end="", flush=True)  # in one write: two ranks share the pipe
    assert dist.all_reduce is original
    torch.manual_seed(0)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with inject(model, optimizer, parse_fault(ZEROS % "gradients")) as injected:
        model(torch.ones(2, 3)).sum().backward()
        optimizer.step()
    print(f"{rank} gradient {model.module.weight.grad.abs().sum().item() > 0} {injected.times}\\n", end="", flush=True)
    dist.barrier()
    del model, optimizer, found, parts, work
    dist.destroy_process_group()
    time.sleep(0.5)

main(int(sys.argv[1]), sys.argv[2])
"""


def test_communication_is_hit_on_one_rank(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    words = [sys.executable, "program.py"]
    ranks = [
        subprocess.Popen(
            [*words, str(rank), str(tmp_path / "store")],
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    outputs = []
    for rank in ranks:
        out, error = rank.communicate(timeout=120)
        assert rank.returncode == 0, error
        outputs.append(out.splitlines())
    assert outputs[0] == ["0 all_reduce [2.0, 2.0, 2.0, 2.0] all_gather [1.0, 1.0] 0", "0 gradient True 0"]
    assert outputs[1] == ["1 all_reduce [0.0, 0.0, 0.0, 0.0] all_gather [1.0, 1.0] 1", "1 gradient False 2"]
