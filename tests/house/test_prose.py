"""The prose of pages, help texts and diagnoses passes the linter of prose.py."""

from __future__ import annotations

import pytest
from prose import diagnosis_texts, help_texts, lint, notes_texts, page_texts, sentences

TEXTS = {**dict(page_texts()), **dict(notes_texts())}


@pytest.mark.parametrize("name", TEXTS)
def test_pages(name: str) -> None:
    assert lint(name, TEXTS[name]) == []


def test_help() -> None:
    assert [line for name, text in help_texts() for line in lint(f"--help of {name}", text)] == []


def test_diagnoses() -> None:
    assert [line for name, text in diagnosis_texts() for line in lint(name, text)] == []


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("It was told.", "'told': write reported"),
        ("Look at it anew.", "'anew': write again"),
        (" ".join(["word"] * 31) + ".", "A sentence of 31 words"),
        ("We associate together.", "redundancy"),
    ],
)
def test_the_linter_complains(text: str, complaint: str) -> None:
    (line,) = lint("page", f"First line.\n\n{text}\n\nLast line.\n")
    assert line.startswith("page:3: ") and complaint in line


@pytest.mark.parametrize(
    "text",
    [
        "# What it is",
        "```\nit was told anew\n```",
        "`told` is code, and [a link](told.md).",
        "* " + "Short items. " * 40,
        "What is it?",
    ],
)
def test_the_linter_accepts(text: str) -> None:
    assert lint("page", text) == [] and not any(sentence.has_bad_opener for sentence in sentences(text))


def test_sentences_keep_their_lines() -> None:
    text = "# Title\n\nOne sentence over\ntwo lines. Another one.\n\n* An item\n* A second\n\n| a cell | b |\n"
    assert [(sentence.line, sentence.text) for sentence in sentences(text)] == [
        (3, "One sentence over two lines."),
        (3, "Another one."),
        (6, "An item"),
        (7, "A second"),
        (9, "a cell"),
        (9, "b"),
    ]
