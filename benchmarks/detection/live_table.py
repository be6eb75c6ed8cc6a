"""Formats the live findings on jobs of several ranks for docs/benchmarks.md."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from benchmarks.recorded_findings import title_of

Row = dict[str, Any]

HEAD = """
## Detection during the run

`python -m benchmarks.detection --live` runs each case of several ranks again, clean and buggy, under `traincheck run` and
`torchrun`. It uses the book of the examples and the twin book together. *Reported* is the step of the nearest error that the
clean run does not have. *Ahead* is the time between the finding on the screen and the last event of a rank; these programs
train for a few seconds. *As offline* means that the report agrees with a check of this recording, and contains all findings
of a check of a full recording. `at_fault` and `concerns` in `case.toml` define the right *ranks* and *parameter or call*, and
`names` the right *cause*. If two ranks differ, either can be wrong, so both are named.
"""

GOALS: dict[str, Callable[[Row], bool]] = {
    "in the same step": lambda row: bool(row["live"]["same_step"]),
    "before the end": lambda row: (row["before_the_end"] or 0) > 0,
    "as offline": lambda row: not (row["unlike_its_recording"] or row["not_reported_live"]),
    "ranks named": lambda row: bool(row["ranks_named"]) and not row["ranks_lacking"],
    "parameter or call named": lambda row: bool(row["live"]["leading"]) and not row["things_lacking"],
    "cause named": lambda row: bool(row["live"]["diagnosed"]),
    "clean run silent": lambda row: not row["clean"],
}
"""The requirements of each case."""


def text(result: Row) -> str:
    """The section of the page."""
    return "".join([HEAD, *_counts(result["rows"]), *_cases(result["rows"]), *_shortfalls(result["rows"])])


def shortfalls(row: Row) -> list[str]:
    """The goals that a case does not reach."""
    return [goal for goal, reached in GOALS.items() if not reached(row)]


def _counts(rows: list[Row]) -> Iterator[str]:
    yield "\n| cases | " + " | ".join(GOALS) + " |\n" + "|---" * (len(GOALS) + 1) + "|\n"
    yield f"| {len(rows)} | " + " | ".join(str(sum(map(reached, rows))) for reached in GOALS.values()) + " |\n"


def _cases(rows: list[Row]) -> Iterator[str]:
    head = (
        "case | due | reported | ahead | as offline | ranks | parameter or call | cause | clean run | leading finding"
    )
    yield f"\n| {head} |\n{'|---' * 10}|\n"
    for row in rows:
        short = shortfalls(row)
        leading = row["live"]["leading"]
        cells = [
            f"[{row['id']}]({row['source']})",
            f"step {row['first_bad_step']}",
            _marked(detected_in(row), "in the same step" in short),
            _marked(
                "-" if row["before_the_end"] is None else f"{row['before_the_end']:.1f} s", "before the end" in short
            ),
            _marked("no", True) if "as offline" in short else "yes",
            _marked(", ".join(map(str, row["ranks_named"])) or "none", "ranks named" in short),
            _marked(_subject_of(leading) if leading else "none", "parameter or call named" in short),
            _marked("not named", True) if "cause named" in short else "named",
            "silent" if not row["clean"] else _marked(f"{len(row['clean'])} findings", True),
            title_of(leading) if leading else "-",
        ]
        yield f"| {' | '.join(cells)} |\n"


def detected_in(row: Row) -> str:
    """The step in which TrainCheck reported the error."""
    late = row["live"]["late"]
    return "missed" if late is None else f"step {row['first_bad_step'] + late}"


def _subject_of(leading: Row) -> str:
    site = leading["site"]
    if not leading["variables"]:
        return f"{site['file']}:{site['line']}" if site else "none"
    first, *others = leading["variables"]
    return f"{first} and {len(others)} more" if others else str(first)


def _marked(words: str, wrong: bool) -> str:
    return f"**{words}**" if wrong else words


def _shortfalls(rows: list[Row]) -> Iterator[str]:
    short = [(row, goals) for row in rows if (goals := shortfalls(row))]
    if not short:
        yield "\nAll cases reach all goals.\n"
        return
    yield "\nMissed goals:\n\n"
    for row, goals in short:
        observed = row["live"]["leading"]["observed"] if row["live"]["leading"] else "nothing"
        alarms = f"; the clean run has: {', '.join(row['clean'])}" if row["clean"] else ""
        yield f"* {row['id']}: not {', '.join(goals)}. Observed: {observed}{alarms}.\n".replace("|", "\\|")
