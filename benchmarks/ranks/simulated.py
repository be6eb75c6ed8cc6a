"""Simulate the digests that each rank of a large job sends in a step, for the usual layouts."""

from __future__ import annotations

from dataclasses import dataclass, replace

import xxhash

from traincheck.checking.digests import digests_of, lean, packed, section_of
from traincheck.inference.candidate_selection import select_rules
from traincheck.inference.tally import Tally
from traincheck.inference.tally_runs import tally_ranks
from traincheck.vocab.demand import EVERYTHING
from traincheck.vocab.events import LIFECYCLE, TRAIN, Call, Change, Reading, Window
from traincheck.vocab.facts import facts
from traincheck.vocab.invariant import Invariant

STEP = ("torch.optim.AdamW.step", "torch.optim.Optimizer.step")
PARTS = ("attention_norm", "mlp_norm", "q", "k", "v", "out", "up", "gate", "down", "bias")
"""Parameters of a layer; those of norms are replicated in every layout but fully sharded data parallel training."""
NORMS = PARTS[:2]
WRONG = f"layers.0.{PARTS[0]}"
TENSOR_PARALLEL = 8
"""Ranks that share the layers of a model in the layout `mesh`; groups of them are replicas of each other."""

LAYOUTS = {
    "ddp": "copies of the model",
    "fsdp": "every parameter in shards",
    "mesh": f"{TENSOR_PARALLEL}-way tensor parallel, replicated",
}


@dataclass(frozen=True)
class Job:
    """A job with `ranks` ranks and `parameters` parameters. From `since` on, rank `wrong` has a differing parameter."""

    layout: str
    ranks: int
    parameters: int
    wrong: int = -1
    since: int = 0

    @property
    def names(self) -> list[str]:
        """The names of the parameters."""
        return [f"layers.{number // len(PARTS)}.{PARTS[number % len(PARTS)]}" for number in range(self.parameters)]

    def owner(self, name: str, rank: int) -> int:
        """Ranks with the same owner hold the same of a parameter."""
        part = name.rpartition(".")[2]
        if self.layout == "ddp" or (self.layout == "mesh" and part in NORMS):
            return 0
        return rank if self.layout == "fsdp" else rank % TENSOR_PARALLEL

    def window(self, rank: int, step: int) -> Window:
        """All that a rank records of a step for its parameters."""
        readings: list[Reading] = []
        changes = []
        some = facts(kind="parameter", before="some")
        for index, name in enumerate(self.names):
            before, after = self._value(name, rank, step - 1), self._value(name, rank, step)
            grad = xxhash.xxh3_64_intdigest(f"grad {after}".encode())
            readings.append(Reading(3 * index + 1, 0, name, "parameter", "used_data", before, context=some))
            readings.append(Reading(3 * index + 2, 0, name, "parameter", "used_grad", grad, context=some))
            changes.append(Change(3 * index + 3, 0, name, "parameter", "data", "some", "some", True, fingerprint=after))
        call = Call(0, 10**6, -1, LIFECYCLE, STEP)
        return Window(step - 1, step, TRAIN, (call,), tuple(changes), rank, 1000 + rank, tuple(readings))

    def _value(self, name: str, rank: int, step: int) -> int:
        away = rank if rank == self.wrong and step >= self.since and name == WRONG else -1
        return xxhash.xxh3_64_intdigest(f"{name} {self.owner(name, rank)} {step} {away}".encode())

    def digests_of(self, step: int) -> list[Window]:
        """Return the windows of all ranks in a step.

        Ranks with other shards have other digests. They are derived from those of the first rank, because computing ten
        million values would take minutes and show the same.
        """
        first = lean(self.window(0, step), EVERYTHING)
        digests, (_, *others) = digests_of(first), first.readings
        by_owner: dict[tuple[int, ...], Reading] = {}
        windows = []
        for rank in range(self.ranks):
            owners = tuple(self.owner(section, rank) for section in digests)
            if owners not in by_owner:
                pairs = zip(digests.items(), owners, strict=True)
                by_owner[owners] = packed(
                    {
                        section: xxhash.xxh3_64_intdigest(f"{value} {owner}".encode()) if owner else value
                        for (section, value), owner in pairs
                    }
                )
            reading = by_owner[owners]
            if rank == self.wrong and step >= self.since:
                away, wrong = digests_of(lean(self.window(rank, step), EVERYTHING)), section_of(WRONG)
                reading = packed({**digests_of(replace(first, readings=(reading,))), wrong: away[wrong]})
            windows.append(replace(first, rank=rank, process=1000 + rank, readings=(reading, *others)))
        return windows


def rules() -> list[Invariant]:
    """Return the rules about replicas, learned from three good runs of a small job."""
    tallies = []
    for run in range(3):
        tally = Tally(f"train{run}.py", str(run), str(run))
        job = Job("mesh", 2 * TENSOR_PARALLEL, 2 * len(PARTS))
        tally_ranks([[job.window(rank, step) for step in range(1, 13)] for rank in (0, 1, TENSOR_PARALLEL)], tally)
        tally.steps = 12
        tallies.append(tally)
    return list(select_rules(tallies)[0].invariants)
