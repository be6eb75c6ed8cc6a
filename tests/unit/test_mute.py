"""Muting: with a reason, all or nothing, and for as long as the rule is learned again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from traincheck.cli.main import main
from traincheck.errors import NoSuchInvariant
from traincheck.invariants.book import Book, read_book, write_book
from traincheck.invariants.lookup import invariant_by_id
from traincheck.invariants.mute import carry_over, with_mutes
from traincheck.vocab.invariant import Invariant
from traincheck.vocab.occasion import Property

Make = Callable[..., Invariant]


@pytest.fixture
def book(folder: Path, some_invariants: tuple[Invariant, ...]) -> Book:
    """good.jsonl, whose fourth invariant is muted."""
    sample = Book(some_invariants)
    write_book(sample, "good.jsonl")
    return sample


def mutes(path: str = "good.jsonl") -> dict[str, str]:
    return {rule.id: rule.mute for rule in read_book(path).invariants if rule.mute}


def test_a_reason_is_kept_in_one_line(book: Book, some_invariants: tuple[Invariant, ...]) -> None:
    first, second, _, muted = some_invariants
    muted_book = with_mutes(book, {first.id: " we do so\n on purpose ", muted.id: ""})
    assert {rule.id: rule.mute for rule in muted_book.invariants if rule.mute} == {first.id: "we do so on purpose"}
    assert muted_book.by_id(second.id) == second
    with pytest.raises(KeyError):
        with_mutes(book, {"ffffffffff": "x"})


def test_mutes_carry_over_to_the_replacing_book(some_invariants: tuple[Invariant, ...]) -> None:
    first, second, third, muted = some_invariants
    older = [replace(first, mute="a"), replace(second, mute="b"), muted]
    book, kept, lost = carry_over(Book((first, replace(second, mute="own"), third)), older)
    assert {rule.id: rule.mute for rule in book.invariants if rule.mute} == {first.id: "a", second.id: "own"}
    assert {rule.id for rule in kept} == {first.id, second.id} and lost == [muted]


def test_an_invariant_is_named_by_its_first_digits(book: Book, some_invariants: tuple[Invariant, ...]) -> None:
    for rule in some_invariants:
        assert (
            invariant_by_id(book, "good.jsonl", rule.id)
            == invariant_by_id(book, "good.jsonl", f" {rule.id[:8].upper()}")
            == rule
        )


def test_unknown_ids_suggest_similar_rules(
    book: Book, some_invariants: tuple[Invariant, ...], new_invariant: Make
) -> None:
    first = some_invariants[0]
    slip = ("0" if first.id[0] != "0" else "1") + first.id[1:]
    with pytest.raises(NoSuchInvariant, match=f"no id begins with '{slip}'. Did you mean {first.id}"):
        invariant_by_id(book, "good.jsonl", slip)
    with pytest.raises(NoSuchInvariant, match=f"Did you mean {some_invariants[3].id} .*the loss is printed"):
        invariant_by_id(book, "good.jsonl", "printed")
    for text in ("", " ", "zzzz"):
        with pytest.raises(NoSuchInvariant, match="traincheck show"):
            invariant_by_id(book, "good.jsonl", text)
    many = Book(tuple(new_invariant(Property("preceded by", str(number))) for number in range(40)))
    with pytest.raises(NoSuchInvariant, match=r"[0-9]+ ids begin with '.'. Did you mean"):
        invariant_by_id(
            many, "good.jsonl", max("0123456789abcdef", key=lambda d: sum(r.id[0] == d for r in many.invariants))
        )


def test_several_are_muted_and_unmuted(
    book: Book, some_invariants: tuple[Invariant, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    first, second, _, muted = some_invariants
    before = Path("good.jsonl").read_bytes()
    assert main(["mute", "good.jsonl", first.id[:7], second.id, "--reason", "on purpose"]) == 0
    assert mutes() == {first.id: "on purpose", second.id: "on purpose", muted.id: muted.mute}
    assert first.sentence in capsys.readouterr().out
    assert main(["mute", "good.jsonl", first.id, "--reason", "better reason"]) == 0
    assert "the reason was: on purpose" in capsys.readouterr().out
    assert main(["mute", "good.jsonl", first.id, second.id, "--unmute"]) == 0
    assert Path("good.jsonl").read_bytes() == before
    assert main(["mute", "good.jsonl", first.id, "--unmute"]) == 0
    assert "it was not muted" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "slug"),
    [
        (["ID"], "bad-option"),
        (["ID", "--reason", ""], "bad-option"),
        (["ID", "--reason", " \n"], "bad-option"),
        (["ID", "--reason", "x", "--unmute"], "bad-option"),
        (["ID", "ffff00ffff", "--reason", "x"], "no-such-invariant"),
        (["", "--reason", "x"], "no-such-invariant"),
    ],
)
def test_all_or_nothing(words: list[str], slug: str, book: Book, capsys: pytest.CaptureFixture[str]) -> None:
    before = Path("good.jsonl").read_bytes()
    words = [book.invariants[0].id if word == "ID" else word for word in words]
    assert main(["mute", "good.jsonl", *words]) == 2
    assert f"[{slug}]" in capsys.readouterr().err
    assert Path("good.jsonl").read_bytes() == before
    assert list(Path().iterdir()) == [Path("good.jsonl")]


def test_a_file_without_a_book_stays_unchanged(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "notes.txt").write_text("hello\n")
    assert main(["mute", "notes.txt", "ab", "--reason", "x"]) == 2
    assert main(["mute", "absent.jsonl", "ab", "--reason", "x"]) == 2
    assert "[book-not-found]" in capsys.readouterr().err
    assert (folder / "notes.txt").read_text() == "hello\n" and list(Path().iterdir()) == [Path("notes.txt")]
