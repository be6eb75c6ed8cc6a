"""Checks the training in a test: the pytest fixture `checked_training` fails the test if TrainCheck reports a finding.

Every run of pytest imports this file, so it imports TrainCheck only when a test requests the fixture.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pathlib import Path

    from traincheck.runtime.observe import Observation

BOOK, PACKS, FAIL_ON = "--traincheck-book", "--traincheck-packs", "--traincheck-fail-on"
MARK = "traincheck"
OPEN = pytest.StashKey["tuple[ExitStack, Observation]"]()
"""Open contexts of a running test."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options, in their own group in `pytest --help`."""
    group = parser.getgroup("traincheck", "training checks with TrainCheck (fixture checked_training)")
    group.addoption(BOOK, action="append", metavar="BOOK", help="Book of invariants to check against; may be repeated.")
    group.addoption(
        PACKS,
        action="append",
        metavar="PACKS",
        help="Packs to check against: a folder, an address, shipped or none; may be repeated. (default: shipped, and "
        "the project's library if you name no book)",
    )
    group.addoption(
        FAIL_ON,
        choices=("error", "notice"),
        default="error",
        help="Findings of this severity and above fail the test. (default: error)",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Add the mark to `pytest --markers`."""
    config.addinivalue_line(
        "markers",
        f"{MARK}(**options): options of traincheck.checked for the fixture checked_training, such as "
        "book='good.jsonl'; and fail_on='notice'.",
    )


@pytest.fixture  # type: ignore[untyped-decorator]
def checked_training(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Observation]:
    """Checks the training in the test, as `traincheck run` does, and fails the test after a finding.

    The mark `traincheck` and the command line select the rules; the defaults are those of `traincheck run`. `folder` is
    the run folder, and `report` is available after the test.
    """
    from traincheck import TrainCheckError, checked

    item = request.node
    options = _options_of(item)
    stack = ExitStack()
    try:
        checking = checked(tmp_path / "traincheck", name=options.pop("name", item.path.name), **options)
        observation = stack.enter_context(checking)
    except TrainCheckError as error:
        pytest.fail(f"TrainCheck error [{error.slug}]: {error}", pytrace=False)
    item.stash[OPEN] = (stack, observation)
    try:
        yield observation
    finally:
        stack.close()


@pytest.hookimpl(wrapper=True)  # type: ignore[untyped-decorator]
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, Any]:
    """Fail the test itself, not its teardown, after a finding."""
    result = yield
    if OPEN in item.stash:
        stack, observation = item.stash[OPEN]
        stack.close()
        _judge(item, observation)
    return result


def _judge(item: pytest.Item, observation: Observation) -> None:
    report = observation.report
    if report is None or not report.counts.steps:
        item.warn(pytest.PytestWarning(f"{item.nodeid}: checked_training saw nothing train"))
        return
    mark = item.get_closest_marker(MARK)
    fail_on = (mark.kwargs if mark else {}).get("fail_on") or item.config.getoption(FAIL_ON)
    failures = [finding for finding in report.findings if fail_on == "notice" or finding.severity == "error"]
    if failures:
        from traincheck.reporting.phrases import titled

        lines = []
        for finding in failures:
            where = f" ({finding.site})" if finding.site else ""
            lines.append(f"{finding.severity} at step {finding.step}: {titled(finding)}{where}")
        page = observation.folder / "report.html"
        pytest.fail("\n".join(["TrainCheck found:", *lines, f"report: {page}"]), pytrace=False)


def _options_of(item: pytest.Item) -> dict[str, Any]:
    """The options of `traincheck.checked` from the mark and the command line; the mark has priority."""
    mark = item.get_closest_marker(MARK)
    options = {name: value for name, value in (mark.kwargs if mark else {}).items() if name != "fail_on"}
    for name, option in (("book", BOOK), ("packs", PACKS)):
        value = item.config.getoption(option)
        if value and name not in options:
            options[name] = value
    return options
