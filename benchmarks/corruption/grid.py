"""Define the benchmark grid: trainings with one fault each, and as many without a fault."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from traincheck.sdc.faults.fault import (
    BACKWARD,
    BITFLIP,
    COMMUNICATION,
    FORWARD,
    GRADIENT,
    INTERMITTENT,
    OPTIMIZER,
    STUCK,
    Fault,
)

DECODER, IMAGES = "decoder-tiny", "benchmarks.corruption.workloads:images"
NAMES = {DECODER: "decoder", IMAGES: "images"}

BITS = (2, 20, 25, 30, 31)
"""Bits of fp32: low in the mantissa (a change by some millionths), high in it (an eighth), low in the exponent (a
factor of 16), the highest exponent bit (2^128), the sign."""
WORDS_OF_BITS = {
    2: "2, low in the mantissa",
    20: "20, high in the mantissa",
    25: "25, low in the exponent",
    30: "30, highest of the exponent",
    31: "31, the sign",
}
SITES = (FORWARD, BACKWARD, GRADIENT, OPTIMIZER)
RATES = (0.05, 0.5, 5.0)
"""Average strokes per step over all locations; each location has this rate divided by their number."""
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
"""Locations per step that match a pattern: module calls or parameters. A test counts them."""

DEFECTIVE = {
    FORWARD: "*layers.1.feed_forward.up",
    BACKWARD: "*layers.1.feed_forward.up",
    GRADIENT: "*layers.1.feed_forward.up.weight",
    OPTIMIZER: "*layers.1.feed_forward.up.weight",
}
"""The location of an intermittent defect in the decoder, which no other location shares. The exchange of gradients has
the locations above."""
CHANCES = RATES[:2]
"""Average strokes per step of an intermittent defect: with one location, also the share of wrong executions."""

LASTING = 8
"""Elements with a stuck bit; in some of them the bit has the other value, so the fault has an effect."""
CLEAN_SEEDS = 1000
"""First seed of the trainings without a fault. Faulty and clean trainings share no seed, so tuning data is separate."""


@dataclass(frozen=True)
class Point:
    """A training of a workload with its fault; `site` is empty without one. A stuck bit always strikes: no rate."""

    workload: str
    seed: int
    site: str = ""
    bit: int = 0
    rate: float = 0.0
    kind: str = BITFLIP

    @property
    def fault(self) -> Fault | None:
        """Return the fault, or None."""
        if not self.site:
            return None
        pattern, places = PATTERNS[self.site][self.workload], PLACES[self.site][self.workload]
        if self.kind == INTERMITTENT and self.site in DEFECTIVE:
            pattern, places = DEFECTIVE[self.site], 1
        # Of its own for each point: with the same seed all bits would be hit in the same steps at the same places.
        seed = zlib.crc32(repr(self).encode()) % 100_000
        if self.kind == STUCK:
            return Fault(STUCK, self.site, pattern, bit=self.bit, elements=LASTING, seed=seed)
        chance = min(1.0, self.rate / places)
        if self.kind == INTERMITTENT:
            return Fault(INTERMITTENT, self.site, pattern, chance=chance, seed=seed)
        return Fault(BITFLIP, self.site, pattern, bit=self.bit, chance=chance, seed=seed)

    def data(self) -> dict[str, object]:
        """Return the point for JSON."""
        result = {"workload": NAMES[self.workload], "seed": self.seed}
        fault = self.fault
        if fault is None:
            return result
        bit = {} if self.kind == INTERMITTENT else {"bit": self.bit}
        return {**result, "site": self.site, **bit, "rate": self.rate, "kind": self.kind, "fault": fault.text}


@dataclass(frozen=True)
class Grid:
    """Bit positions x sites x rates x seeds."""

    bits: Sequence[int]
    sites: Sequence[str]
    rates: Sequence[float]
    seeds: int
    stuck: Sequence[str] = ()
    """Additional sites with a stuck bit."""
    intermittent: Sequence[str] = ()
    """Additional sites with an intermittent defect, at each of `CHANCES`."""

    def points(self, workload: str) -> Iterator[Point]:
        """Yield the trainings with a fault."""
        for seed in range(self.seeds):
            for site in self.sites:
                for bit in self.bits:
                    for rate in self.rates:
                        yield Point(workload, seed, site, bit, rate)
            for site in self.stuck:
                yield Point(workload, seed, site, 20, kind=STUCK)
            for site in self.intermittent:
                for chance in CHANCES:
                    yield Point(workload, seed, site, rate=chance, kind=INTERMITTENT)

    def clean(self, workload: str) -> Iterator[Point]:
        """Yield as many trainings without a fault, each with different weights and data."""
        for number, point in enumerate(self.points(workload)):
            yield replace(point, seed=CLEAN_SEEDS + number, site="", bit=0, rate=0.0, kind=BITFLIP)

    def all(self, workload: str) -> list[Point]:
        """Return trainings with and without a fault."""
        return [*self.points(workload), *self.clean(workload)]


WHOLE = Grid(BITS, SITES, RATES, 2, stuck=(FORWARD, OPTIMIZER), intermittent=SITES)
HALF = Grid(BITS, SITES, RATES, 1)
"""The grid of the second workload."""
QUICK = Grid((20,), (OPTIMIZER,), (0.5,), 1)
