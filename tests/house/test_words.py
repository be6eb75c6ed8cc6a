"""Words are measured: empty names in the code, openers and "you" in the documentation."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from prose import PAGES, Sentence, sentences
from repository import MODULES, ROOT, SRC, shown_path
from words import EMPTY_FILES, bindings, count

MAX_EMPTY_NAMES = 5.0
"""Per 1,000 bindings. Hypothesis has 4.2, coverage.py 0.8; a rare `what` in a short expression may stay."""
MAX_OPENERS = 3.0
"""Per 100 sentences. The pages of coverage.py, httpx and torchtitan have 0.9 to 1.9."""
LEAST_YOU = 10.0
"""Per 1,000 words: documentation speaks to its reader. The same pages have 11 to 20."""


def test_names_are_descriptive() -> None:
    counted = count(MODULES)
    report = "\n".join(line.replace(f"{ROOT}/", "") for line in counted.lines)
    assert counted.per_thousand < MAX_EMPTY_NAMES, (
        f"{counted.empty} of {counted.total} bindings ({counted.per_thousand:.1f} per 1,000) say nothing:\n{report}"
    )


@pytest.mark.parametrize("path", [*MODULES, *sorted(ROOT.glob("tests/*.py"))], ids=shown_path)
def test_files_are_named_by_nouns(path: Path) -> None:
    parts = path.relative_to(SRC if path.is_relative_to(SRC) else ROOT).with_suffix("").parts
    assert not EMPTY_FILES & {part.strip("_").lower() for part in parts}


def _by_page() -> dict[str, list[Sentence]]:
    return {shown_path(path): list(sentences(path.read_text(encoding="utf-8"))) for path in PAGES}


def test_sentences_open_with_their_subject() -> None:
    pages = _by_page()
    total = sum(map(len, pages.values()))
    bad = [
        f"{page}:{one.line}: {one.text[:70]}" for page, lines in pages.items() for one in lines if one.has_bad_opener
    ]
    rate = 100 * len(bad) / total
    assert rate < MAX_OPENERS, f"{len(bad)} of {total} sentences ({rate:.1f} per 100):\n" + "\n".join(bad)


def test_documentation_addresses_you() -> None:
    words = {page: [word.lower() for line in lines for word in line.words] for page, lines in _by_page().items()}
    total, you = sum(map(len, words.values())), sum(page.count("you") for page in words.values())
    rates = sorted((1000 * page.count("you") / len(page), name) for name, page in words.items())
    report = "\n".join(f"{name}: {rate:.1f}" for rate, name in rates)
    rate = 1000 * you / total
    assert rate > LEAST_YOU, f'{you} times "you" in {total} words ({rate:.1f} per 1,000), by page:\n{report}'


def test_every_kind_of_binding_is_counted() -> None:
    code = (
        "import a as found\n"
        "def told(one, *, why): self.said = one\n"
        "class Known: pass\n"
        "try: pass\n"
        "except E as thing: pass\n"
    )
    names = {binding.name for binding in bindings(ast.parse(code)) if binding.is_empty}
    assert names == {"found", "told", "one", "why", "said", "Known", "thing"}
