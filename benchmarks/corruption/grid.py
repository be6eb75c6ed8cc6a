"""The grid of the benchmark: trainings with one fault each, and as many trainings without a fault."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from traincheck.sdc.faults.fault import BACKWARD, BITFLIP, COMMUNICATION, FORWARD, GRADIENT, OPTIMIZER, STUCK, Fault

DECODER, IMAGES = "decoder-tiny", "benchmarks.corruption.workloads:images"
NAMES = {DECODER: "decoder", IMAGES: "images"}

BITS = (2, 20, 25, 30, 31)
"""Of fp32: low in the mantissa (a change by some millionths), high in it (an eighth), low in the exponent (a factor of
16), the highest one of it (2^128), the sign."""
WORDS_OF_BITS = {
    2: "2, low in the mantissa",
    20: "20, high in the mantissa",
    25: "25, low in the exponent",
    30: "30, highest of the exponent",
    31: "31, the sign",
}
SITES = (FORWARD, BACKWARD, GRADIENT, OPTIMIZER)
RATES = (0.05, 0.5, 5.0)
"""Strokes a step on the average, wherever they may come: the chance of each place is this over the number of them."""
WORDS_OF_RATES = {0.05: "1 in 20 steps", 0.5: "1 in 2 steps", 5.0: "5 a step"}

PATTERNS = {
    FORWARD: {DECODER: "Linear", IMAGES: "*"},
    BACKWARD: {DECODER: "Linear", IMAGES: "*"},
    GRADIENT: {DECODER: "*weight", IMAGES: "*weight"},
    OPTIMIZER: {DECODER: "*weight", IMAGES: "*weight"},
    COMMUNICATION: {DECODER: "gradients", IMAGES: "gradients"},
}
PLACES = {
    FORWARD: {DECODER: 15, IMAGES: 7},
    BACKWARD: {DECODER: 15, IMAGES: 7},
    GRADIENT: {DECODER: 21, IMAGES: 3},
    OPTIMIZER: {DECODER: 21, IMAGES: 3},
    COMMUNICATION: {DECODER: 21, IMAGES: 6},
}
"""How many places of a step a pattern names: calls of modules, or parameters. A test counts them."""

LASTING = 8
"""Elements that a stuck bit is in: in some of them it has the other value, else it would be no fault."""
CLEAN_SEEDS = 1000
"""Seeds of the trainings without a fault begin here: no training has both, so what is tuned on the one kind is judged
by the other."""


@dataclass(frozen=True)
class Point:
    """A training of a workload, and the fault in it; `site` is empty where there is none. A stuck bit strikes always,
    so it has no rate."""

    workload: str
    seed: int
    site: str = ""
    bit: int = 0
    rate: float = 0.0
    kind: str = BITFLIP

    @property
    def fault(self) -> Fault | None:
        """The fault."""
        if not self.site:
            return None
        pattern, places = PATTERNS[self.site][self.workload], PLACES[self.site][self.workload]
        # Of its own for each point: with the same seed all bits would be hit in the same steps at the same places.
        seed = zlib.crc32(repr(self).encode()) % 100_000
        if self.kind == STUCK:
            return Fault(STUCK, self.site, pattern, bit=self.bit, elements=LASTING, seed=seed)
        return Fault(BITFLIP, self.site, pattern, bit=self.bit, chance=min(1.0, self.rate / places), seed=seed)

    def data(self) -> dict[str, object]:
        """As JSON holds it."""
        result = {"workload": NAMES[self.workload], "seed": self.seed}
        fault = self.fault
        if fault is None:
            return result
        return {**result, "site": self.site, "bit": self.bit, "rate": self.rate, "kind": self.kind, "fault": fault.text}


@dataclass(frozen=True)
class Grid:
    """Bit positions x sites x rates x seeds."""

    bits: Sequence[int]
    sites: Sequence[str]
    rates: Sequence[float]
    seeds: int
    stuck: Sequence[str] = ()
    """CallSites at which a bit is stuck, besides."""

    def points(self, workload: str) -> Iterator[Point]:
        """The trainings with a fault."""
        for seed in range(self.seeds):
            for site in self.sites:
                for bit in self.bits:
                    for rate in self.rates:
                        yield Point(workload, seed, site, bit, rate)
            for site in self.stuck:
                yield Point(workload, seed, site, 20, kind=STUCK)

    def clean(self, workload: str) -> Iterator[Point]:
        """As many without one, each with weights and data of its own."""
        for number, point in enumerate(self.points(workload)):
            yield replace(point, seed=CLEAN_SEEDS + number, site="", bit=0, rate=0.0, kind=BITFLIP)

    def all(self, workload: str) -> list[Point]:
        """Both kinds."""
        return [*self.points(workload), *self.clean(workload)]


WHOLE = Grid(BITS, SITES, RATES, 2, stuck=(FORWARD, OPTIMIZER))
HALF = Grid(BITS, SITES, RATES, 1)
"""For the second workload."""
QUICK = Grid((20,), (OPTIMIZER,), (0.5,), 1)
