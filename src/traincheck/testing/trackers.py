"""Check that an experiment tracker accepts every run.

For the tests of a package that brings its own tracker::

    from traincheck.testing.trackers import check_tracker

    def test_my_tracker(tmp_path: Path) -> None:
        check_tracker(MyTracker, tmp_path, target="http://127.0.0.1:5000")

All runs are tracked in this process, one after the other. Use a disposable target: a server of the test, or a folder.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from traincheck.testing.sinks import NotConforming, reports
from traincheck.vocab.finding import Report
from traincheck.vocab.run_status import ENDED, GOING, KILLED, SILENT, STARTING, TRAINING, RankStatus, RunStatus

METHODS = ("open", "show", "measure", "close")


def statuses() -> Sequence[RunStatus]:
    """Return typical states of a run: before its first step, training, with a silent rank, ended, and killed."""
    rank = RankStatus(0, 7, "", TRAINING, 12, 13, 1, 3.5, 0.25, 1.5, 1.0)
    starting = replace(rank, state=STARTING, steps=0, windows=0, dropped=0, steps_per_second=None, cost=None)
    going = RunStatus("runs/one", GOING, "train.py", "run", rules=9, ranks=(starting,))
    two = (rank, replace(rank, rank=1, steps=11, state=SILENT, silent=90.0))
    return (
        going,
        replace(going, checked=4, errors=2, notices=1, ranks=two),
        replace(going, state=ENDED, exit_code=0, checked=4, errors=2, notices=1, ranks=two),
        replace(going, state=KILLED, ranks=()),
    )


def check_tracker(tracker: Any, folder: Path, target: str = "") -> int:
    """Check every promise of the class `tracker`, with run folders below `folder`; returns the number of runs.

    Raises NotConforming for the first promise that is broken.
    """
    _is_a_tracker(tracker)
    samples = {**reports(), "no report": None}
    for number, (name, report) in enumerate(samples.items()):
        home = folder / f"run-{number}"
        home.mkdir()
        page = home / "report.html"
        page.write_text("<p>", encoding="utf-8")
        _follows(tracker, target, home, report, (page,) if report is not None else (), f"of the run '{name}'")
    return len(samples)


def _is_a_tracker(tracker: Any) -> None:
    if not isinstance(tracker, type):
        raise NotConforming(f"{tracker!r} is not a class. Give the class of the tracker, not an instance.")
    name = getattr(tracker, "name", None)
    if not isinstance(name, str) or not name or set(name) & set("=, "):
        raise NotConforming(f'{tracker.__name__} has no name that --track could take. Write `name = "..."`, without =.')
    missing = [method for method in METHODS if not callable(getattr(tracker, method, None))]
    if missing:
        raise NotConforming(
            f"{name} has no {', '.join(missing)}. Copy the missing methods from trackers/tensorboard.py."
        )


def _follows(tracker: Any, target: str, home: Path, report: Report | None, files: tuple[Path, ...], where: str) -> None:
    before = copy.deepcopy(report)
    try:
        instance = tracker(target)
        url = instance.open({"folder": str(home), "script": "train.py", "host": "somewhere"})
        for status in statuses():
            instance.measure(status)
            for finding in report.findings if report is not None else ():
                instance.show(finding)
        instance.close(report, files)
    except Exception as error:
        raise NotConforming(f"{where}, {tracker.name} raises {error!r}. Accept every run.") from error
    if not isinstance(url, str):
        raise NotConforming(f"{where}, {tracker.name} returns {url!r} from `open`. Return a text.")
    if report != before:
        raise NotConforming(f"{where}, {tracker.name} changes the report. Copy objects before you change them.")
