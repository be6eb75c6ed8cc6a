"""Absence: proves that a demand which asks nothing of a source is served without it.

For the tests of a package that brings a source, or of a change to `traincheck.vocab.availability`::

    from traincheck.testing.availability import check_absence

    def test_nothing_else_rests_on_it() -> None:
        check_absence("functions", train)

The program is run several times in this process. It is to do the same each time, and to use what the source observes.
"""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from traincheck.testing.conformance import NotConforming
from traincheck.testing.demand_filter import observed
from traincheck.vocab.availability import touched
from traincheck.vocab.call_kinds import kinds_of
from traincheck.vocab.demand import ARGUMENTS, EVERYTHING, READINGS, SCALE, TENSORS, VALUES, Demand
from traincheck.vocab.events import SOURCE, Window

_OF_CALLS = (ARGUMENTS, TENSORS, *VALUES, SCALE)


def check_absence(source: str, program: Callable[[], object], project: str | None = None) -> int:
    """Run `program` with and without a source, asking for all that is not its by `serves`; how many events were alike.

    `project` is the folder of the program's own code (the working directory by default). Raises NotConforming for an
    event that was told with the source only, and ValueError where the source tells of nothing in this program.
    """
    home = project or str(Path.cwd())
    everything = _windows(program, EVERYTHING, home)
    of_others = Demand()
    for part in _parts(everything):
        if not touched((source,), part):
            of_others |= part
    told, without = (_events(_windows(program, of_others, home, off), of_others) for off in ("", source))
    if _events(everything, EVERYTHING) == _events(_windows(program, EVERYTHING, home, source), EVERYTHING):
        raise ValueError(f"the source {source} tells of nothing in this program, so nothing is proven")
    if told != without:
        lost, more = (told - without, without - told)
        raise NotConforming(
            f"without the source {source} this is told otherwise, although `serves` says that it is not its: "
            f"{sorted(map(str, lost or more))[0]}. Have `serves` in vocab/availability.py say so."
        )
    return told.total()


def _windows(program: Callable[[], object], demand: Demand, project: str, without: str = "") -> list[Window]:
    from traincheck.sources.recording.call_sites import Sites
    from traincheck.sources.recording.recorder import Recorder
    from traincheck.sources.registry import attach, build

    gc.collect()
    gc.freeze()  # modules that exist already are looked for
    found: list[Window] = []
    recorder = Recorder(Sites((project,)), found.append, lambda source, error: None)
    if without:
        recorder.absences.begin_without(without)
    undo, _ = attach(build(recorder, lambda: None), demand, recorder)
    try:
        program()
    finally:
        recorder.finish()
        undo.close()
        gc.unfreeze()
    return found


def _parts(windows: list[Window]) -> list[Demand]:
    """All that can be asked of what was told, one by one."""
    found: dict[Demand, None] = {}
    for window in windows:
        for call in window.calls:
            attributes = {f"{change.kind}.{change.attribute}" for change in window.changes_of.get(call.seq, ())}
            for name in (*call.levels, *kinds_of(call)):
                found[Demand(frozenset((name,)))] = None
                for what in (*_OF_CALLS, *attributes):
                    found[Demand(frozenset((name,)), frozenset(((name, what),)))] = None
        for reading in window.readings:
            if reading.kind != SOURCE:
                found[Demand(states=frozenset(((f"{reading.kind}.{reading.attribute}", READINGS),)))] = None
    return list(found)


def _events(windows: list[Window], demand: Demand) -> Counter[tuple[object, ...]]:
    """What was told, without positions."""
    found: Counter[tuple[object, ...]] = Counter()
    for window in windows:
        kept = observed(window, demand)
        for call in kept.calls:
            around = tuple(one.name for one in kept.ancestors(call))
            tensors = tuple(tensor._replace(storage="") for tensor in call.tensors)
            found["call", window.step, window.stage, call.levels, call.receiver, call.context, call.args, tensors] += 1
            found["inside", window.step, call.name, around] += 1
        others: list[tuple[object, ...]] = [("change", *change[2:]) for change in kept.changes]
        others += [("reading", *reading[2:]) for reading in kept.readings if reading.kind != SOURCE]
        found.update((window.step, window.stage, *other) for other in others)
    return found
