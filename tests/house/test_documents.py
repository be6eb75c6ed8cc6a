"""Documents match the code: commands parse, links resolve, slugs exist, and generated pages are current."""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from repository import DOCUMENTS, MODULES, ROOT, blocks, commands, shown_path
from typer.main import get_command

from traincheck.cli.main import app
from traincheck.diagnoses.catalogue import topics

GROUP: Any = get_command(app())
ELSEWHERE = re.compile(r"(?<![\w.])/(?:root|Users|work|mnt|home/(?!me/))/?\w")
"""Absolute paths of a machine; `/home/me` is an example."""
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
TEXTS = (".py", ".md", ".sh", ".toml", ".txt", ".j2", ".css", ".js", ".cfg", ".json", ".jsonl", "")
SKIPPED = {".git", ".venv", "traincheck-runs", "runs", "build", "dist"}


def generator() -> Any:
    """docs/generate.py as a module."""
    spec = importlib.util.spec_from_file_location("generate", ROOT / "docs" / "generate.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def parse(words: list[str]) -> None:
    """Parse a traincheck command line without running it. Raises an error for an invalid command."""
    with GROUP.make_context("traincheck", list(words[1:]), resilient_parsing=False) as above:
        name, *rest = [*above._protected_args, *above.args] if hasattr(above, "_protected_args") else above.args
        command = GROUP.commands[name]
        if hasattr(command, "commands"):
            name, *rest = rest
            command = command.commands[name]
        with command.make_context(name, list(rest), parent=above):
            pass


@pytest.mark.parametrize("path", DOCUMENTS, ids=shown_path)
def test_commands_in_documents_parse(path: Path) -> None:
    for line in commands(path, "traincheck"):
        if "[OPTIONS]" in line or "..." in line or line == "traincheck":
            continue
        if "-completion" in line:  # acts while it is parsed: it would change the profile of whoever runs the tests
            continue
        words = shlex.split(line.partition("|")[0])
        try:
            parse(words)
        except Exception as error:
            pytest.fail(f"{shown_path(path)}: `{line}`: {error!r}")


def test_commands_are_looked_at() -> None:
    assert len(list(commands(ROOT / "README.md", "traincheck"))) >= 6
    assert len(list(commands(ROOT / "docs" / "tutorial.md", "traincheck"))) >= 8


@pytest.mark.parametrize("path", DOCUMENTS, ids=shown_path)
def test_targets_in_documents_exist(path: Path) -> None:
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    text = path.read_text(encoding="utf-8")
    named = [line.split()[1] for line in commands(path, "make")] + re.findall(r"`make ([a-z-]+)`", text)
    assert set(named) <= set(targets)


@pytest.mark.parametrize("path", DOCUMENTS, ids=shown_path)
def test_links_lead_to_files(path: Path) -> None:
    for link in LINK.findall(path.read_text(encoding="utf-8")):
        file = link.partition("#")[0]
        if file and "://" not in file:
            assert (path.parent / file).exists(), f"{shown_path(path)} links to {link}"


def test_every_slug_is_explained() -> None:
    text = (ROOT / "docs" / "messages.md").read_text(encoding="utf-8")
    sections = {
        match[1]: match[2] for match in re.finditer(r"^### (\S+)\n(.*?)(?=^##|\Z)", text, re.MULTILINE | re.DOTALL)
    }
    slugs = generator().slugs()
    assert set(sections) == set(slugs)
    for slug, section in sections.items():
        assert "never raised by itself" in section or "*Cure:*" in section, f"{slug} has no cure"


def test_every_finding_has_notes_with_valid_code() -> None:
    for slug in (entry.slug for group in topics().values() for entry in group):
        path = ROOT / "docs" / "findings" / f"{slug}.md"
        notes = generator().notes_in(path)
        assert notes.strip(), f"write notes in {shown_path(path)}"
        for code in re.findall(r"^```python\n(.*?)^```$", notes, re.MULTILINE | re.DOTALL):
            compile(code, shown_path(path), "exec")


def test_every_error_is_in_the_tree() -> None:
    from traincheck import errors

    for cls in generator().slugs().values():
        assert re.search(rf"\b{cls.__name__}\b", errors.__doc__ or ""), f"{cls.__name__} is not in the tree of errors/"


def test_generated_pages_are_up_to_date() -> None:
    stale = [
        shown_path(path)
        for path, text in generator().pages().items()
        if not path.exists() or path.read_text(encoding="utf-8") != text
    ]
    assert not stale, f"run `make docs`: {', '.join(stale)}"


def test_commands_in_messages_exist() -> None:
    commands_of_cli = {*GROUP.commands, "--debug", "--help"}
    for path in MODULES:
        for name in re.findall(r"`traincheck ([a-z-]+)", path.read_text(encoding="utf-8")):
            assert name in commands_of_cli, f"{shown_path(path)} names `traincheck {name}`"


def test_how_it_works_names_the_folders() -> None:
    text = (ROOT / "docs" / "how-it-works.md").read_text(encoding="utf-8")
    folders = {path.parent.name for path in (ROOT / "src" / "traincheck").glob("*/__init__.py")} - {
        "testing",
        "errors",
        "options",
    }  # what all of them use
    headings = set(re.findall(r"\w+", " ".join(re.findall(r"^## (.*)$", text, re.MULTILINE))))
    assert folders <= headings


def test_the_path_of_an_event_names_files() -> None:
    text = (ROOT / "docs" / "how-it-works.md").read_text(encoding="utf-8")
    _, _, section = text.partition("## From optimizer.step() to the finding\n")
    files = re.findall(r"`([a-z_/]+\.py)`", section)
    assert len(set(files)) == len(files) == 40
    assert [file for file in files if not (ROOT / "src" / "traincheck" / file).exists()] == []


def test_decisions_are_listed() -> None:
    folder = ROOT / "docs" / "decisions"
    listed = (folder / "README.md").read_text(encoding="utf-8")
    pages = sorted(path.name for path in folder.glob("[0-9]*.md"))
    assert [page for page in pages if f"({page})" not in listed] == []
    assert [page[:4] for page in pages] == [f"{number:04}" for number in range(1, len(pages) + 1)]


def test_blocks_name_a_language_that_is_known() -> None:
    languages = {"", "bash", "python", "toml", "json", "sql", "yaml"}
    assert [(shown_path(path), name) for path in DOCUMENTS for name, _ in blocks(path) if name not in languages] == []


def own_files() -> Iterator[Path]:
    """The files of the repository; environments and caches are not entered, for they hold a hundred thousand files."""
    for folder, folders, names in os.walk(ROOT):
        at_root = Path(folder) == ROOT
        folders[:] = [
            name
            for name in folders
            if not (name in SKIPPED or name.endswith("_cache") or (at_root and name.startswith(".") and name != ".ci"))
        ]
        yield from (Path(folder, name) for name in names if not (at_root and name.startswith(".")))


def test_no_paths_of_one_machine() -> None:
    here = Path(__file__).name
    for path in own_files():
        if not path.is_file() or path.suffix not in TEXTS or path.name in SKIPPED or path.name.endswith("_cache"):
            continue
        if path.name == here or path.name.endswith(".actual"):
            continue
        for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), 1):
            match = ELSEWHERE.search(line)
            assert not match or line.lstrip().startswith("#!"), f"{shown_path(path)}:{number}: {line.strip()}"


def test_the_verification_page_lists_every_experiment() -> None:
    from traincheck.vocab.verification import EXPERIMENTS

    text = (ROOT / "docs" / "verification.md").read_text(encoding="utf-8")
    listed = dict(re.findall(r"^\| `(\w+)` \| (.+) \|$", text, re.MULTILINE))
    assert listed == {experiment.name: experiment.sentence for experiment in EXPERIMENTS.values()}
