"""Tally files: small, exact, and clear about everything that is wrong with them."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from recorded_runs import training
from traincheck.errors import TallyTooNew, TallyUnreadable
from traincheck.inference.tally import Count, Tally
from traincheck.inference.tally_files import FORMAT, is_tally_file, read_tallies, write_tallies
from traincheck.inference.tally_runs import tally_windows
from traincheck.invariants.book import Book, write_book


def tally(script: str = "a.py", steps: int = 8) -> Tally:
    counted = Tally(script, f"digest of {script}", f"run of {script}")
    tally_windows(training(steps), counted)
    return counted


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "two.tally"
    write_tallies([tally(), tally("b.py", 3)], path)
    return path


def contents(counted: Tally) -> dict[str, Any]:
    return {name: repr(value) for name, value in vars(counted.arrange()).items() if name not in ("cells", "levels")}


def test_all_of_a_tally_is_kept(file: Path) -> None:
    again = read_tallies(file)
    assert [copy.script for copy in again] == ["a.py", "b.py"]
    for copy, original in zip(again, [tally(), tally("b.py", 3)], strict=True):
        assert contents(copy) == contents(original)
        assert copy.levels == original.levels and copy.levels
        assert list(copy.cells) == list(original.cells)
        assert copy.arguments == original.arguments


def test_sketches_of_windows_are_kept(file: Path) -> None:
    (copy, _), original = read_tallies(file), tally()
    for key, cells in original.cells.items():
        for context, cell in cells.items():
            again = copy.cells[key][context]
            assert again.seen == cell.seen
            for prop, count in cell.properties.items():
                assert (again.properties[prop].seen, again.properties[prop].missed) == (count.seen, count.missed)
    seen = {
        count.seen for cells in copy.cells.values() for cell in cells.values() for count in cell.properties.values()
    }
    assert 0xFF in seen


def test_files_of_older_versions_have_no_sketches(file: Path) -> None:
    def older(lines: list[dict[str, Any]]) -> None:
        lines[0]["format"] = 1
        for line in lines[1:]:
            line.pop("sketches", None)
            for cell in line.get("cells", ()):
                cell[3:] = [[held[:5] for held in cell[3]]]

    edited(file, older)
    (copy, _), original = read_tallies(file), tally().arrange()
    for key, cells in original.cells.items():
        for context, cell in cells.items():
            again = copy.cells[key][context]
            assert (again.closed, again.windows, again.seen) == (cell.closed, cell.windows, 0)
            for prop, count in cell.properties.items():
                assert again.properties[prop] == Count(count.held, count.failed, count.windows, count.closed)


def test_the_same_tallies_are_the_same_bytes(file: Path, tmp_path: Path) -> None:
    write_tallies(read_tallies(file), tmp_path / "again")
    assert (tmp_path / "again").read_bytes() == file.read_bytes()


def test_any_tool_for_gzip_and_json_reads_it(file: Path) -> None:
    lines = [json.loads(line) for line in gzip.decompress(file.read_bytes()).splitlines()]
    assert lines[0] == {"kind": "traincheck tally", "format": FORMAT, "traincheck": lines[0]["traincheck"], "runs": 2}
    assert lines[1]["script"] == "a.py" and len(lines) == 1 + 2 + sum(line.get("subjects", 0) for line in lines)


def test_a_tally_file_is_known_by_its_first_line(file: Path, tmp_path: Path) -> None:
    assert is_tally_file(file)
    torn = tmp_path / "torn"
    torn.write_bytes(file.read_bytes()[:-20])
    assert is_tally_file(torn)
    write_book(Book(), tmp_path / "book")
    (tmp_path / "archive.gz").write_bytes(gzip.compress(b"something else\n", mtime=0))
    (tmp_path / "half.gz").write_bytes(b"\x1f\x8b\x08nothing of the kind")
    (tmp_path / "empty").write_bytes(b"")
    for name in ("book", "archive.gz", "half.gz", "empty"):
        assert not is_tally_file(tmp_path / name)
    with pytest.raises(TallyUnreadable):
        is_tally_file(tmp_path / "absent")


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "it is empty"),
        (b"hello\n", "it is another file"),
        (gzip.compress(b"hello\n", mtime=0), "first line is not the header"),
        (gzip.compress(b'{"kind":"other","format":1}\n', mtime=0), 'does not say "kind"'),
        (b"\x1f\x8b\x08nothing of the kind", "cannot be decompressed"),
    ],
)
def test_other_files_are_not_recognised(data: bytes, reason: str, tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(data)
    with pytest.raises(TallyUnreadable, match=reason) as raised:
        read_tallies(path)
    assert str(path) in str(raised.value) and "--tally" in str(raised.value)


def test_a_book_is_named_as_one(tmp_path: Path) -> None:
    write_book(Book(), tmp_path / "book")
    with pytest.raises(TallyUnreadable, match="it is a book"):
        read_tallies(tmp_path / "book")
    with pytest.raises(TallyUnreadable, match="directory"):
        read_tallies(tmp_path)


def test_a_newer_format_is_reported(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(gzip.compress(b'{"kind":"traincheck tally","format":99,"new":[]}\n', mtime=0))
    with pytest.raises(TallyTooNew, match="format 99"):
        read_tallies(tmp_path / "x")


def test_a_torn_file_is_not_half_read(file: Path) -> None:
    data = file.read_bytes()
    for size in (len(data) - 1, len(data) - 9, len(data) // 2):
        file.write_bytes(data[:size])
        with pytest.raises(TallyUnreadable, match="the end of the file is missing"):
            read_tallies(file)


def test_every_flipped_byte_is_noticed(file: Path) -> None:
    data = file.read_bytes()
    for position in range(10, len(data), 7):  # behind the header of gzip, of which the time says nothing
        file.write_bytes(data[:position] + bytes([data[position] ^ 0x55]) + data[position + 1 :])
        with pytest.raises(TallyUnreadable):
            read_tallies(file)


def edited(file: Path, change: Callable[[list[dict[str, Any]]], None]) -> None:
    lines = [json.loads(line) for line in gzip.decompress(file.read_bytes()).splitlines()]
    change(lines)
    file.write_bytes(gzip.compress("".join(json.dumps(line) + "\n" for line in lines).encode()))


CHANGES: dict[str, Callable[[list[dict[str, Any]]], Any]] = {
    "a negative count": lambda lines: lines[2]["cells"][0].__setitem__(1, -1),
    "a context that is not there": lambda lines: lines[2]["cells"][0].__setitem__(0, 99),
    "a sketch that is not there": lambda lines: lines[2]["cells"][0].__setitem__(4, 99),
    "a sketch that is no number": lambda lines: lines[1]["sketches"].__setitem__(0, "-1"),
    "a sketch of too many windows": lambda lines: lines[1]["sketches"].__setitem__(1, "f" * 65),
    "a property that is not there": lambda lines: lines[2]["cells"][0][3][0].__setitem__(0, 99),
    "a run too many": lambda lines: lines[0].update(runs=3),
    "a run too few": lambda lines: lines[0].update(runs=1),
    "a subject too few": lambda lines: lines[1].update(subjects=lines[1]["subjects"] - 1),
    "an unknown field": lambda lines: lines[1].update(more=1),
    "a line is missing": lambda lines: lines.pop(2),
    "a context that is no object": lambda lines: lines[1]["contexts"].__setitem__(0, 3),
}


@pytest.mark.parametrize("name", CHANGES)
def test_inconsistent_files_are_reported(name: str, file: Path) -> None:
    edited(file, CHANGES[name])
    with pytest.raises(TallyUnreadable, match=r"line [0-9]+"):
        read_tallies(file)


def test_zlib_output_is_stable() -> None:
    """No time and no name of a file in the wrapper, or equal tallies would differ."""
    packer = zlib.compressobj(wbits=31)
    assert (packer.compress(b"x") + packer.flush())[3:8] == bytes(5)
