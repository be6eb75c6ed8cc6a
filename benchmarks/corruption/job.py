"""Train points on one of two ranks, with the checks of `traincheck run`.

Start it with `torchrun --nproc-per-node 2 -m benchmarks.corruption.job FOLDER`. FOLDER/tasks.jsonl has the check and
the point of each training. Rank R writes a line for each into FOLDER/rank-R.jsonl. Each training has a separate run
folder and process group, so ranks exchange messages of one training only.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import traincheck
from benchmarks.corruption.alarm_training import CPU, NONE
from benchmarks.corruption.grid import Point
from benchmarks.corruption.rank_checks import RANK_CHECKS, RULES, RankCheck
from traincheck.invariants.book import Book, read_book, write_book
from traincheck.invariants.packs import SHIPPED
from traincheck.sdc.determinism import make_deterministic
from traincheck.sdc.workload.workload import load_workload
from traincheck.sources.tensors.reading import fingerprints
from traincheck.testing.corruption import inject
from traincheck.vocab.invariant import Precondition

STEPS = 40
FAULTY = 1
"""The rank with the fault."""


def main(folder: Path) -> None:
    """Train the points of all tasks."""
    rank = int(os.environ["RANK"])
    books = {reduced: folder / f"rules-{rank}-{reduced}.jsonl" for reduced in (False, True)}
    for reduced, book in books.items():
        write_book(rules_about_replicas(reduced=reduced), book)
    with (folder / f"rank-{rank}.jsonl").open("a") as results:
        for number, line in enumerate((folder / "tasks.jsonl").read_text().splitlines()):
            task = json.loads(line)
            book = books[RANK_CHECKS[task["watch"]].reduced]
            outcome = train(task["watch"], Point(**task["point"]), rank, folder / f"{number}", book)
            print(json.dumps({"number": number, **outcome}), file=results, flush=True)


def rules_about_replicas(*, reduced: bool) -> Book:
    """Return the rules about replicas of the pack for several ranks.

    Ranks that reduce nothing train different models in most programs, so the rules of the pack have conditions. They
    exclude twins, whose rules have none.
    """
    whole = read_book(SHIPPED / "distributed.jsonl")
    chosen = tuple(rule for rule in whole.invariants if rule.sentence in RULES)
    assert len(chosen) == len(RULES), "the pack has other sentences than RULES"
    if not reduced:
        chosen = tuple(replace(rule, precondition=Precondition(), id="") for rule in chosen)
    return replace(whole, invariants=chosen)


def train(name: str, point: Point, rank: int, home: Path, book: Path) -> dict[str, Any]:
    """Train a point; return the strokes on this rank and the findings of its report."""
    home.mkdir(exist_ok=True)
    check = RANK_CHECKS[name]
    dist.init_process_group("gloo", init_method=f"file://{home / 'store'}", rank=rank, world_size=2)
    make_deterministic(point.seed, 1)
    with traincheck.checked(
        home / "run", book, compare_ranks="exchange", record_after_finding=0, **check.options
    ) as seen:
        training = _trained(check, point, rank)
        dist.barrier()
    dist.barrier()
    dist.destroy_process_group()
    assert seen.report is not None
    findings = [
        {
            "step": finding.step,
            "diagnosis": finding.diagnosis,
            "title": finding.title,
            "severity": finding.severity,
            "compared": finding.compared,
        }
        for finding in seen.report.findings
    ]
    return {**training, "findings": findings, "not_observed": list(seen.report.not_observed)}


def _trained(check: RankCheck, point: Point, rank: int) -> dict[str, Any]:
    workload = load_workload(point.workload, point.seed, CPU)
    model = workload.build_model()
    optimizer = workload.build_optimizer(model)
    if check.reduced:
        model = DistributedDataParallel(model)
    fault = check.fault(point) if rank == FAULTY else None
    with inject(model, optimizer, fault or NONE) as injected:
        for step in range(1, STEPS + 1):
            optimizer.zero_grad()
            batch = workload.batch(2 * step + rank if check.reduced else step)
            workload.loss(model, batch).backward()
            optimizer.step()
    weights = [weight.detach() for weight in model.parameters()]
    return {
        "strokes": injected.times,
        "first": injected.hits[0].step if injected.hits else None,
        "weights": [f"{weight or 0:016x}" for weight in fingerprints(weights)],
    }


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
