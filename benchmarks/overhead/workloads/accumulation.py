"""Four batches to a step, with a schedule and clipping: the workload `accumulation`."""

import torch
from timing import Clock
from torch import nn

BATCHES, BATCH, WIDTH = 4, 64, 384

torch.manual_seed(0)
model = nn.Sequential(
    nn.Linear(64, WIDTH), nn.LayerNorm(WIDTH), nn.GELU(), nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.Linear(WIDTH, 10)
)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
clock = Clock()
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, clock.steps(80))
for _ in range(clock.steps(80)):
    optimizer.zero_grad()
    for _ in range(BATCHES):
        x, y = torch.randn(BATCH, 64), torch.randint(10, (BATCH,))
        (nn.functional.cross_entropy(model(x), y) / BATCHES).backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    schedule.step()
    clock.tick()
clock.write_times()
