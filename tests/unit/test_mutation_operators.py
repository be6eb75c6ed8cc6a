"""Each mutation operator makes exactly the change that its docstring states, and valid mutants of all examples."""

from __future__ import annotations

import ast
import difflib
from pathlib import Path

import pytest
from benchmarks.mutants.operator import KINDS, Operator, all_operators, reserved
from benchmarks.mutants.script import Script

ROOT = Path(__file__).parents[2]
OPERATORS = {entry.name: entry for entry in all_operators()}

# Scripts to mutate. No test runs them, so they name what they do not define.

LOOP = """\
import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1))
        self.register_buffer("mean", torch.zeros(8))
        self.body = nn.Linear(8, 8)
        self.drop = nn.Dropout(0.5)
        self.head = nn.Linear(8, 2)

    def forward(self, x):
        h = self.body(x - self.mean) * self.scale
        h = self.drop(h.relu())
        return self.head(h)


def evaluate(model, loader):
    model.eval()
    with torch.no_grad():
        return sum((model(x).argmax(1) == y).sum() for x, y in loader)


model = Net()
optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, weight_decay=0.1)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=epochs * len(loader))
best = 0
for epoch in range(epochs):
    model.train()
    for i, (x, y) in enumerate(loader):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        if i % 10 == 0:
            print(loss.item())
    score = evaluate(model, loader)
    if score > best:
        best = score
        torch.save(model.state_dict(), "best.pt")
model.load_state_dict(torch.load("best.pt"))
"""

TWO_MODELS = """\
import torch
import torch.nn as nn

net_g = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 4))
net_d = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
criterion = nn.BCEWithLogitsLoss()
opt_g = torch.optim.Adam(net_g.parameters())
opt_d = torch.optim.Adam(net_d.parameters())
schedule_d = torch.optim.lr_scheduler.StepLR(opt_d, 10)
for real in loader:
    opt_d.zero_grad()
    real_loss = criterion(net_d(real), ones)
    real_loss.backward()
    fake_loss = criterion(net_d(net_g(noise).detach()), zeros)
    fake_loss.backward()
    nn.utils.clip_grad_norm_(net_d.parameters(), 1.0)
    opt_d.step()
    opt_g.zero_grad()
    loss = criterion(net_d(net_g(noise)), ones) + 0.1 * extra_loss
    loss.backward()
    opt_g.step()
    schedule_d.step()
torch.save(net_g.state_dict(), "g.pt")
torch.save(net_d.state_dict(), "d.pt")
"""

AMP = """\
import torch

model = build()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cuda")
optimizer.zero_grad()
for i, (x, y) in enumerate(loader):
    with torch.autocast("cuda", dtype=torch.float16):
        logits = model(x)
        penalty = logits.mean()
    loss = torch.nn.functional.cross_entropy(logits.float(), y) + penalty
    scaler.scale(loss / 4).backward()
    if (i + 1) % 4 == 0 or i + 1 == len(loader):
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
"""

BF16 = """\
import torch

model = build()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x, y in loader:
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = loss_of(model(x), y)
    loss.backward()
    optimizer.step()
"""

TWO_SCALED = """\
scaler = torch.amp.GradScaler("cuda")
for x in loader:
    scaler.scale(first).backward()
    scaler.scale(second).backward()
"""

FREEZE = """\
model = resnet18()
for p in model.parameters():
    p.requires_grad = False
for p in model.fc.parameters():
    p.requires_grad = True
optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
torch.save(model.state_dict(), path)
"""

GROUPS = """\
class Stack(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))


model = Stack()
groups = [{"params": a, "lr": 0.1, "weight_decay": 0.1}, {"params": b, "lr": 0.2, "weight_decay": 0.0}]
optimizer = torch.optim.SGD(groups, lr=0.1)
both = torch.optim.SGD(list(a.parameters()) + list(b.parameters()), lr=0.1)
for group in optimizer.param_groups:
    group["lr"] = lr
"""

SCHEDULES = """\
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
warm = get_linear_schedule_with_warmup(optimizer, num_warmup_steps=100, num_training_steps=total)
rise = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda i: min(1.0, i / 10))
wait = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, mode="max")
drop = torch.optim.lr_scheduler.StepLR(optimizer, 1)
for epoch in range(9):
    for x in loader:
        optimizer.zero_grad()
        loss_of(x).backward()
        optimizer.step()
    drop.step()
"""

LOSSES = """\
criterion = nn.CrossEntropyLoss(label_smoothing=0.1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x, y in loader:
    optimizer.zero_grad()
    guess = F.log_softmax(model(x), dim=1)
    total = criterion(model(x), y) + 0.5 * F.kl_div(guess, teacher(x))
    total += F.nll_loss(guess, y)
    total.backward()
    optimizer.step()
"""

RESUME = """\
import copy

model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
scaler = torch.amp.GradScaler("cuda")
state = torch.load(path)
model.load_state_dict(state["model"])
optimizer.load_state_dict(state["optimizer"])
scheduler.load_state_dict(state["scheduler"])
scaler.load_state_dict(state["scaler"])
torch.set_rng_state(state["rng"])
start = state["epoch"] + 1
best = copy.deepcopy(model.state_dict())
state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
"""

RANKS = """\
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

rank = dist.get_rank()
mine = data[rank::size]
part = data.chunk(size)[rank]
sampler = DistributedSampler(dataset)
loader = DataLoader(dataset, sampler=sampler)
model = nn.SyncBatchNorm.convert_sync_batchnorm(Net())
model.load_state_dict(pretrained)
ddp = DDP(model)
optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
for epoch in range(9):
    sampler.set_epoch(epoch)
    for x in loader:
        optimizer.zero_grad()
        ddp(x).mean().backward()
        optimizer.step()
    scheduler.step()
torch.save(ddp.module.state_dict(), path)
"""

DRAWN = """\
import torch.distributed as dist

rank = dist.get_rank()
generator = torch.Generator().manual_seed(seed + rank)
for step in range(9):
    x = data[torch.randint(len(data), (8,), generator=generator)]
"""

BY_HAND = """\
import torch.distributed as dist


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(4, 4)
        self.head = nn.Linear(4, 2)


class Sum(torch.autograd.Function):
    def forward(ctx, x):
        dist.all_reduce(x)
        return x


def average_gradients(model):
    for p in model.parameters():
        dist.all_reduce(p.grad, group=data_group)
        p.grad /= dist.get_world_size()


def gather(x):
    dist.all_gather(parts, x, group=model_group)
    return (parts, data_group)


net = Net()
for p in net.parameters():
    dist.broadcast(p.data, 0)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for x in loader:
    optimizer.zero_grad()
    with nullcontext() if last else net.no_sync():
        net(x).mean().backward()
    average_gradients(net)
    nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    optimizer.step()
"""

TEACHER = """\
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(8))
        self.body = nn.Linear(8, 8)
        self.head = nn.Linear(8, 2)

    def forward(self, x):
        self.mean.copy_(x.mean(0))
        h = self.body(x)
        return self.head(h) + h.detach()


optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x in loader:
    with accelerator.accumulate(model):
        accelerator.backward(model(x).mean())
        optimizer.step()
"""

CHANGES = [
    ("zero-grad-after-backward", LOOP, "-        optimizer.zero_grad()\n+        optimizer.zero_grad()"),
    ("zero-grad-of-one-part", LOOP, "-        optimizer.zero_grad()\n+        model.head.zero_grad()"),
    ("zero-grad-of-other-optimizer", TWO_MODELS, "-    opt_d.zero_grad()\n+    opt_g.zero_grad()"),
    ("zero-grad-once-per-epoch", LOOP, "+    optimizer.zero_grad()\n-        optimizer.zero_grad()"),
    ("zero-grad-removed", LOOP, "-        optimizer.zero_grad()"),
    ("zero-grad-when-logging", LOOP, "-        optimizer.zero_grad()\n+            optimizer.zero_grad()"),
    (
        "optimizer-built-each-epoch",
        LOOP,
        "+    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, weight_decay=0.1)",
    ),
    ("step-after-loop", LOOP, "-        optimizer.step()\n+    optimizer.step()"),
    ("step-before-backward", LOOP, "+        optimizer.step()\n-        optimizer.step()"),
    ("step-of-one-optimizer-removed", TWO_MODELS, "-    opt_d.step()"),
    ("step-of-other-optimizer", TWO_MODELS, "-    opt_d.step()\n+    opt_g.step()"),
    ("step-removed", LOOP, "-        optimizer.step()"),
    ("step-twice", LOOP, "+        optimizer.step()"),
    ("step-when-logging", LOOP, "-        optimizer.step()\n+            optimizer.step()"),
    ("evaluation-mode-for-training", LOOP, "-    model.train()\n+    model.eval()"),
    ("evaluation-mode-missing", LOOP, "-    model.eval()"),
    ("train-mode-not-restored", LOOP, "-    model.train()"),
    ("train-mode-of-one-part", LOOP, "-    model.train()\n+    model.head.train()"),
    ("train-mode-once", LOOP, "+model.train()\n-    model.train()"),
    ("detach-removed", TEACHER, "-        return self.head(h) + h.detach()\n+        return self.head(h) + h"),
    ("features-detached", LOOP, "-        return self.head(h)\n+        return self.head(h.detach())"),
    (
        "layer-under-no-grad",
        TEACHER,
        "-        h = self.body(x)\n+        with torch.no_grad():\n+            h = self.body(x)",
    ),
    ("loss-wrapped-again", LOOP, "+        loss = torch.tensor(loss.item(), requires_grad=True)"),
    (
        "term-as-number",
        AMP,
        "-    loss = torch.nn.functional.cross_entropy(logits.float(), y) + penalty\n"
        "+    loss = torch.nn.functional.cross_entropy(logits.float(), y) + penalty.item()",
    ),
    (
        "term-detached",
        AMP,
        "-    loss = torch.nn.functional.cross_entropy(logits.float(), y) + penalty\n"
        "+    loss = torch.nn.functional.cross_entropy(logits.float(), y) + penalty.detach()",
    ),
    ("freezing-removed", FREEZE, "-for p in model.parameters():\n-    p.requires_grad = False"),
    (
        "parameter-is-plain-tensor",
        LOOP,
        "-        self.scale = nn.Parameter(torch.ones(1))\n+        self.scale = torch.ones(1)",
    ),
    ("part-frozen", LOOP, "+for param in model.body.parameters():\n+    param.requires_grad = False"),
    ("requires-grad-misspelled", FREEZE, "-    p.requires_grad = False\n+    p.require_grad = False"),
    (
        "requires-grad-of-module",
        FREEZE,
        "-for p in model.parameters():\n-    p.requires_grad = False\n+model.requires_grad = False",
    ),
    ("unfreezing-removed", FREEZE, "-for p in model.fc.parameters():\n-    p.requires_grad = True"),
    (
        "adam-for-adamw",
        LOOP,
        "-optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, weight_decay=0.1)\n"
        "+optimizer = torch.optim.Adam(model.parameters(), lr=0.1, weight_decay=0.1)",
    ),
    (
        "group-missing",
        GROUPS,
        '-groups = [{"params": a, "lr": 0.1, "weight_decay": 0.1}, {"params": b, "lr": 0.2, "weight_decay": 0.0}]\n'
        '+groups = [{"params": a, "lr": 0.1, "weight_decay": 0.1}]',
    ),
    (
        "layers-in-plain-list",
        GROUPS,
        "-        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))\n"
        "+        self.layers = [nn.Linear(4, 4) for _ in range(3)]",
    ),
    ("model-built-after-optimizer", LOOP, "+model = Net()"),
    (
        "optimizer-of-one-part",
        LOOP,
        "-optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, weight_decay=0.1)\n"
        "+optimizer = torch.optim.AdamW(model.head.parameters(), lr=0.1, weight_decay=0.1)",
    ),
    (
        "rate-of-group-lost",
        GROUPS,
        '-groups = [{"params": a, "lr": 0.1, "weight_decay": 0.1}, {"params": b, "lr": 0.2, "weight_decay": 0.0}]\n'
        '+groups = [{"params": a, "weight_decay": 0.1}, {"params": b, "lr": 0.2, "weight_decay": 0.0}]',
    ),
    (
        "second-model-not-in-optimizer",
        GROUPS,
        "-both = torch.optim.SGD(list(a.parameters()) + list(b.parameters()), lr=0.1)\n"
        "+both = torch.optim.SGD(list(a.parameters()), lr=0.1)",
    ),
    (
        "settings-of-groups-swapped",
        GROUPS,
        '-groups = [{"params": a, "lr": 0.1, "weight_decay": 0.1}, {"params": b, "lr": 0.2, "weight_decay": 0.0}]\n'
        '+groups = [{"params": a, "lr": 0.1, "weight_decay": 0.0}, {"params": b, "lr": 0.2, "weight_decay": 0.1}]',
    ),
    (
        "weight-decay-for-all",
        GROUPS,
        '-groups = [{"params": a, "lr": 0.1, "weight_decay": 0.1}, {"params": b, "lr": 0.2, "weight_decay": 0.0}]\n'
        '+groups = [{"params": a, "lr": 0.1, "weight_decay": 0.1}, {"params": b, "lr": 0.2, "weight_decay": 0.1}]',
    ),
    (
        "weight-decay-lost",
        LOOP,
        "-optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, weight_decay=0.1)\n"
        "+optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)",
    ),
    (
        "plateau-of-wrong-direction",
        SCHEDULES,
        '-wait = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, mode="max")\n'
        '+wait = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, mode="min")',
    ),
    (
        "rate-of-first-group-only",
        GROUPS,
        "-for group in optimizer.param_groups:\n+for group in optimizer.param_groups[:1]:",
    ),
    (
        "rate-written-to-unused-attribute",
        GROUPS,
        '-for group in optimizer.param_groups:\n-    group["lr"] = lr\n+optimizer.lr = lr',
    ),
    (
        "schedule-returns-rate",
        SCHEDULES,
        "-rise = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda i: min(1.0, i / 10))\n"
        "+rise = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda i: 0.1 * (min(1.0, i / 10)))",
    ),
    ("scheduler-before-optimizer", LOOP, "+        scheduler.step()\n-        scheduler.step()"),
    ("scheduler-never-stepped", LOOP, "-        scheduler.step()"),
    (
        "scheduler-of-other-optimizer",
        TWO_MODELS,
        "-schedule_d = torch.optim.lr_scheduler.StepLR(opt_d, 10)\n"
        "+schedule_d = torch.optim.lr_scheduler.StepLR(opt_g, 10)",
    ),
    ("scheduler-stepped-in-evaluation", LOOP, "-        scheduler.step()\n+            scheduler.step()"),
    ("scheduler-stepped-per-batch", RANKS, "-    scheduler.step()\n+        scheduler.step()"),
    ("scheduler-stepped-per-epoch", LOOP, "-        scheduler.step()\n+    scheduler.step()"),
    (
        "total-steps-in-wrong-unit",
        LOOP,
        "-scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=epochs * len(loader))\n"
        "+scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=epochs)",
    ),
    (
        "warm-up-too-long",
        SCHEDULES,
        "-warm = get_linear_schedule_with_warmup(optimizer, num_warmup_steps=100, num_training_steps=total)\n"
        "+warm = get_linear_schedule_with_warmup(optimizer, num_warmup_steps=100 * 10, num_training_steps=total)",
    ),
    ("clip-after-step", LOOP, "+        optimizer.step()\n-        optimizer.step()"),
    (
        "clip-before-backward",
        LOOP,
        "+        nn.utils.clip_grad_norm_(model.parameters(), 1.0)\n"
        "-        nn.utils.clip_grad_norm_(model.parameters(), 1.0)",
    ),
    (
        "clip-each-micro-batch",
        AMP,
        "+    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)\n"
        "-        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)",
    ),
    (
        "clip-limit-too-small",
        LOOP,
        "-        nn.utils.clip_grad_norm_(model.parameters(), 1.0)\n"
        "+        nn.utils.clip_grad_norm_(model.parameters(), 0.01)",
    ),
    (
        "clip-one-part",
        LOOP,
        "-        nn.utils.clip_grad_norm_(model.parameters(), 1.0)\n"
        "+        nn.utils.clip_grad_norm_(model.head.parameters(), 1.0)",
    ),
    (
        "clip-other-model",
        TWO_MODELS,
        "-    nn.utils.clip_grad_norm_(net_d.parameters(), 1.0)\n"
        "+    nn.utils.clip_grad_norm_(net_g.parameters(), 1.0)",
    ),
    (
        "clip-used-up-generator",
        LOOP,
        "-optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, weight_decay=0.1)\n"
        "+trainable = model.parameters()\n"
        "+optimizer = torch.optim.AdamW(trainable, lr=0.1, weight_decay=0.1)\n"
        "-        nn.utils.clip_grad_norm_(model.parameters(), 1.0)\n"
        "+        nn.utils.clip_grad_norm_(trainable, 1.0)",
    ),
    (
        "clip-values-for-norm",
        LOOP,
        "-        nn.utils.clip_grad_norm_(model.parameters(), 1.0)\n"
        "+        nn.utils.clip_grad_value_(model.parameters(), 1.0)",
    ),
    (
        "accumulate-context-removed",
        TEACHER,
        "-    with accelerator.accumulate(model):\n"
        "-        accelerator.backward(model(x).mean())\n"
        "-        optimizer.step()\n"
        "+    accelerator.backward(model(x).mean())\n"
        "+    optimizer.step()",
    ),
    (
        "cleared-at-each-micro-batch",
        AMP,
        "-optimizer.zero_grad()\n+    optimizer.zero_grad()\n-        optimizer.zero_grad()",
    ),
    ("last-micro-batches-dropped", AMP, "-    if (i + 1) % 4 == 0 or i + 1 == len(loader):\n+    if (i + 1) % 4 == 0:"),
    ("loss-divided-twice", AMP, "-    scaler.scale(loss / 4).backward()\n+    scaler.scale(loss / 4 / 4).backward()"),
    ("loss-not-divided", AMP, "-    scaler.scale(loss / 4).backward()\n+    scaler.scale(loss).backward()"),
    (
        "step-condition-off-by-one",
        AMP,
        "-    if (i + 1) % 4 == 0 or i + 1 == len(loader):\n+    if i % 4 == 0 or i + 1 == len(loader):",
    ),
    (
        "arguments-of-loss-swapped",
        LOSSES,
        "-    total = criterion(model(x), y) + 0.5 * F.kl_div(guess, teacher(x))\n"
        "+    total = criterion(model(x), y) + 0.5 * F.kl_div(teacher(x), guess)",
    ),
    (
        "class-weights-dropped",
        LOSSES,
        "-criterion = nn.CrossEntropyLoss(label_smoothing=0.1)\n+criterion = nn.CrossEntropyLoss()",
    ),
    (
        "loss-summed",
        LOOP,
        '-        loss = F.cross_entropy(model(x), y)\n+        loss = F.cross_entropy(model(x), y, reduction="sum")',
    ),
    ("one-backward-removed", TWO_MODELS, "-    real_loss.backward()"),
    (
        "sigmoid-before-bce-with-logits",
        TWO_MODELS,
        "-    real_loss = criterion(net_d(real), ones)\n+    real_loss = criterion(torch.sigmoid(net_d(real)), ones)",
    ),
    (
        "sign-of-term-flipped",
        AMP,
        "-    loss = torch.nn.functional.cross_entropy(logits.float(), y) + penalty\n"
        "+    loss = torch.nn.functional.cross_entropy(logits.float(), y) - penalty",
    ),
    (
        "softmax-before-cross-entropy",
        LOOP,
        "-        loss = F.cross_entropy(model(x), y)\n"
        "+        loss = F.cross_entropy(torch.softmax(model(x), dim=1), y)",
    ),
    (
        "softmax-for-log-softmax",
        LOSSES,
        "-    guess = F.log_softmax(model(x), dim=1)\n+    guess = F.softmax(model(x), dim=1)",
    ),
    ("softmax-in-model", LOOP, "-        return self.head(h)\n+        return torch.softmax(self.head(h), dim=-1)"),
    (
        "term-dropped",
        AMP,
        "-    loss = torch.nn.functional.cross_entropy(logits.float(), y) + penalty\n"
        "+    loss = torch.nn.functional.cross_entropy(logits.float(), y)",
    ),
    ("total-overwritten", LOSSES, "-    total += F.nll_loss(guess, y)\n+    total = F.nll_loss(guess, y)"),
    (
        "weight-of-term-dropped",
        LOSSES,
        "-    total = criterion(model(x), y) + 0.5 * F.kl_div(guess, teacher(x))\n"
        "+    total = criterion(model(x), y) + F.kl_div(guess, teacher(x))",
    ),
    (
        "autocast-removed",
        AMP,
        '-    with torch.autocast("cuda", dtype=torch.float16):\n'
        "-        logits = model(x)\n"
        "-        penalty = logits.mean()\n"
        "+    logits = model(x)\n"
        "+    penalty = logits.mean()",
    ),
    (
        "float16-for-bfloat16",
        BF16,
        '-    with torch.autocast("cuda", dtype=torch.bfloat16):\n'
        '+    with torch.autocast("cuda", dtype=torch.float16):',
    ),
    ("forward-outside-autocast", AMP, "+    logits = model(x)\n-        logits = model(x)"),
    (
        "loss-in-low-precision",
        AMP,
        "-    loss = torch.nn.functional.cross_entropy(logits.float(), y) + penalty\n"
        "+    loss = torch.nn.functional.cross_entropy(logits, y) + penalty",
    ),
    ("weights-in-low-precision", BF16, "-model = build()\n+model = build().to(torch.bfloat16)"),
    ("one-loss-not-scaled", TWO_SCALED, "-    scaler.scale(second).backward()\n+    second.backward()"),
    (
        "scaled-gradients-applied",
        AMP,
        "-        scaler.unscale_(optimizer)\n"
        "-        scaler.step(optimizer)\n"
        "-        scaler.update()\n"
        "+        optimizer.step()",
    ),
    (
        "scaler-built-each-epoch",
        AMP,
        '-scaler = torch.amp.GradScaler("cuda")\n+    scaler = torch.amp.GradScaler("cuda")',
    ),
    (
        "scaler-not-used",
        AMP,
        "-    scaler.scale(loss / 4).backward()\n"
        "+    (loss / 4).backward()\n"
        "-        scaler.unscale_(optimizer)\n"
        "-        scaler.step(optimizer)\n"
        "-        scaler.update()\n"
        "+        optimizer.step()",
    ),
    (
        "unscale-after-clipping",
        AMP,
        "+        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)\n"
        "-        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)",
    ),
    ("unscale-missing", AMP, "-        scaler.unscale_(optimizer)"),
    ("best-score-not-updated", LOOP, "-        best = score"),
    ("best-weights-not-copied", RESUME, "-best = copy.deepcopy(model.state_dict())\n+best = model.state_dict()"),
    ("best-weights-not-loaded", LOOP, '-model.load_state_dict(torch.load("best.pt"))'),
    (
        "loaded-into-copy",
        RESUME,
        '-model.load_state_dict(state["model"])\n+copy.deepcopy(model).load_state_dict(state["model"])',
    ),
    (
        "names-do-not-match",
        LOOP,
        '-model.load_state_dict(torch.load("best.pt"))\n'
        '+model.load_state_dict({"module." + k: v for k, v in torch.load("best.pt").items()}, strict=False)',
    ),
    (
        "one-part-saved",
        LOOP,
        '-        torch.save(model.state_dict(), "best.pt")\n'
        '-model.load_state_dict(torch.load("best.pt"))\n'
        '+        torch.save({k: v for k, v in model.state_dict().items() if k.startswith("body.")}, "best.pt")\n'
        '+model.load_state_dict(torch.load("best.pt"), strict=False)',
    ),
    (
        "only-parameters-saved",
        LOOP,
        '-        torch.save(model.state_dict(), "best.pt")\n'
        '-model.load_state_dict(torch.load("best.pt"))\n'
        '+        torch.save(dict(model.named_parameters()), "best.pt")\n'
        '+model.load_state_dict(torch.load("best.pt"), strict=False)',
    ),
    (
        "other-model-saved",
        TWO_MODELS,
        '-torch.save(net_g.state_dict(), "g.pt")\n+torch.save(net_d.state_dict(), "g.pt")',
    ),
    (
        "state-dict-updated",
        LOOP,
        '-model.load_state_dict(torch.load("best.pt"))\n+model.state_dict().update(torch.load("best.pt"))',
    ),
    (
        "trainable-parameters-saved",
        FREEZE,
        "-torch.save(model.state_dict(), path)\n"
        "+torch.save({name: p for name, p in model.named_parameters() if p.requires_grad}, path)",
    ),
    ("count-not-restored", RESUME, '-start = state["epoch"] + 1\n+start = 0'),
    (
        "model-only-restored",
        RESUME,
        '-optimizer.load_state_dict(state["optimizer"])\n-scheduler.load_state_dict(state["scheduler"])',
    ),
    ("optimizer-state-not-loaded", RESUME, '-optimizer.load_state_dict(state["optimizer"])'),
    (
        "optimizer-state-not-saved",
        RESUME,
        '-optimizer.load_state_dict(state["optimizer"])\n'
        '-state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}\n'
        '+state = {"model": model.state_dict()}',
    ),
    ("random-state-not-restored", RESUME, '-torch.set_rng_state(state["rng"])'),
    ("rate-set-after-load", RESUME, '+for group in optimizer.param_groups:\n+    group["lr"] = 0.1'),
    ("scaler-state-not-loaded", RESUME, '-scaler.load_state_dict(state["scaler"])'),
    ("scheduler-state-not-loaded", RESUME, '-scheduler.load_state_dict(state["scheduler"])'),
    ("part-of-first-rank", RANKS, "-mine = data[rank::size]\n+mine = data[0::size]"),
    (
        "sampler-for-one-rank",
        RANKS,
        "-sampler = DistributedSampler(dataset)\n+sampler = DistributedSampler(dataset, num_replicas=1, rank=0)",
    ),
    (
        "sampler-not-passed",
        RANKS,
        "-loader = DataLoader(dataset, sampler=sampler)\n+loader = DataLoader(dataset, shuffle=True)",
    ),
    (
        "seed-without-rank",
        DRAWN,
        "-generator = torch.Generator().manual_seed(seed + rank)\n+generator = torch.Generator().manual_seed(seed)",
    ),
    ("set-epoch-removed", RANKS, "-    sampler.set_epoch(epoch)"),
    (
        "clipped-before-averaging",
        BY_HAND,
        "+    nn.utils.clip_grad_norm_(net.parameters(), 1.0)\n-    nn.utils.clip_grad_norm_(net.parameters(), 1.0)",
    ),
    ("gradients-not-reduced", BY_HAND, "-    average_gradients(net)"),
    ("gradients-reduced-after-step", BY_HAND, "-    average_gradients(net)\n+    average_gradients(net)"),
    ("gradients-summed", BY_HAND, "-        p.grad /= dist.get_world_size()"),
    ("one-part-reduced", BY_HAND, "-    for p in model.parameters():\n+    for p in model.head.parameters():"),
    (
        "only-first-rank-clips",
        LOOP,
        "-        nn.utils.clip_grad_norm_(model.parameters(), 1.0)\n"
        "+        if dist.get_rank() == 0:\n"
        "+            nn.utils.clip_grad_norm_(model.parameters(), 1.0)",
    ),
    (
        "only-first-rank-steps-scheduler",
        LOOP,
        "-        scheduler.step()\n+        if dist.get_rank() == 0:\n+            scheduler.step()",
    ),
    ("only-matrices-reduced", BY_HAND, "+        if p.dim() < 2:\n+            continue"),
    (
        "group-not-passed",
        BY_HAND,
        "-        dist.all_reduce(p.grad, group=data_group)\n+        dist.all_reduce(p.grad)",
    ),
    ("maximum-for-sum", BY_HAND, "-        dist.all_reduce(x)\n+        dist.all_reduce(x, op=dist.ReduceOp.MAX)"),
    (
        "other-group-passed",
        BY_HAND,
        "-    dist.all_gather(parts, x, group=model_group)\n+    dist.all_gather(parts, x, group=data_group)",
    ),
    ("result-not-reduced", BY_HAND, "-        dist.all_reduce(x)"),
    ("first-weights-not-broadcast", BY_HAND, "-for p in net.parameters():\n-    dist.broadcast(p.data, 0)"),
    (
        "forward-through-inner-module",
        RANKS,
        "-        ddp(x).mean().backward()\n+        ddp.module(x).mean().backward()",
    ),
    (
        "loaded-on-first-rank-after-wrapping",
        RANKS,
        "-model.load_state_dict(pretrained)\n+if rank == 0:\n+    ddp.module.load_state_dict(pretrained)",
    ),
    ("no-sync-everywhere", BY_HAND, "-    with nullcontext() if last else net.no_sync():\n+    with net.no_sync():"),
    (
        "wrapper-missing",
        RANKS,
        "-ddp = DDP(model)\n"
        "+ddp = model\n"
        "-torch.save(ddp.module.state_dict(), path)\n"
        "+torch.save(ddp.state_dict(), path)",
    ),
    ("batch-norm-not-synchronised", RANKS, "-model = nn.SyncBatchNorm.convert_sync_batchnorm(Net())\n+model = Net()"),
    (
        "buffer-is-plain-attribute",
        LOOP,
        '-        self.register_buffer("mean", torch.zeros(8))\n+        self.mean = torch.zeros(8)',
    ),
    (
        "buffer-is-trained",
        LOOP,
        '-        self.register_buffer("mean", torch.zeros(8))\n+        self.mean = nn.Parameter(torch.zeros(8))',
    ),
    (
        "buffer-not-persistent",
        TEACHER,
        '-        self.register_buffer("mean", torch.zeros(8))\n'
        '+        self.register_buffer("mean", torch.zeros(8), persistent=False)',
    ),
    ("buffers-not-broadcast", RANKS, "-ddp = DDP(model)\n+ddp = DDP(model, broadcast_buffers=False)"),
]


def changed_lines(before: str, after: str) -> str:
    """The lines that differ, with `-` or `+` in front, in the order of the text."""
    lines = difflib.unified_diff(before.splitlines(), after.splitlines(), lineterm="", n=0)
    return "\n".join(line for line in lines if not line.startswith(("---", "+++", "@@")))


@pytest.mark.parametrize(("name", "script", "expected"), CHANGES, ids=[name for name, _, _ in CHANGES])
def test_operator_makes_its_change(name: str, script: str, expected: str) -> None:
    mutant = next(OPERATORS[name].mutants(Script(script)))
    assert changed_lines(script, mutant.text) == expected


OTHER_MEANINGS = [
    ("labels-not-shifted", "layers = [Linear(a, b) for a, b in zip(sizes[:-1], sizes[1:])]\n"),
    ("pooling-over-padding", "loss = (losses * mask).sum() / mask.sum()\n"),
    ("seed-without-rank", RANKS.replace("mine =", "torch.manual_seed(seed + rank)\nmine =")),
]


@pytest.mark.parametrize(("name", "script"), OTHER_MEANINGS, ids=[name for name, _ in OTHER_MEANINGS])
def test_operator_leaves_code_of_another_meaning(name: str, script: str) -> None:
    assert list(OPERATORS[name].mutants(Script(script))) == []


@pytest.mark.parametrize("path", sorted(ROOT.glob("examples/*.py")), ids=lambda path: path.stem)
def test_mutants_of_examples_are_valid_and_differ(path: Path) -> None:
    script = Script(path.read_text())
    mutants = [next(entry.mutants(script), None) for entry in OPERATORS.values()]
    texts = [mutant.text for mutant in mutants if mutant is not None]
    assert texts or ".backward(" not in script.text
    for text in texts:
        assert text != script.text
        ast.parse(text)


@pytest.mark.parametrize("entry", OPERATORS.values(), ids=OPERATORS)
def test_operator_states_its_mistake(entry: Operator) -> None:
    assert entry.kind in KINDS
    assert entry.about.endswith(".") and len(entry.about.split()) < 24
    pages = {path.stem for path in ROOT.glob("docs/findings/*.md")}
    assert set(entry.diagnoses) <= pages


def test_script_without_training_has_no_mutants() -> None:
    script = Script("import os\n\nprint(os.getcwd())\n")
    assert [entry.name for entry in OPERATORS.values() if any(True for _ in entry.mutants(script))] == []


def test_a_new_operator_moves_no_reserved_one() -> None:
    entries = list(OPERATORS.values())
    assert reserved(entries[:-1]) == reserved(entries) - {entries[-1].name}
