"""Tally files: the counts of some runs, which `infer` accepts in place of the recordings.

A tally file is JSON Lines under gzip (`zcat FILE | head` shows it): a header, then for each run a line of its own and
one line for each subject. The line of the run holds the contexts, properties and sketches of windows once; other lines
refer to them by index. The same tallies always give the same bytes, and reading restores what was written: True, 1 and
1.0 stay three values.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator, Sequence
from typing import Annotated, TypeAlias, TypeVar

import msgspec

from traincheck.addresses import as_path
from traincheck.errors import TallyTooNew, TallyUnreadable
from traincheck.files import LARGEST, write_whole
from traincheck.inference.contexts import SKETCH
from traincheck.inference.tally import Cell, Count, Reach, Tally
from traincheck.invariants.book_format import KIND as BOOK_KIND
from traincheck.trace.encoding import facts_to_text, text_to_facts, valid
from traincheck.version import __version__
from traincheck.vocab.occasion import Property, Subject

PathLike: TypeAlias = str | os.PathLike[str]

FORMAT = 2
"""Format of a tally file; every change of a line takes the next number.

1 (0.1.0): gzip of JSON Lines: header with kind, format, traincheck, runs; `_RunLine` for each run, followed by as many
`_SubjectLine` as it announces.

2 (0.1.0): sketches of windows, as hexadecimal numbers in `_RunLine` (the empty one first) and by index at the end of
each cell and of each property in it. Files without sketches get empty ones.
"""

KIND = "traincheck tally"

_GZIP = b"\x1f\x8b"
_AS_GZIP = 31
"""zlib's number for a gzip wrapper with the largest window; its header holds no time and no name."""
FEW, UNPACKED_PER_BYTE = 1 << 24, 200
"""Bytes that any file may unpack to, and how many more for each of its own. Tallies pack to a tenth or so; zeros in a
malicious file pack to a thousandth."""
_ENOUGH = 1 << 16
"""Bytes of a file that surely hold its first line."""

Number = Annotated[int, msgspec.Meta(ge=0)]
Sketch = Annotated[str, msgspec.Meta(pattern=f"^[0-9a-f]{{1,{SKETCH // 4}}}$")]


class _Header(msgspec.Struct, frozen=True):
    """The first line. A newer format may have more fields."""

    kind: str
    format: int
    traincheck: str = ""
    runs: Number = 0


class _RunLine(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The counts of a run as a whole, and the tables for the lines that follow."""

    run: str
    script: str
    digest: str
    steps: Number
    windows: Number
    levels: list[tuple[str, ...]]
    reach: dict[str, tuple[Number, Number, Number, str]]
    arguments: list[tuple[str, str, list[str]]]
    contexts: list[msgspec.Raw]
    properties: list[Property]
    subjects: Number
    sketches: tuple[Sketch, ...] = ("0",)
    program: str = ""


class _Held(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The counts of the property at an index, see `Count`."""

    property: Number
    held: Number
    failed: Number
    windows: Number
    closed: Number
    seen: Number = 0
    missed: Number = 0
    sometimes: Number = 0


class _CellLine(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The counts in the context at an index, see `Cell`."""

    context: Number
    closed: Number
    windows: Number
    properties: list[_Held]
    seen: Number = 0


class _SubjectLine(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One subject with its contexts."""

    relation: str
    subject: Subject
    cells: list[_CellLine]


def write_tallies(tallies: Sequence[Tally], path: PathLike) -> None:
    """Write the tallies to `path`, whole or not at all. Raises OutputError."""
    packer = zlib.compressobj(wbits=_AS_GZIP)
    encode = msgspec.json.Encoder().encode
    packed = [packer.compress(encode(line) + b"\n") for line in _lines(tallies)]
    write_whole(path, b"".join(packed) + packer.flush())


def read_tallies(path: PathLike) -> list[Tally]:
    """The tallies in the file `path`, in their order.

    Raises TallyTooNew, and TallyUnreadable for a file of another kind or a damaged one.
    """
    lines = _unpacked(path).split(b"\n")
    reading = _Reading(path, lines)
    header = reading.header()
    tallies = [reading.run() for _ in range(header.runs)]
    reading.end()
    return tallies


def is_tally_file(path: PathLike) -> bool:
    """Whether the beginning of the file declares tallies, whole or damaged, of this format or a newer one.

    Raises TallyUnreadable for a file that cannot be read at all.
    """
    data = _read(path, _ENOUGH)
    if not data.startswith(_GZIP):
        return False
    try:
        text = zlib.decompressobj(wbits=_AS_GZIP).decompress(data, _ENOUGH)
        return msgspec.json.decode(text.split(b"\n", 1)[0], type=_Header).kind == KIND
    except (zlib.error, msgspec.MsgspecError, RecursionError):
        return False


# -- writing ---------------------------------------------------------------------------------------------------------


def _lines(tallies: Sequence[Tally]) -> Iterator[msgspec.Struct]:
    yield _Header(KIND, FORMAT, __version__, len(tallies))
    for tally in tallies:
        tally.arrange()
        # By their texts: contexts with True and with 1 are equal, and may stand in two subjects.
        texts = {key: [facts_to_text(context) for context in cells] for key, cells in tally.cells.items()}
        contexts = {text: index for index, text in enumerate(sorted(set().union(*texts.values())))}
        every = {prop for cells in tally.cells.values() for cell in cells.values() for prop in cell.properties}
        properties = {prop: index for index, prop in enumerate(sorted(every))}
        sketches = {sketch: index for index, sketch in enumerate(sorted(_sketches(tally)))}
        yield _RunLine(
            run=tally.run,
            script=valid(tally.script),
            digest=tally.digest,
            steps=tally.steps,
            windows=tally.windows,
            levels=sorted(tally.levels),
            reach={api: (reach.calls, reach.tensors, reach.effects, reach.kind) for api, reach in tally.reach.items()},
            arguments=[(api, name, sorted(values)) for (api, name), values in tally.arguments.items()],
            contexts=[msgspec.Raw(text.encode()) for text in contexts],
            properties=list(properties),
            subjects=len(tally.cells),
            sketches=tuple(f"{sketch:x}" for sketch in sketches),
            program=valid(tally.program),
        )
        for (relation, subject), cells in tally.cells.items():
            indices = [contexts[text] for text in texts[relation, subject]]
            cell_lines = [
                _cell_line(index, cell, properties, sketches)
                for index, cell in zip(indices, cells.values(), strict=True)
            ]
            yield _SubjectLine(relation, subject, cell_lines)


def _sketches(tally: Tally) -> set[int]:
    """Every sketch of the tally, including the empty one."""
    sketches = {0}
    for cells in tally.cells.values():
        for cell in cells.values():
            sketches.add(cell.seen)
            for count in cell.properties.values():
                sketches.update((count.seen, count.missed))
    return sketches


def _cell_line(context: int, cell: Cell, property_indices: dict[Property, int], sketches: dict[int, int]) -> _CellLine:
    held = [
        _Held(
            property_indices[prop],
            count.held,
            count.failed,
            count.windows,
            count.closed,
            sketches[count.seen],
            sketches[count.missed],
            count.sometimes,
        )
        for prop, count in cell.properties.items()
    ]
    return _CellLine(context, cell.closed, cell.windows, held, sketches[cell.seen])


# -- reading ---------------------------------------------------------------------------------------------------------


def _read(path: PathLike, most: int = -1) -> bytes:
    try:
        with as_path(path).open("rb") as file:
            return file.read(most)
    except OSError as error:
        raise TallyUnreadable(path, error.strerror or str(error)) from error


def _unpacked(path: PathLike) -> bytes:
    data = _read(path, LARGEST)
    if not data:
        raise TallyUnreadable(path, "it is empty")
    if not data.startswith(_GZIP):
        book = f'"{BOOK_KIND}"'.encode() in data.partition(b"\n")[0]
        raise TallyUnreadable(path, "it is a book (`traincheck merge` joins books)" if book else "it is another file")
    packer = zlib.decompressobj(wbits=_AS_GZIP)
    try:
        text = packer.decompress(data, min(LARGEST, FEW + UNPACKED_PER_BYTE * len(data)))
    except zlib.error as error:
        if not is_tally_file(path):
            raise TallyUnreadable(path, f"it cannot be decompressed ({error})") from None
        raise TallyUnreadable(path, f"it was damaged ({error})") from None
    if packer.unconsumed_tail:
        raise TallyUnreadable(
            path, f"what it unpacks to is more than {UNPACKED_PER_BYTE} times as large, as no tallies are"
        )
    if not packer.eof and is_tally_file(path):
        raise TallyUnreadable(path, "the end of the file is missing")
    return text


S = TypeVar("S", bound=msgspec.Struct)


class _Reading:
    """Reads the lines of a file one by one, and knows the current line number."""

    def __init__(self, path: PathLike, lines: list[bytes]) -> None:
        self._path = path
        self._lines = lines
        self._number = 0
        self._decode_run = msgspec.json.Decoder(_RunLine).decode
        self._decode_subject = msgspec.json.Decoder(_SubjectLine).decode

    def header(self) -> _Header:
        try:
            header = msgspec.json.decode(self._next(), type=_Header)
        except (msgspec.MsgspecError, RecursionError) as error:
            raise TallyUnreadable(self._path, f"its first line is not the header of one ({error})") from None
        if header.kind != KIND:
            raise TallyUnreadable(self._path, f'its first line does not say "kind": "{KIND}"')
        if header.format > FORMAT:
            raise TallyTooNew(self._path, header.format, FORMAT)
        return header

    def run(self) -> Tally:
        try:
            line = self._decode_run(self._next())
            tally = Tally(line.script, line.digest, line.run, line.program)
            tally.steps, tally.windows = line.steps, line.windows
            tally.levels = set(line.levels)
            tally.reach = {api: Reach(*counts) for api, counts in line.reach.items()}
            tally.arguments = {(api, name): set(values) for api, name, values in line.arguments}
            contexts = [text_to_facts(bytes(raw).decode()) for raw in line.contexts]
            sketches = [int(text, 16) for text in line.sketches]
            for _ in range(line.subjects):
                subject = self._decode_subject(self._next())
                cells = [
                    (contexts[counts.context], _cell(counts, line.properties, sketches)) for counts in subject.cells
                ]
                tally.cells[subject.relation, subject.subject] = dict(cells)
        except (msgspec.MsgspecError, LookupError, ValueError, RecursionError, TypeError) as error:
            raise TallyUnreadable(self._path, f"line {self._number} of it is wrong ({error})") from None
        return tally

    def end(self) -> None:
        if any(self._lines[self._number :]):
            raise TallyUnreadable(self._path, f"line {self._number + 1} of it is one more than was announced")

    def _next(self) -> bytes:
        if self._number >= len(self._lines) or not self._lines[self._number]:
            raise TallyUnreadable(self._path, f"line {self._number + 1} of it is missing")
        self._number += 1
        return self._lines[self._number - 1]


def _cell(line: _CellLine, properties: Sequence[Property], sketches: Sequence[int]) -> Cell:
    counts = {
        properties[entry.property]: Count(
            held=entry.held,
            failed=entry.failed,
            windows=entry.windows,
            closed=entry.closed,
            seen=sketches[entry.seen],
            missed=sketches[entry.missed],
            sometimes=entry.sometimes,
        )
        for entry in line.properties
    }
    return Cell(line.closed, line.windows, -1, sketches[line.seen], counts)
