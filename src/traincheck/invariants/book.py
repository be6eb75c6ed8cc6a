"""The book: a file with one invariant to a line, made to be read, compared and merged.

The first line identifies the file. Each further line is one invariant, in an order that depends on the rules alone. The
file records neither time nor place, so that learning the same rules again gives the same bytes.
"""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import NamedTuple, TypeAlias, TypeVar

import msgspec

from traincheck.errors import BookConflict, BookNotFound, BookTooNew, BookUnreadable, BookUnrecognised, OutputError
from traincheck.files import read_bounded, write_whole
from traincheck.invariants.book_format import FORMAT, KIND, HeaderLine, InvariantLine, KindLine, RunEntry, printable
from traincheck.version import __version__
from traincheck.vocab.invariant import Invariant, Precondition, Support, identity

PathLike: TypeAlias = str | os.PathLike[str]


@dataclass(frozen=True, slots=True, order=True)
class LearnedRun:
    """A good run that a book was learned from: its script, the digest of that script, and its training steps.

    `program` is the identity of the program (see vocab/program.py), empty in books of older versions.
    """

    script: str
    digest: str
    steps: int
    program: str = ""


@dataclass(frozen=True, slots=True)
class Book:
    """Invariants and the runs they were learned from, both kept sorted; no two invariants share an id.

    Raises ValueError for two invariants with one id.
    """

    invariants: tuple[Invariant, ...] = ()
    runs: tuple[LearnedRun, ...] = ()

    def __post_init__(self) -> None:
        ids = Counter(invariant.id for invariant in self.invariants)
        if twice := [name for name, times in ids.items() if times > 1]:
            raise ValueError(f"two invariants of a book share the id {twice[0]}")
        object.__setattr__(self, "invariants", tuple(sorted(self.invariants, key=_sort_key)))
        object.__setattr__(self, "runs", tuple(sorted(self.runs)))

    def by_id(self, name: str) -> Invariant | None:
        """The invariant with this id, None when the book has none."""
        return next((invariant for invariant in self.invariants if invariant.id == name), None)

    @property
    def active(self) -> tuple[Invariant, ...]:
        """The invariants that are not muted."""
        return tuple(invariant for invariant in self.invariants if not invariant.mute)


def _sort_key(invariant: Invariant) -> tuple[object, ...]:
    return invariant.relation, invariant.subject, invariant.property, str(invariant.precondition), invariant.id


def read_book(path: PathLike) -> Book:
    """The book in the file `path`.

    Raises BookNotFound; BookUnrecognised (a folder, an empty or binary file, another kind of file); BookTooNew; and
    BookUnreadable for a truncated file, an altered rule whose id no longer fits, or an invalid line.
    """
    return book_in(_contents_of(path), path)


def book_in(data: bytes, path: PathLike) -> Book:
    """The book in the bytes of the file `path`. Raises what `read_book` raises for the content of a file."""
    lines = _lines_in(data, path)
    header = _read_header(path, lines[0])
    by_id: dict[str, tuple[int, Invariant]] = {}
    for line in lines[1:]:
        invariant = _read_invariant(path, line)
        if invariant.id in by_id:
            reason = f"the id {invariant.id} stands in line {by_id[invariant.id][0]} already"
            raise BookUnreadable(path, line.number, reason)
        by_id[invariant.id] = line.number, invariant
    if len(by_id) != header.invariants:
        loss = "the end of the file is missing" if len(by_id) < header.invariants else "lines were added"
        reason = f"the first line announces {header.invariants} invariants and the file holds {len(by_id)}: {loss}"
        raise BookUnreadable(path, lines[-1].number, f'{reason} (if that is meant, correct "invariants" in line 1)')
    runs = tuple(LearnedRun(run.script, run.digest, run.steps, run.program) for run in header.runs)
    return Book(tuple(invariant for _, invariant in by_id.values()), runs)


def read_books(paths: Sequence[PathLike]) -> Book:
    """All rules of the books in `paths` in one book, as `merge_books` joins them. Raises what `read_book` raises."""
    return merge_books((path, read_book(path)) for path in paths)


def merge_books(books: Iterable[tuple[PathLike, Book]]) -> Book:
    """All invariants and runs of `books` in one book; each book comes with its name for errors.

    Of a rule in several books, the one with the greater support stays. Its experience covers the circumstances of both.
    A mute stays with it: a reason that was given once holds for the rule. A run that several books learned from appears
    once. The order of the books decides only which of two reasons to mute is kept (the first). Raises BookConflict if
    one id names two rules.
    """
    kept: dict[str, tuple[PathLike, Invariant]] = {}
    runs: Counter[LearnedRun] = Counter()
    for name, book in books:
        runs |= Counter(book.runs)
        for new in book.invariants:
            first, old = kept.get(new.id, (name, new))
            if _rule_of(old) != _rule_of(new):
                raise BookConflict(new.id, first, name)
            stronger = max(old, new, key=lambda rule: (_weight(rule.support), rule.confidence))
            kept[new.id] = first, replace(stronger, mute=old.mute or new.mute, experience=_of_both(old, new))
    return Book(tuple(invariant for _, invariant in kept.values()), tuple(runs.elements()))


def _of_both(first: Invariant, second: Invariant) -> Precondition:
    """The circumstances that were the same on all occasions of both: the conditions of either that the other
    implies."""
    if first.experience == second.experience:
        return first.experience
    pairs = ((first.experience, second.experience), (second.experience, first.experience))
    shared = [clause for own, theirs in pairs for clause in own.clauses if theirs.implies(Precondition((clause,)))]
    return Precondition(tuple(sorted(set(shared), key=lambda clause: (clause.negated, clause.fact, str(clause)))))


def _rule_of(invariant: Invariant) -> tuple[object, ...]:
    return invariant.relation, invariant.subject, invariant.property, invariant.precondition, invariant.program


def _weight(support: Support) -> tuple[int, ...]:
    """Other scripts say most about the next one, then other runs; occasions within a step say least."""
    return support.scripts, support.runs, support.steps, support.occasions


class _Line(NamedTuple):
    """A line that is not blank; `last` where the file ends without ending the line."""

    number: int
    text: bytes
    last: bool


def _contents_of(path: PathLike) -> bytes:
    try:
        return read_bounded(path) if Path(path).is_file() else Path(path).read_bytes()  # a pipe may be named, too
    except FileNotFoundError:
        raise BookNotFound(path) from None
    except IsADirectoryError:
        raise BookUnrecognised(path, "it is a folder") from None
    except OSError as error:
        raise BookUnrecognised(path, error.strerror or str(error)) from None


def _lines_in(data: bytes, path: PathLike) -> list[_Line]:
    try:
        data.decode("utf-8")
    except UnicodeDecodeError:
        raise BookUnrecognised(path, "it is not text in UTF-8") from None
    if b"\0" in data:
        raise BookUnrecognised(path, "it is a binary file")
    texts = data.removeprefix(b"\xef\xbb\xbf").split(b"\n")  # some editors put a byte order mark there
    lines = [_Line(number, text, number == len(texts)) for number, text in enumerate(texts, 1) if text.strip()]
    if not lines:
        raise BookUnrecognised(path, "it is empty")
    return lines


def _read_header(path: PathLike, line: _Line) -> HeaderLine:
    try:
        kind = msgspec.json.decode(line.text, type=KindLine)
    except (msgspec.MsgspecError, RecursionError) as error:
        if line.last and line.text.startswith(b'{"format":'):
            raise BookUnreadable(path, line.number, "the file ends in the middle of this line") from None
        raise BookUnrecognised(path, f"its first line is not the header of a book ({error})") from None
    if kind.kind != KIND:
        raise BookUnrecognised(path, f'its first line does not say "kind": "{KIND}"')
    if kind.format > FORMAT:
        raise BookTooNew(path, kind.format, FORMAT)
    return _decoded(path, line, HeaderLine)


def _read_invariant(path: PathLike, line: _Line) -> Invariant:
    if line.text.startswith((b"<<<<<<<", b"=======", b">>>>>>>")):
        raise BookUnreadable(path, line.number, "a conflict was left here by a merge of two versions of the file")
    if line.text.startswith(b'{"format":'):
        reason = "a second book begins here; name both files with --book, they need not be one"
        raise BookUnreadable(path, line.number, reason)
    invariant = _decoded(path, line, InvariantLine).invariant()
    rule = identity(
        invariant.relation, invariant.subject, invariant.property, invariant.precondition, invariant.program
    )
    if rule != invariant.id:
        reason = f"the id {invariant.id!r} does not fit the rule, whose id is {rule!r}: the line was altered"
        raise BookUnreadable(path, line.number, reason)
    return invariant


S = TypeVar("S", bound=msgspec.Struct)


def _decoded(path: PathLike, line: _Line, kind: type[S]) -> S:
    try:
        return msgspec.json.decode(line.text, type=kind)
    except (msgspec.ValidationError, RecursionError) as error:
        raise BookUnreadable(path, line.number, str(error)) from None
    except msgspec.DecodeError as error:
        reason = "the file ends in the middle of this line" if line.last else f"it is not JSON ({error})"
        raise BookUnreadable(path, line.number, reason) from None


def write_book(book: Book, path: PathLike) -> None:
    """Write `book` to `path`, whole or not at all; create the folder if necessary. Raises OutputError."""
    write_whole(path, bytes_of(book, path))


def bytes_of(book: Book, path: PathLike) -> bytes:
    """The content of the file `path` for `book`. Raises OutputError.

    The same book always gives the same bytes. Characters of a script's name that UTF-8 cannot hold are escaped.
    """
    for invariant in book.invariants:
        for clause in chain.from_iterable(invariant.precondition.alternatives):
            if isinstance(clause.value, float) and not math.isfinite(clause.value):
                raise OutputError(
                    path, f"JSON cannot represent the number in the precondition of {invariant.id} ({clause})"
                )
    header = HeaderLine(
        format=FORMAT,
        kind=KIND,
        traincheck=__version__,
        runs=[RunEntry(printable(run.script), run.digest, run.steps, printable(run.program)) for run in book.runs],
        invariants=len(book.invariants),
    )
    encode = msgspec.json.Encoder().encode
    lines = [encode(header), *(encode(InvariantLine.of(invariant)) for invariant in book.invariants)]
    return b"".join(line + b"\n" for line in lines)
