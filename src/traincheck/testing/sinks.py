"""Check that a report sink keeps the promises of `reporting.base`, whatever a report contains.

For the tests of a package that brings its own sink::

    from traincheck.testing.sinks import check_sink

    def test_my_sink(tmp_path: Path) -> None:
        check_sink(MySink, tmp_path)

The sink receives reports of runs that were clean, faulty, interrupted, and full of untrusted text. For a sink that
writes no file (its `file` is empty), pass its constructor argument as `target`; fewer promises can be checked.
"""

from __future__ import annotations

import copy
import io
from collections.abc import Mapping
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import replace
from pathlib import Path
from typing import Any

from traincheck.errors import OutputError
from traincheck.vocab.finding import Cost, Counts, Finding, Report, Site
from traincheck.vocab.invariant import ERROR, NOTICE

METHODS = ("open", "show", "close")

HOSTILE = (
    "]]><script>alert(1)</script>",
    "a | b `c` **d** [e](http://example.com) www.example.com <!-- @someone",
    "one\ntwo\r\n::error file=x::y\r%0A, title=z",
    "\x1b]0;title\x07 \x00\x08 \u202egnp.exe \ufffe \ud800",
    "\"quoted\" 'and' &amp; {{ 7 * 7 }} ${jndi} \\n",
)
"""Text that an untrusted program may use as the name of a parameter or function: sinks must show it as plain text."""

FORBIDDEN = ("\x1b", "\x00", "\x07", "\x08", "\u202e")
"""Control characters, which must not reach a document."""


class NotConforming(AssertionError):
    """A sink breaks a promise. The message names the promise, the report and the cure."""


def reports() -> Mapping[str, Report]:
    """Return the reports by name: nothing checked, clean, bad, notices only, hostile, and one with many findings."""
    bad = Finding(
        severity=ERROR,
        step=3,
        rank=1,
        title="The optimizer changes none of the model's parameters",
        cause="It was built before the model was moved.",
        site=Site("project/train.py", 42, "train_step"),
        variables=("head.weight", "head.bias"),
        expected="a parameter changes",
        observed="none did in 118 calls",
        advice=("the line that builds the optimizer",),
        invariants=("0123456789ab",),
        last_step=120,
        times=118,
        ranks=(1,),
    )
    least = Finding(NOTICE, 0, 0, "Something", "", None, (), "", "", (), (), 0, 1)
    counts = Counts(invariants=12, passed=9, violated=2, not_triggered=1, errors=1, steps=120, windows=130, processes=2)
    run: dict[str, object] = {
        "script": "train.py",
        "started": "2026-01-02T03:04:05+00:00",
        "ended": None,
        "processes": 2,
    }
    cost = Cost(120, 44, 640.0, {"optimizers": 2.56}, {"trace": 1.6})
    strange = [
        replace(
            bad,
            title=text,
            cause=text,
            site=Site(text, 1, text),
            variables=(text, *HOSTILE),
            expected=text,
            observed=text,
            advice=(text,),
            invariants=(text,),
        )
        for text in HOSTILE
    ]
    return {
        "nothing checked": Report((), Counts(), ("torch was not imported",), {}),
        "clean": Report((), replace(counts, violated=0, errors=0), (), run, cost=cost),
        "bad": Report((bad, least), counts, ("compiled regions", "compiled regions"), run, cost=cost),
        "notices": Report((least, replace(least, step=5)), replace(counts, errors=0, notices=2), (), run),
        "hostile": Report(tuple(strange), counts, HOSTILE, {"script": HOSTILE[0], HOSTILE[1]: HOSTILE[2]}),
        "many": Report(tuple(replace(bad, step=step) for step in range(500)), replace(counts, errors=500), (), run),
    }


def check_sink(sink: Any, folder: Path, target: str = "") -> int:
    """Check every promise of the class `sink`, which may write below `folder`; returns the number of reports.

    Raises NotConforming for the first promise that is broken.
    """
    _is_a_sink(sink)
    samples = reports()
    for number, (name, report) in enumerate(samples.items()):
        home = folder / f"sink-{number}"
        home.mkdir()
        _takes(sink, report, home / sink.file if sink.file else target, home, f"with the report '{name}'")
    if sink.file:
        _refuses_a_folder(sink, folder)
    return len(samples)


def _fail(promise: str, cure: str) -> NotConforming:
    return NotConforming(f"{promise}. {cure}.")


def _is_a_sink(sink: Any) -> None:
    if not isinstance(sink, type):
        raise _fail(f"{sink!r} is not a class", "Give the class of the sink, not an instance")
    name = getattr(sink, "name", None)
    if not isinstance(name, str) or not name or not name.isascii() or set(name) & set("=, "):
        raise _fail(f"{sink.__name__} has no name that --report could take", 'Write `name = "..."`: ASCII, no =')
    file = getattr(sink, "file", None)
    if not isinstance(file, str) or Path(file).name != file:
        raise _fail(f"{name} does not say which file it writes", 'Write `file = "name.txt"`, or "" if it writes none')
    missing = [method for method in METHODS if not callable(getattr(sink, method, None))]
    if missing:
        raise _fail(f"{name} has no {', '.join(missing)}", "Derive it from traincheck.reporting.base.Document")


def _takes(sink: Any, report: Report, target: str | Path, home: Path, where: str) -> None:
    before = copy.deepcopy(report)
    written = []
    for shows in (True, False):
        output = io.StringIO()
        with redirect_stdout(output), redirect_stderr(output if sink.file else io.StringIO()):
            _runs(sink, report, target, shows, where)
        if report != before:
            raise _fail(f"{where}, {sink.name} changes the report", "Copy objects before you change them")
        if not sink.file:
            continue
        if output.getvalue():
            raise _fail(f"{where}, {sink.name} prints {output.getvalue()[:40]!r}", "Write the file, and nothing else")
        names = sorted(path.name for path in home.rglob("*"))
        if names != [sink.file]:
            raise _fail(f"{where}, {sink.name} leaves {names} and not {sink.file!r}", "Write to the given target")
        written.append((home / sink.file).read_bytes())
    if written and written[0] != written[1]:
        raise _fail(f"{where}, {sink.name} writes another document each time", "Write the report that `close` receives")
    for data in written[:1]:
        _can_be_shown(sink, data, where)


def _runs(sink: Any, report: Report, target: str | Path, shows: bool, where: str) -> None:
    """Open the sink, show the findings if `shows`, and close it, as commands do."""
    try:
        instance = sink(str(target), lambda: [])
        instance.open({"script": report.run.get("script", ""), "fail_on": "error"})
        for finding in report.findings if shows else ():
            instance.show(finding)
        instance.close(report)
    except Exception as error:
        raise _fail(f"{where}, {sink.name} raises {error!r}", "Accept every report") from error


def _can_be_shown(sink: Any, data: bytes, where: str) -> None:
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise _fail(
            f"{where}, {sink.name} writes no UTF-8 ({error})", "Encode with errors='backslashreplace'"
        ) from None
    passed_on = [repr(character) for character in FORBIDDEN if character in text]
    if passed_on:
        raise _fail(
            f"{where}, {sink.name} passes on {', '.join(passed_on)}", "Use traincheck.terminal_text.plain, or escape it"
        )


def _refuses_a_folder(sink: Any, folder: Path) -> None:
    """Check that a target that cannot be written is reported before the program runs, or when it is written."""
    taken = folder / "a-folder"
    taken.mkdir()
    try:
        instance = sink(str(taken), lambda: [])
        instance.open({})
        instance.close(reports()["clean"])
    except (OutputError, ValueError):
        return
    except Exception as error:
        raise _fail(f"{sink.name} raises {error!r} for a folder instead of its file", "Raise OutputError") from error
    raise _fail(f"{sink.name} accepts a folder instead of its file", "Raise OutputError in `open`")
