"""Proves that rules which do not rest on a source, by its declaration, are judged alike without it.

For the tests of a package that brings a source, or of a change to a declaration::

    from traincheck.testing.availability import check_absence

    def test_no_other_rule_rests_on_it() -> None:
        check_absence("functions", train)

The program is run several times in this process. It must do the same each time, and use what the source observes.
"""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from traincheck import plugins
from traincheck.testing.conformance import NotConforming
from traincheck.testing.demand_filter import observed
from traincheck.vocab.call_kinds import kinds_of
from traincheck.vocab.demand import EVERYTHING, VALUE_KINDS, Demand, union_of
from traincheck.vocab.events import SOURCE, Window


def check_absence(source: str, program: Callable[[], object], project: str | None = None) -> int:
    """Run `program` with and without a source and compare what it does not serve; the number of equal events.

    `project` is the folder of the program's own code (the working directory by default). Raises NotConforming for an
    event that is recorded with the source only although it does not declare it, and ValueError if the source reports
    nothing in this program.
    """
    home = project or str(Path.cwd())
    declaration = plugins.load(plugins.SOURCE_GROUP, [source])[source]
    in_full = _windows(program, EVERYTHING, home)
    of_others = union_of(part for part in _parts(in_full) if not declaration.serves(part))
    attached, without = (_events(_windows(program, of_others, home, off), of_others) for off in ("", source))
    if _events(in_full, EVERYTHING) == _events(_windows(program, EVERYTHING, home, source), EVERYTHING):
        raise ValueError(f"the source {source} reports nothing in this program, so nothing is proven")
    if attached != without:
        missing, additional = (attached - without, without - attached)
        raise NotConforming(
            f"this event differs without the source {source}, although its declaration does not serve it: "
            f"{sorted(map(str, missing or additional))[0]}. Declare it."
        )
    return attached.total()


def _windows(program: Callable[[], object], demand: Demand, project: str, without: str = "") -> list[Window]:
    from traincheck.sources.recording.call_sites import CallSites
    from traincheck.sources.recording.recorder import Recorder
    from traincheck.sources.registry import attach, build

    gc.collect()
    gc.freeze()  # sources look for modules that exist already
    windows: list[Window] = []
    recorder = Recorder(CallSites((project,)), windows.append, lambda source, error: None)
    if without:
        recorder.availability.mark_missing(without)
    undo, _ = attach(build(recorder, lambda: None), demand, recorder)
    try:
        program()
    finally:
        recorder.finish()
        undo.close()
        gc.unfreeze()
    return windows


def _parts(windows: list[Window]) -> list[Demand]:
    """The smallest demands that these windows could serve."""
    demands: dict[Demand, None] = {}
    for window in windows:
        for call in window.calls:
            attributes = {f"{change.kind}.{change.attribute}" for change in window.changes_of.get(call.seq, ())}
            for name in (*call.levels, *kinds_of(call)):
                demands[Demand.of_calls(name)] = None
                demands.update((Demand.of_calls(name, changes=(attribute,)), None) for attribute in attributes)
                demands.update((Demand.of_calls(name, values=(kind,)), None) for kind in VALUE_KINDS)
        for reading in window.readings:
            if reading.kind != SOURCE:
                demands[Demand.of_readings(f"{reading.kind}.{reading.attribute}")] = None
    return list(demands)


def _events(windows: list[Window], demand: Demand) -> Counter[tuple[object, ...]]:
    """The events that a demand asks for, without their positions."""
    events: Counter[tuple[object, ...]] = Counter()
    for window in windows:
        kept = observed(window, demand)
        for call in kept.calls:
            around = tuple(outer.name for outer in kept.ancestors(call))
            tensors = tuple(tensor._replace(storage="") for tensor in call.tensors)
            events["call", window.step, window.stage, call.levels, call.receiver, call.context, call.args, tensors] += 1
            events["inside", window.step, call.name, around] += 1
        others: list[tuple[object, ...]] = [("change", *change[2:]) for change in kept.changes]
        others += [("reading", *reading[2:]) for reading in kept.readings if reading.kind != SOURCE]
        events.update((window.step, window.stage, *other) for other in others)
    return events
