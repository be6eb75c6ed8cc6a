"""The packages of `make stacks`: every list reads, every package has a pinned version, and the page has the results."""

from __future__ import annotations

import json
import re

import pytest
from benchmarks.stacks.lists import HERE, LISTS, BadList, read_list, read_packages
from benchmarks.stacks.page import RESULTS, text, written

PACKAGES = read_packages()
LEAST_ERRORS = 3


def test_packages_have_programs_and_errors() -> None:
    assert all(package.programs for package in PACKAGES)
    errors = [[error for error in package.errors if not error.family] for package in PACKAGES]
    assert sum(len(of_package) >= LEAST_ERRORS for of_package in errors) >= 5


def test_every_version_is_pinned() -> None:
    files = [*HERE.glob("requirements*.txt")]
    lines = [line for path in files for line in path.read_text(encoding="utf-8").splitlines()]
    pinned = {line.partition("==")[0] for line in lines if re.fullmatch(r"[\w-]+==[\w.]+", line)}
    assert sorted({package.package for package in PACKAGES} - pinned) == ["torch"]  # constraints.txt


def test_the_page_is_that_of_the_lists_and_the_results() -> None:
    results = json.loads(RESULTS.read_text(encoding="utf-8"))
    assert written() == text(PACKAGES, results), "run python -m benchmarks.stacks --page"


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("order = 3", "order = 3\nsize = 1", "unknown keys: size"),
        ("unseen = ", "# unseen = ", "it does not say what is observed and unseen"),
        ('program = "peft-lora"', 'program = "nothing"', "is none of its programs"),
        ('script = "peft_lora.py"', 'script = "gone.py"', "gone.py is not in programs/"),
        ("https://github.com/huggingface/peft/issues/3487", "a forum", "it needs edits or args, and as source"),
    ],
)
def test_an_incomplete_list_is_refused(tmp_path: object, old: str, new: str, problem: str) -> None:
    path = LISTS / "peft.toml"
    copy = type(path)(str(tmp_path)) / "peft.toml"
    copy.write_text(path.read_text(encoding="utf-8").replace(old, new))
    with pytest.raises(BadList, match=re.escape(problem)):
        read_list(copy)
