"""The size of numbers of a training, compared with good runs: updates, gradients, zeros in these, outputs of modules.

No single size is right, but good runs of a program agree on it, as long as they are at about the same progress (see
sources/optimizers/magnitudes.py, and Note [How often a good run leaves a band] in vocab/bands.py). People tune learning
rates and batch sizes, which moves these numbers. So one number outside its band is a notice. It is an error if the
median of the last `IN_A_ROW` numbers is outside a much wider band.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from statistics import median_low

from traincheck.relations.parts import FORWARD, UPDATE, Part, named
from traincheck.vocab.bands import MAX_OCTAVE, text_of
from traincheck.vocab.bounded_cache import BoundedCache
from traincheck.vocab.demand import GRADIENT_SHARE, MAGNITUDES, MODEL, NONZERO_SHARE, OUTPUT_SIZE, UPDATE_RATIO, Demand
from traincheck.vocab.events import Reading, Window
from traincheck.vocab.occasion import Occasion, Property, Subject
from traincheck.vocab.properties import LIES_AT, LIES_IN_BAND, STAYS_AT, band_of

QUANTITY = f"{MODEL}.{MAGNITUDES}"

BANDS = Demand.of_calls(UPDATE, FORWARD) | Demand.of_readings(QUANTITY)
"""The demand for all numbers, see own_runs.py."""

IN_A_ROW = 3
PHASE_GROWTH = 4
"""Numbers are compared within steps 1 to 4, 5 to 16, 17 to 64 and so on."""

_SENTENCES = {
    UPDATE_RATIO: "an update changes {module} by {size} of its weights",
    GRADIENT_SHARE: "{module} has {size} of the gradient norm of its model",
    NONZERO_SHARE: "{size} of the gradient elements of {module} are not zero",
    OUTPUT_SIZE: "the root mean square of the output of {module} is {size}",
}
_OF, _AT, _SEVERAL = " of ", " at ", f", median of {IN_A_ROW}"


class Bands(Part):
    """Yields two occasions for each number: its size, and the median of the last sizes."""

    def __init__(self) -> None:
        self._last: BoundedCache[tuple[str, str, str], list[int]] = BoundedCache()

    def occasions(self, window: Window) -> Iterator[Occasion]:
        readings = [reading for reading in window.readings if named(reading) == QUANTITY]
        lines = [(line, reading) for reading in readings for line in str(reading.value).split("\n")]
        # Without an update that was measured, the run continues another one, and outputs are those of a trained model.
        if not all(line.startswith(OUTPUT_SIZE) for line, _ in lines):
            for line, reading in lines:
                call = window.by_seq.get(reading.call)
                yield from self._of_line(line, reading, call.receiver if call is not None else "", window.step)

    def _of_line(self, line: str, reading: Reading, receiver: str, step: int) -> Iterator[Occasion]:
        quantity, _, rest = line.partition(" ")
        size, _, path = rest.partition(" ")
        octave = _octave(size)
        if octave is None or quantity not in _SENTENCES:
            return
        module = ".".join(filter(None, (reading.variable.partition("#")[0], path)))
        grain = f"{quantity}{_OF}{module}{_AT}{_phase(step)}"
        last = self._last.setdefault((receiver, reading.variable, f"{quantity} {path}"), [])
        last[:] = [*last[1 - IN_A_ROW :], octave]
        yield _occasion(grain, LIES_AT, octave, reading)
        if len(last) == IN_A_ROW:
            yield _occasion(f"{grain}{_SEVERAL}", STAYS_AT, median_low(last), reading)

    def forget(self) -> None:
        """Numbers before a gap are old."""
        self._last.clear()

    @staticmethod
    def speaks_of(subject: Subject) -> bool:
        return subject.api == QUANTITY

    @staticmethod
    def needs(subject: Subject, prop: Property) -> Demand:
        return BANDS

    @staticmethod
    def is_optional_practice(prop: Property) -> bool:
        return prop.verb == LIES_IN_BAND

    @staticmethod
    def describe(subject: Subject, prop: Property) -> str:
        band = band_of(prop)
        phase = subject.grain.partition(_AT)[2].removesuffix(_SEVERAL)
        size = band.shown if band is not None else prop.detail
        within = f", or at most {2**band.margin} times more or less" if band is not None else ""
        several = f" in {IN_A_ROW} updates in a row" if subject.grain.endswith(_SEVERAL) else ""
        return f"at {phase}, {_sentence(subject.grain, size)}{within}{several}"


def _octave(size: str) -> int | None:
    """The octave of a number; None for no positive number, or one out of range."""
    try:
        octave = round(math.log2(float(size)))
    except (ValueError, OverflowError):
        return None
    return octave if abs(octave) <= MAX_OCTAVE else None


def _phase(step: int) -> str:
    """The steps that a step is compared with, on a logarithmic scale."""
    last = PHASE_GROWTH
    while last < step:
        last *= PHASE_GROWTH
    first = 1 if last == PHASE_GROWTH else last // PHASE_GROWTH + 1
    return f"steps {first} to {last}"


def _occasion(grain: str, verb: str, octave: int, reading: Reading) -> Occasion:
    """Whether the octave is in the band of a rule; the rules of other bands are not judged."""
    held = frozenset((Property(verb, QUANTITY, text_of(octave)),))
    note = f"here {_sentence(grain, text_of(octave))}"
    return Occasion(Subject(QUANTITY, grain), (), held, frozenset(), reading.call, (reading.variable,), note=note)


def _sentence(grain: str, size: str) -> str:
    quantity, _, rest = grain.partition(_AT)[0].partition(_OF)
    return _SENTENCES.get(quantity, "{module} has the size {size}").format(module=rest, size=size)
