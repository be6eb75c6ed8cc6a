"""Books: what is written is read again, and what is not a whole and unaltered book is refused with the reason."""

from __future__ import annotations

import json
import stat
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from traincheck.errors import (
    BookConflict,
    BookError,
    BookNotFound,
    BookTooNew,
    BookUnreadable,
    BookUnrecognised,
    OutputError,
)
from traincheck.invariants.book import Book, LearnedRun, merge_books, read_book, read_books, write_book
from traincheck.vocab.invariant import Clause, Invariant, Precondition, Support
from traincheck.vocab.occasion import Property

Make = Callable[..., Invariant]
RUN = LearnedRun("mnist.py", "1f2e3d", 300)


@pytest.fixture
def book(some_invariants: tuple[Invariant, ...]) -> Book:
    return Book(some_invariants, (RUN, RUN, LearnedRun("gan.py", "aa", 20)))


@pytest.fixture
def path(book: Book, tmp_path: Path) -> Path:
    write_book(book, tmp_path / "book.jsonl")
    return tmp_path / "book.jsonl"


def change_line(path: Path, number: int, change: Callable[[dict[str, object]], object]) -> None:
    lines = path.read_text().splitlines()
    fields = json.loads(lines[number - 1])
    change(fields)
    lines[number - 1] = json.dumps(fields)
    path.write_text("\n".join(lines) + "\n")


def complaint(path: Path, error: type[BookError] = BookUnreadable) -> str:
    with pytest.raises(error) as caught:
        read_book(path)
    assert type(caught.value) is error
    assert str(path) in str(caught.value)
    return str(caught.value)


def test_a_book_is_read_as_it_was_written(book: Book, path: Path) -> None:
    assert read_book(path) == book


def test_the_same_rules_in_any_order_give_the_same_bytes(book: Book, path: Path, tmp_path: Path) -> None:
    other = Book(tuple(reversed(book.invariants)), tuple(reversed(book.runs)))
    write_book(other, tmp_path / "other.jsonl")
    assert (tmp_path / "other.jsonl").read_bytes() == path.read_bytes()


def test_the_lines_are_sorted_by_content(path: Path) -> None:
    header, *lines = map(json.loads, path.read_text().splitlines())
    assert header["invariants"] == 4 and header["kind"] == "traincheck book" and header["format"] == 3
    assert [line["relation"] for line in lines] == ["APISequence"] * 2 + ["EventContain"] * 2
    assert [line["property"]["verb"] for line in lines[:2]] == ["followed by", "preceded by"]
    assert lines[2]["precondition"] == [{"fact": "grads", "is_not": "none"}, {"fact": "stage", "is": "train"}]


def test_a_book_of_format_1_is_read(book: Book, path: Path) -> None:
    text = path.read_text()
    assert '"otherwise"' not in text and '"program"' not in text  # so its lines are what they were in format 1
    path.write_text(text.replace('"format":2', '"format":1', 1))
    assert read_book(path) == book


def test_a_rule_without_alternatives_has_the_id_that_it_always_had(book: Book) -> None:
    assert [invariant.id for invariant in book.invariants] == ["6d8421e4ae", "3f48f3ce6f", "82c4f97757", "cc5e4d5f41"]


def test_alternatives_and_names_are_written(new_invariant: Make, tmp_path: Path) -> None:
    inside = Clause("within", "no_sync", contains=True)
    condition = Precondition((Clause("stage", "train"), ~inside), ((inside,), (Clause("lr", "zero", True),)))
    original = replace(new_invariant(), precondition=condition, id="")
    write_book(Book((original,)), tmp_path / "book")
    assert read_book(tmp_path / "book").invariants == (original,)
    line = json.loads((tmp_path / "book").read_text().splitlines()[1])
    assert line["precondition"] == [{"fact": "stage", "is": "train"}, {"fact": "within", "lacks": "no_sync"}]
    assert line["otherwise"] == [[{"fact": "within", "contains": "no_sync"}], [{"fact": "lr", "is_not": "zero"}]]
    others = [
        replace(original, id="", precondition=Precondition(condition.clauses, condition.otherwise[:n])) for n in (0, 1)
    ]
    assert len({original.id, *(changed.id for changed in others)}) == 3


def test_an_invariant_is_found_by_its_id(book: Book) -> None:
    assert book.by_id(book.invariants[2].id) == book.invariants[2]
    assert book.by_id("nothing") is None


def test_muted_invariants_are_not_active(book: Book) -> None:
    assert len(book.active) == 3 and not any(invariant.mute for invariant in book.active)


def test_a_book_has_no_two_invariants_of_one_id(new_invariant: Make) -> None:
    with pytest.raises(ValueError, match="share the id"):
        Book((new_invariant(), new_invariant(mute="twice")))


def test_a_missing_book_error_names_the_command(tmp_path: Path) -> None:
    assert "traincheck infer" in complaint(tmp_path / "none.jsonl", BookNotFound)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "empty"),
        (b"\n  \n", "empty"),
        (b"\x80\x02\x8a\nl\xfc\x9c", "not text"),
        (b"PAR1\0\0\0", "binary"),
        (b"not json\n", "not the header"),
        (b'{"id": "06cc56ae49"}\n', '"kind": "traincheck book"'),
        (b"[1, 2]\n", "not the header"),
        (b'{"kind": "traincheck book", "format": "one"}\n', "not the header"),
    ],
)
def test_a_file_without_a_book_is_recognised(tmp_path: Path, content: bytes, reason: str) -> None:
    (tmp_path / "file").write_bytes(content)
    assert reason in complaint(tmp_path / "file", BookUnrecognised)


def test_a_folder_is_no_book(tmp_path: Path) -> None:
    assert "it is a folder" in complaint(tmp_path, BookUnrecognised)


def test_a_book_of_a_later_format_asks_for_an_upgrade(path: Path) -> None:
    change_line(path, 1, lambda fields: fields.update(format=99, unheard_of=True))
    assert "format 99" in complaint(path, BookTooNew)


def test_a_file_that_ends_within_a_line_is_cut_short(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-30])
    assert "line 5: the file ends in the middle of this line" in complaint(path)


def test_a_file_that_ends_within_its_header_is_cut_short(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:40])
    assert "line 1: the file ends in the middle of this line" in complaint(path)


def test_a_file_that_lost_whole_lines_is_cut_short(path: Path) -> None:
    path.write_bytes(b"".join(path.read_bytes().splitlines(True)[:-1]))
    message = complaint(path)
    assert "announces 4 invariants and the file holds 3: the end of the file is missing" in message


def test_every_cut_is_noticed_and_none_is_read_as_a_smaller_book(path: Path) -> None:
    whole = path.read_bytes()
    for length in range(0, len(whole) - 1, 23):  # without its last line break a book is whole
        path.write_bytes(whole[:length])
        with pytest.raises(BookError):
            read_book(path)


def test_a_line_too_many_is_noticed(path: Path) -> None:
    change_line(path, 1, lambda fields: fields.update(invariants=3))
    assert "lines were added" in complaint(path)


def test_a_rule_that_was_altered_no_longer_fits_its_id(path: Path) -> None:
    change_line(path, 3, lambda fields: fields["property"].update(object="torch.Tensor.add"))  # type: ignore[attr-defined]
    fields = complaint(path)
    assert "line 3" in fields and "the line was altered" in fields


def test_severity_and_mute_may_be_changed_by_hand(path: Path) -> None:
    change_line(path, 3, lambda fields: fields.update(severity="notice", mute="known"))
    changed = read_book(path).invariants[1]
    assert (changed.severity, changed.mute) == ("notice", "known")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"confidence": 1.5}, "$.confidence"),
        ({"confidence": "high"}, "$.confidence"),
        ({"severity": "fatal"}, "$.severity"),
        ({"scope": "mine"}, "$.scope"),
        ({"origin": "mnist.py"}, "$.origin"),
        ({"support": {"occasions": -1, "steps": 1, "runs": 1, "scripts": 1}}, "$.support.occasions"),
        ({"precondition": [{"fact": "stage"}]}, "one of `is`"),
        ({"precondition": [{"fact": "stage", "is": 1, "is_not": 2}]}, "one of `is`"),
        ({"comment": "would be lost"}, "comment"),
    ],
)
def test_a_wrong_field_is_named_with_its_line(path: Path, change: dict[str, object], reason: str) -> None:
    change_line(path, 2, lambda fields: fields.update(change))
    message = complaint(path)
    assert "line 2" in message and reason in message


def test_a_missing_field_is_named(path: Path) -> None:
    change_line(path, 4, lambda fields: fields.pop("sentence"))
    assert "line 4" in complaint(path) and "sentence" in complaint(path)


def test_a_line_that_is_not_json_is_named(path: Path) -> None:
    lines = path.read_text().splitlines(True)
    path.write_text("".join([*lines[:2], "{'id': 1}\n", *lines[2:]]))
    assert "line 3: it is not JSON" in complaint(path)


def test_a_conflict_of_version_control_is_recognised(path: Path) -> None:
    path.write_text(path.read_text() + "<<<<<<< ours\n")
    assert "line 6: a conflict was left here" in complaint(path)


def test_books_that_were_put_together_by_cat_are_recognised(path: Path) -> None:
    path.write_text(path.read_text() * 2)
    assert "line 6: a second book begins here; name both files with --book" in complaint(path)


def test_the_same_line_twice_is_recognised(path: Path) -> None:
    path.write_text(path.read_text() + path.read_text().splitlines()[3] + "\n")
    assert "stands in line 4 already" in complaint(path)


def test_line_ends_and_byte_order_marks_are_accepted(book: Book, path: Path) -> None:
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes().rstrip(b"\n").replace(b"\n", b"\r\n\r\n"))
    assert read_book(path) == book


def test_merging_keeps_the_greater_support_and_the_mute(new_invariant: Make, tmp_path: Path) -> None:
    small = new_invariant(support=Support(9000, 900, 1, 1), mute="known", severity="notice")
    great = new_invariant(support=Support(50, 50, 5, 5))
    for name, either in {"small": small, "great": great}.items():
        write_book(Book((either,), (RUN,)), tmp_path / name)
    for order in (["small", "great"], ["great", "small"]):
        merged = read_books([tmp_path / name for name in order])
        assert merged == Book((replace(great, mute="known"),), (RUN,))


def test_merging_counts_common_runs_once(new_invariant: Make) -> None:
    first, second = Book((), (RUN, RUN)), Book((new_invariant(),), (RUN, LearnedRun("gan.py", "aa", 20)))
    merged = merge_books([("a", first), ("b", second)])
    assert merged.runs == (LearnedRun("gan.py", "aa", 20), RUN, RUN)


def test_merging_nothing_gives_an_empty_book() -> None:
    assert read_books([]) == Book()


def test_one_id_for_two_rules_is_a_conflict(new_invariant: Make) -> None:
    first = new_invariant(prop=Property("preceded by", "a"), clauses=(Clause("training", "x"),))
    second = replace(new_invariant(prop=Property("preceded by", "b")), id=first.id)
    with pytest.raises(BookConflict, match=first.id) as caught:
        merge_books([("first.jsonl", Book((first,))), ("second.jsonl", Book((second,)))])
    assert "first.jsonl" in str(caught.value) and "second.jsonl" in str(caught.value)


def test_a_book_is_written_whole_into_a_new_folder(book: Book, tmp_path: Path) -> None:
    write_book(book, tmp_path / "new" / "folder" / "book.jsonl")
    assert [entry.name for entry in (tmp_path / "new" / "folder").iterdir()] == ["book.jsonl"]


def test_a_link_to_a_book_stays_a_link(book: Book, path: Path, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(path)
    write_book(Book(book.invariants[:1]), link)
    assert link.is_symlink() and len(read_book(path).invariants) == 1


@pytest.mark.parametrize("target", ["", "book.jsonl/below"])
def test_a_place_that_cannot_be_written_is_reported(book: Book, path: Path, tmp_path: Path, target: str) -> None:
    with pytest.raises(OutputError):
        write_book(Book(), tmp_path / target)
    assert read_book(path) == book and [entry.name for entry in tmp_path.iterdir()] == ["book.jsonl"]


def test_a_device_is_written_to_and_not_replaced(book: Book) -> None:
    write_book(book, "/dev/null")
    assert stat.S_ISCHR(Path("/dev/null").stat().st_mode)


def test_a_number_that_json_cannot_tell_is_refused(new_invariant: Make, tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="precondition"):
        write_book(Book((new_invariant(clauses=(Clause("lr", float("nan")),)),)), tmp_path / "book")
    assert not list(tmp_path.iterdir())


def test_a_script_name_without_unicode_is_written(new_invariant: Make, tmp_path: Path) -> None:
    name = b"tr\xe4in.py".decode("utf-8", "surrogateescape")
    write_book(Book((new_invariant(origin=(name,)),), (LearnedRun(name, "aa", 1),)), tmp_path / "book")
    assert read_book(tmp_path / "book").runs[0].script == r"tr\udce4in.py"
