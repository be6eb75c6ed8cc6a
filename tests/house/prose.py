"""The prose linter: rules of our own on top of proselint, and the prose that they read."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from proselint.checks import __register__ as builtin_checks
from proselint.registry import CheckRegistry
from proselint.registry.checks import Check, CheckResult, types
from proselint.tools import LintFile
from repository import DOCUMENTS, ROOT

GENERATED = {"benchmarks.md", "mutation-score.md", "public-programs.md", "sdc-detection.md"}
"""Pages that benchmarks write: half of their words are names and reasons from the data. `docs/findings` and
`docs/reference` are written by docs/generate.py from texts that are linted where they stand; see `notes_texts` for the
notes on findings."""
PAGES = tuple(
    path
    for path in DOCUMENTS
    if path == ROOT / "README.md"
    or (
        (path.is_relative_to(ROOT / "docs") and not {"decisions", "findings", "reference"} & set(path.parts))
        and path.name not in GENERATED
    )
)
NOTES = "<!-- notes: begin; write here, `make docs` keeps it -->\n"
"""The mark of docs/generate.py before the part of a page that people write."""
MAX_WORDS = 30
"""The longest sentence that passes. Write for 22 words; 30 leaves room for lists of names."""
OPENERS = ("What", "Who", "Of", "Where", "Nothing")
"""A sentence that opens with one of these hides its subject in a relative clause."""

BANNED = {
    r"(?:re)?tell(?:s|ing)?": "report, show or print",
    "told": "reported, shown or printed",
    "anew": "again",
    "mend(?:s|ed|ing)?": "repair or fix",
    "midst": "middle",
    "heed(?:s|ed|ing)?": "follow or obey",
    "aside": "a verb that says what happens: skip, ignore, suspend",
    "beside": "next to, in parallel, or with",
    "parting(?:s)?": "divergence",
    "fate": "outcome",
}
"""Words with the field's word for each."""

STANDARD = (
    "cliches",
    "malapropisms",
    "misc.latin",
    "misc.many_a",
    "misc.whence",
    "mixed_metaphors",
    "mondegreens",
    "needless_variants",
    "nonwords",
    "oxymorons",
    "redundancy",
    "uncomparables",
    "weasel_words",
)
"""The checks of proselint that fit technical pages; spelling is not among them, for they are in British English."""


class Sentence(NamedTuple):
    """A sentence of a page, with the line on which it begins."""

    line: int
    text: str

    @property
    def words(self) -> list[str]:
        """Its words; a piece of code is one."""
        return re.findall(r"[\w'/.%@*=+-]*\w[\w'/.%@*=+-]*", self.text)

    @property
    def has_bad_opener(self) -> bool:
        """Return whether the sentence opens with a word of OPENERS and is no question."""
        return bool(self.words) and self.words[0] in OPENERS and not self.text.endswith("?")


FENCED = re.compile(r"^( *)```.*?^\1```$", re.MULTILINE | re.DOTALL)
COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
CODE = re.compile(r"`+[^`]+`+")
LINK = re.compile(r"!?\[([^\]]*)\]\([^)]*\)")
ADDRESS = re.compile(r"https?://\S+")


def plain(text: str) -> str:
    """The prose of a Markdown text, line for line: no code, no addresses, no marks."""

    def lines_kept(match: re.Match[str]) -> str:
        return "\n" * match[0].count("\n")

    text = COMMENT.sub(lines_kept, FENCED.sub(lines_kept, text))
    text = CODE.sub(lambda match: "Code" + "\n" * match[0].count("\n"), text)
    text = LINK.sub(lambda match: match[1] + "\n" * (match[0].count("\n") - match[1].count("\n")), text)
    return re.sub(r"\*+(?=\S)|(?<=\S)\*+|(?<!\w)_|_(?!\w)", "", ADDRESS.sub("Address", text))


BLOCK = re.compile(r"^\s*(?:[*+-]|\d+\.) |^\s*$|^\s*\|")
END = re.compile(r"(?<=[.!?])[)\"']*\s+(?=[A-Z\"'(])")


def sentences(text: str) -> Iterator[Sentence]:
    """The sentences of a Markdown text; headings are none, an item and a cell of a table are at least one."""
    block: list[str] = []
    first = 1
    for number, line in enumerate([*plain(text).splitlines(), ""], 1):
        if BLOCK.match(line) or line.startswith("#"):
            yield from _split(" ".join(block), first)
            block = []
        if line.lstrip().startswith("|"):
            for cell in line.split("|"):
                yield from _split(cell.strip(), number)
        elif line.strip() and not line.startswith("#"):
            if not block:
                first = number
            block.append(re.sub(r"^\s*(?:[*+-]|\d+\.) ", "", line).strip())


def _split(text: str, line: int) -> Iterator[Sentence]:
    for part in END.split(text):
        if re.search(r"[a-z]", part):
            yield Sentence(line, part.strip())


def _long_sentences(text: str, check: Check) -> Iterator[CheckResult]:
    starts = [0, *(match.end() for match in re.finditer("\n", text))]
    for sentence in sentences(text):
        count = len(sentence.words)
        if count > MAX_WORDS:
            at = starts[sentence.line - 1]
            yield CheckResult(check.path, check.message.format(count, " ".join(sentence.words[:6])), (at, at + 1), None)


OWN = "traincheck"
OWN_CHECKS = (
    *(
        Check(check_type=types.Existence(items=(word,)), path=f"{OWN}.banned", message=f"'{{}}': write {instead}.")
        for word, instead in BANNED.items()
    ),
    Check(check_type=_long_sentences, path=f"{OWN}.length", message="A sentence of {} words: {} ..."),
)


@cache
def _registry() -> CheckRegistry:
    registry = CheckRegistry()
    registry.register_many((*builtin_checks, *OWN_CHECKS))
    return registry


def lint(name: str, text: str) -> list[str]:
    """Return the complaints of the linter about a Markdown text, as lines."""
    _registry()
    prose = plain(text)
    if not prose.strip():
        return []
    config: Any = {"max_errors": 1000, "checks": {OWN: True, **dict.fromkeys(STANDARD, True)}}
    return [
        f"{name}:{result.pos[0]}: {result.check_result.check_path}: {result.check_result.message}"
        for result in LintFile(name, prose).lint(config)
    ]


def help_texts() -> Iterator[tuple[str, str]]:
    """The help of every command and every option, by the command's name."""
    from typer.main import get_command

    from traincheck.cli.main import app

    def walk(name: str, command: Any) -> Iterator[tuple[str, str]]:
        for parameter in command.params:
            if getattr(parameter, "help", None):
                yield f"{name} {parameter.opts[0]}", parameter.help
        yield name, f"{command.help or ''}\n\n{examples_removed(command.epilog or '')}"
        for word, child in getattr(command, "commands", {}).items():
            yield from walk(f"{name} {word}", child)

    yield from walk("traincheck", get_command(app()))


def examples_removed(epilog: str) -> str:
    """The text at the end of a help page without its commands; the lines of a block that keeps them are items."""
    parts = [part for part in epilog.split("\n\n") if not part.lstrip("\b\n ").startswith("Examples:")]
    return "\n\n".join("* " + part[2:].replace("\n", "\n* ") if part.startswith("\b\n") else part for part in parts)


def diagnosis_texts() -> Iterator[tuple[str, str]]:
    """The texts of every diagnosis that a finding or its page shows, by slug."""
    from traincheck.diagnoses.catalogue import topics

    for entries in topics().values():
        for entry in entries:
            yield entry.slug, "\n\n".join([entry.title, entry.problem, *entry.advice, entry.priority_reason])


def page_texts() -> Iterator[tuple[str, str]]:
    """The pages that people write and read, by path."""
    for path in PAGES:
        yield Path(path).relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8")


def notes_texts() -> Iterator[tuple[str, str]]:
    """The notes on each finding, by path; empty lines stand for the generated part of a page."""
    for path in sorted((ROOT / "docs" / "findings").glob("*.md")):
        generated, mark, notes = path.read_text(encoding="utf-8").partition(NOTES)
        if mark:
            yield path.relative_to(ROOT).as_posix(), "\n" * (generated + mark).count("\n") + notes
