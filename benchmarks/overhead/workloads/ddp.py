"""Two ranks under DistributedDataParallel, over gloo: the workload `ddp`."""

import os
import socket
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from timing import Clock
from torch import nn
from torch.nn.parallel import DistributedDataParallel

RANKS, BATCH, WIDTH = 2, 64, 256


def work(rank, port):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=RANKS)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 10))
    model = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    torch.manual_seed(rank)
    clock = Clock()
    for _ in range(clock.steps(100)):
        x, y = torch.randn(BATCH, 64), torch.randint(10, (BATCH,))
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        clock.tick()
    if rank == 0:
        clock.write_times()
    dist.barrier()
    del model, optimizer
    dist.destroy_process_group()
    time.sleep(0.5)


if __name__ == "__main__":
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    mp.spawn(work, (port,), nprocs=RANKS)
