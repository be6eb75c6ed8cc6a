"""Whatever a book holds, it is read as it was written; and merging does not care for order or repetition."""

from __future__ import annotations

import tempfile
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from traincheck.invariants.book import Book, LearnedRun, merge_books, read_book, write_book
from traincheck.vocab.invariant import Clause, Invariant, Precondition, Support
from traincheck.vocab.occasion import Property, Subject

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
names = st.text(st.sampled_from("ab._"), min_size=1, max_size=3)
values = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), texts)
counts = st.integers(0, 2**40)
invariants = st.builds(
    Invariant,
    relation=st.sampled_from(["EventContain", "APISequence"]),
    subject=st.builds(Subject, names, st.sampled_from(["call", "parameter.grad"])),
    property=st.builds(Property, names, names, texts),
    precondition=st.builds(
        Precondition, st.lists(st.builds(Clause, names, values, st.booleans()), max_size=2).map(tuple)
    ),
    support=st.builds(Support, counts, counts, counts, counts),
    confidence=st.floats(0, 1),
    severity=st.sampled_from(["error", "notice"]),
    scope=st.sampled_from(["general", "pipeline"]),
    sentence=texts,
    origin=st.lists(texts, max_size=2).map(tuple),
    mute=texts,
)
runs = st.lists(st.builds(LearnedRun, texts, names, counts), max_size=3).map(tuple)
books = st.builds(Book, st.lists(invariants, max_size=5, unique_by=lambda invariant: invariant.id).map(tuple), runs)


def rewritten(book: Book) -> tuple[Book, bytes]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "book.jsonl"
        write_book(book, path)
        return read_book(path), path.read_bytes()


@given(books)
def test_a_book_survives_its_file(book: Book) -> None:
    again, data = rewritten(book)
    assert again == book
    assert list(map(repr, again.invariants)) == list(map(repr, book.invariants))  # 1, 1.0 and True are equal, not alike
    assert data.count(b"\n") == len(book.invariants) + 1
    assert rewritten(again)[1] == data


@given(books)
def test_a_book_merged_with_itself_or_with_nothing_is_itself(book: Book) -> None:
    assert merge_books([("a", book), ("b", book), ("c", Book())]) == book


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.builds(Support, counts, counts, counts, counts)), max_size=6),
    st.randoms(),
)
def test_the_order_of_books_does_not_matter(supports: list[tuple[str, Support]], random: object) -> None:
    shelf = [(str(index), Book((rule(name, support),))) for index, (name, support) in enumerate(supports)]
    expected = merge_books(shelf)
    random.shuffle(shelf)  # type: ignore[attr-defined]
    assert merge_books(shelf) == expected


def rule(name: str, support: Support) -> Invariant:
    return Invariant(
        "EventContain",
        Subject(name),
        Property("contains call", "x"),
        Precondition(),
        support,
        0.9,
        "error",
        "general",
        name,
    )
