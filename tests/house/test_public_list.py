"""The list of public programs is complete: every entry reads, runs something or says why not, and is on the page."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from benchmarks.public import data
from benchmarks.public.page import PAGE, RESULTS, text
from benchmarks.public.programs import LISTS, Program, read_list, read_programs

PROGRAMS = read_programs()
REQUIREMENTS = Path(LISTS).parent / "requirements.txt"


@pytest.mark.parametrize("path", sorted(LISTS.glob("*.toml")), ids=lambda path: path.stem)
def test_every_list_is_complete(path: Path) -> None:
    assert read_list(path), "a list without programs says nothing"


def test_there_are_enough_programs() -> None:
    assert len([program for program in PROGRAMS if not program.skipped]) >= 40


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.id)
def test_data_is_made_by_a_function(program: Program) -> None:
    for entry in program.data:
        assert callable(getattr(data, entry.make, None)), f"{entry.make} is not in benchmarks/public/data.py"


def test_every_package_is_required() -> None:
    lines = REQUIREMENTS.read_text(encoding="utf-8").splitlines()
    listed = {re.split(r"[\[<>=]", line)[0] for line in lines if line and not line.startswith("#")}
    assert sorted({package for program in PROGRAMS for package in program.packages} - listed) == []


def test_the_page_is_that_of_the_list_and_the_results() -> None:
    results = json.loads(RESULTS.read_text(encoding="utf-8"))
    assert PAGE.read_text(encoding="utf-8") == text(PROGRAMS, results), "run python -m benchmarks.public, or write_page"
