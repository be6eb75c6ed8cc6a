"""Every reader of a malformed file returns its content or a clear error, in bounded time and memory."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import pytest

from malformed_files import READERS, WHOLE, Reader, Survey, build
from traincheck.vocab.finding import Report

resource = pytest.importorskip("resource")

LONGEST = 60
"""Seconds that an input may take: what goes round in circles takes longer, whatever the machine."""

MAX_MEMORY = 4 << 30
"""Bytes that reading may take beyond what there is before."""

INPUTS = 100_000
OF_WHOLE_FOLDERS, OF_WINDOWS, OF_REPORTS = 30, 200, 1_000
"""Inputs of readers that take longer; all others share the rest."""


@pytest.fixture
def survey(tmp_path: Path, some_report: Report, monkeypatch: pytest.MonkeyPatch) -> Iterator[Survey]:
    """A run folder with nothing around it that could change, read from a working directory that stays empty."""
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.chdir(home)
    opened = Survey(build(tmp_path / "run", some_report))
    before = sorted(tmp_path.rglob("*"))
    yield opened
    scratch = {tmp_path / "scratch.arrows", tmp_path / "scratch-0-0.arrows"}
    assert [path for path in sorted(tmp_path.rglob("*")) if path not in scratch] == before


@contextmanager
def bounded() -> Iterator[None]:
    """With a limit to the memory, and a handler for inputs that never come to an end."""

    def too_long(number: int, frame: FrameType | None) -> None:
        raise TimeoutError(f"no end in {LONGEST} s")

    pages = int(Path("/proc/self/statm").read_text().split()[0]) if Path("/proc/self/statm").exists() else 0
    limits = resource.getrlimit(resource.RLIMIT_AS)
    before = signal.signal(signal.SIGALRM, too_long)
    if pages:
        resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + MAX_MEMORY, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def read(survey: Survey, reader: Reader, numbers: range) -> None:
    with bounded():
        for number in numbers:
            signal.alarm(LONGEST)
            survey.read(reader, number)


def test_files_that_are_whole_are_read(survey: Survey) -> None:
    for reader in READERS:
        reader.use(survey.folder / reader.file, survey.folder)


def test_some_mangled_files(survey: Survey) -> None:
    for reader in READERS:
        read(survey, reader, range(3 if reader in WHOLE else 6 if reader.form == "windows" else 20))
    assert min(survey.refused[reader.name] for reader in READERS if reader.form == "json" and reader not in WHOLE) > 2
    assert sum(survey.accepted.values()) > 50


@pytest.mark.slow
@pytest.mark.long
def test_many_mangled_files(survey: Survey) -> None:
    seldom = {reader.name: OF_WHOLE_FOLDERS for reader in WHOLE} | {"windows": OF_WINDOWS, "report": OF_REPORTS}
    seldom |= dict.fromkeys(("book of other rules", "events", "book", "study"), OF_REPORTS)
    often = [reader for reader in READERS if reader.name not in seldom]
    rest = -(-(INPUTS - sum(seldom.values())) // len(often))
    for reader in READERS:
        read(survey, reader, range(1000, 1000 + seldom.get(reader.name, rest)))
    assert sum(survey.refused.values()) + sum(survey.accepted.values()) >= INPUTS
