"""What TrainCheck does without a source that failed, could not attach or was switched off.

Note [Silence is not absence]
Such a source reports nothing. Rules would take that for something that the program does not do. So each window names
the sources that observed nothing in it (a reading of kind `source`), and TrainCheck does not judge rules that rest on
one of them there. Windows in which the set of these sources changes are left out, so that none is observed in part.
Relations forget what came before, as they do wherever windows are missing.

Each source declares what it serves (source_declaration.py). `traincheck.testing.availability` proves the declarations.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from traincheck.vocab.demand import Demand
from traincheck.vocab.events import FAILED, MISSING, SWITCHED_OFF
from traincheck.vocab.source_declaration import SourceDeclaration


def needed_source(off: Iterable[str], demand: Demand, declarations: Mapping[str, SourceDeclaration]) -> str:
    """The first of the sources `off` that rules with this demand rest on, empty if there is none.

    Every rule rests on a source that nobody has declared: a newer version or a package that is missing recorded it.
    """
    for name in sorted(off):
        declaration = declarations.get(name)
        if declaration is None or declaration.serves(demand):
            return name
    return ""


@dataclass(frozen=True, slots=True)
class Absence:
    """A source that observed nothing from step `since` on, and `why`; from step `until` on it observed again."""

    source: str
    why: str
    since: int
    until: int | None = None

    def __str__(self) -> str:
        state = {SWITCHED_OFF: "was switched off", FAILED: "failed", MISSING: "could not observe"}.get(
            self.why, self.why
        )
        since = f" at step {self.since}" if self.since else ""
        again = f", and observed again from step {self.until} on" if self.until is not None else ""
        return f"source {self.source} {state}{since}: what rests on it was not judged{' then' if again else ''}{again}"
