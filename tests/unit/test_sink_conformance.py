"""The conformance kit accepts the built-in sinks, and reports each broken promise with its cure."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

from traincheck import plugins
from traincheck.reporting.base import Document
from traincheck.testing.sinks import NotConforming, check_sink
from traincheck.vocab.finding import Report

OURS = plugins.load("traincheck.sinks", only=plugins.SINKS)
numbers = itertools.count()


@pytest.mark.parametrize("name", OURS)
def test_our_sinks_conform(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "summary.md"))
    assert check_sink(OURS[name], tmp_path) == 6


class Kept(Document):
    """A sink that keeps its promises. The broken ones below are made from it."""

    name = "kept"
    file = "kept.txt"

    def text(self, report: Report) -> str:
        return f"{len(report.findings)}\n"


def broken(**members: Any) -> type[Kept]:
    return type("Broken", (Kept,), members)


def written(self: Kept, report: Report) -> None:
    (Path(self._target).parent / "other.txt").write_text("")


def silently(self: Kept, report: Report) -> None:
    if not Path(self._target).is_dir():
        Kept.close(self, report)


BROKEN: dict[str, tuple[Any, str]] = {
    "no class": (Kept(""), "is not a class"),
    "no name": (broken(name=""), "has no name"),
    "a name that no option could take": (broken(name="a=b"), "has no name"),
    "no file": (broken(file=None), "which file it writes"),
    "a path": (broken(file="a/b"), "which file it writes"),
    "no method": (broken(close=None), "has no close"),
    "constructor": (broken(__init__=lambda self: None), "raises TypeError"),
    "refuses": (broken(text=lambda self, report: report.findings[0].title), "raises IndexError"),
    "other file": (broken(close=written), "leaves"),
    "prints": (broken(show=lambda self, finding: print("found")), "prints 'found"),
    "changes": (broken(close=lambda self, report: report.run.update(a=1)), "changes the report"),
    "chance": (broken(text=lambda self, report: str(next(numbers))), "another document each time"),
    "steers": (broken(text=lambda self, report: "".join(finding.title for finding in report.findings)), "passes on"),
    "says nothing": (broken(open=lambda self, run: None, close=silently), "accepts a folder"),
}


def test_a_sink_that_keeps_its_promises(tmp_path: Path) -> None:
    assert check_sink(Kept, tmp_path) == 6


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_promise_is_reported_with_its_cure(name: str, tmp_path: Path) -> None:
    sink, message = BROKEN[name]
    with pytest.raises(NotConforming, match=message) as raised:
        check_sink(sink, tmp_path)
    assert str(raised.value).endswith(".")
