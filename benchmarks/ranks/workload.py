"""A small job of data parallel ranks that measures its own steps: BENCH_OUT takes the median, in seconds."""

import json
import os
import statistics
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def main(seed: int, steps: int) -> None:
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    blocks = [
        torch.nn.Sequential(torch.nn.Linear(128, 128), torch.nn.LayerNorm(128), torch.nn.GELU()) for _ in range(12)
    ]
    model = DistributedDataParallel(torch.nn.Sequential(*blocks, torch.nn.Linear(128, 10)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    torch.manual_seed(1000 * seed + dist.get_rank())
    taken = []
    for _ in range(steps):
        began = time.perf_counter()
        batch, target = torch.randn(64, 128), torch.randint(10, (64,))
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(batch), target)
        loss.backward()
        optimizer.step()
        taken.append(time.perf_counter() - began)
    if dist.get_rank() == 0 and "BENCH_OUT" in os.environ:
        Path(os.environ["BENCH_OUT"]).write_text(json.dumps({"median_step": statistics.median(taken[steps // 4 :])}))
    dist.barrier()
    del model, optimizer, loss, batch, target
    dist.destroy_process_group()
    time.sleep(0.5)


main(int(sys.argv[1]), int(sys.argv[2]))
