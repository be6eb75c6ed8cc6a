"""Formats the result of the benchmark for docs/benchmarks.md, with every miss and false alarm."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from benchmarks.detection.books import EXAMPLES, TWIN
from benchmarks.detection.cases import PARTS
from benchmarks.detection.judging import WITHIN
from benchmarks.recorded_findings import title_of

Row = dict[str, Any]

HEAD = """
## Detected silent errors

`make bench-detection` runs the cases in `benchmarks/detection/cases/`. Each case is a real silent error, reproduced by its
mechanism in a new program, with a clean twin. *Detected* means an error in the buggy run that the clean run does not have,
within one step of the first effect. A test determines the first effect without TrainCheck; an error before the first step
(0 here) must show in step 1. *Named* means that the leading finding contains the diagnosis in `case.toml`. The book *examples*
comes from the scripts in `examples/`, which share neither model nor data with any case. The book *twin* comes from three
earlier runs of the clean program, with another seed, size and length.
"""

ALARMS = """
### False alarms

This table counts every rule that was violated in a clean run. Errors are false alarms; notices fail no run.
"""

BASELINES = """
### Simple detectors

The same programs are judged by rules on loss and gradient norm, and by torch's anomaly mode (`benchmarks/baselines/`). Two
learned detectors of scikit-learn are fitted to an earlier clean run. *In time* is an alarm within one step of the first bad
step. An alarm on the clean run is a false alarm.
"""


def text(result: Row) -> str:
    """The section of the page."""
    parts = [HEAD, *_counts(result), *_cases(result), *_misses(result), ALARMS, *_alarms(result)]
    if any(row["baselines"] for row in result["cases"]):
        parts += [BASELINES, *_baselines(result)]
    examples = sum(result["examples"].values())
    parts.append(f"\n{len(result['examples'])} examples ({examples:.0f} s to record), {result['rules']} rules")
    if result["seconds"] is not None:  # recordings of an earlier run were taken
        parts.append(f"; the whole benchmark took {result['seconds'] / 60:.1f} minutes")
    parts.append(".\n")
    return "".join(parts)


def _counts(result: Row) -> Iterator[str]:
    yield "\n| part | cases | book | detected | in the same step | cause named |\n|---|---|---|---|---|---|\n"
    for part, title in PARTS.items():
        for book in (EXAMPLES, TWIN):
            rows = [row["books"][book] for row in result["cases"] if row["part"] == part]
            if rows:
                counts = " | ".join(
                    str(sum(row[key] for row in rows)) for key in ("detected", "same_step", "diagnosed")
                )
                yield f"| {part}: {title} | {len(rows)} | {book} | {counts} |\n"


def _cases(result: Row) -> Iterator[str]:
    yield "\n| case | ranks | first bad step | examples | twin | leading finding | seconds |\n"
    yield "|---|---|---|---|---|---|---|\n"
    for row in result["cases"]:
        books = row["books"]
        best = books[EXAMPLES] if books[EXAMPLES]["detected"] or not books[TWIN]["detected"] else books[TWIN]
        leading = best["leading"]
        leading_text = f"step {leading['step']}: {title_of(leading)}" if leading else "-"
        yield (
            f"| [{row['id']}]({row['source']}) {row['title']} | {row['ranks']} | {row['first_bad_step']} | "
            f"{_cell(books[EXAMPLES])} | {_cell(books[TWIN])} | {_escaped(leading_text)} | "
            f"{row['seconds']['buggy']} |\n"
        )


def _cell(verdict: Row) -> str:
    if not verdict["detected"]:
        return f"**missed** ({verdict['errors']} errors, {verdict['notices']} notices)"
    late = verdict["late"]
    when = "same step" if verdict["same_step"] else f"{late:+d} step"
    return f"{verdict['severity']}, {when}, {'named' if verdict['diagnosed'] else 'not named'}"


def _misses(result: Row) -> Iterator[str]:
    missed = [row for row in result["cases"] if not row["books"][EXAMPLES]["detected"]]
    if missed:
        yield "\nThe book of the examples misses:\n\n"
        for row in missed:
            twin = row["books"][TWIN]
            other = (
                f"the twin book finds: {title_of(twin['leading'])}"
                if twin["detected"]
                else "the twin book misses it as well"
            )
            yield f"* {row['id']} ({row['title']}): {other}. {_escaped(row['untaught'])}".rstrip() + "\n"


def _alarms(result: Row) -> Iterator[str]:
    yield "\n| checked | checks | with an error | with a notice | failed / triggered |\n|---|---|---|---|---|\n"
    rows = [(name, counts) for name, counts in result["alarms"].items() if counts]
    for name, counts in rows:
        yield (
            f"| {name} | {counts['runs']} | {len(counts['with_error'])} | {len(counts['with_notice'])} | "
            f"{counts['failed_share_of_triggered']:.3%} |\n"
        )
    alarms = dict.fromkeys(f"* {_escaped(alarm)}\n" for _, counts in rows for alarm in counts["alarms"])
    yield "\nAll violated rules:\n\n" + "".join(alarms) if alarms else "\nNo rule was violated.\n"


def _baselines(result: Row) -> Iterator[str]:
    rows = [row for row in result["cases"] if row["baselines"]]
    names = list(dict.fromkeys(name for row in rows for run in ("buggy", "clean") for name in row["baselines"][run]))
    yield "\n| detector | buggy runs with an alarm | in time | in time and silent on the clean run "
    yield f"| clean runs with an alarm (of {len(rows)}) |\n|---|---|---|---|---|\n"
    for name in sorted(names):
        seen = [row for row in rows if name in row["baselines"]["buggy"]]
        in_time = [row for row in seen if abs(row["baselines"]["buggy"][name] - row["first_bad_step"]) <= WITHIN]
        sound = [row for row in in_time if name not in row["baselines"]["clean"]]
        false = sum(name in row["baselines"]["clean"] for row in rows)
        yield f"| {name} | {len(seen)} | {len(in_time)} | {len(sound)} | {false} |\n"
    ours = [row["books"][EXAMPLES] for row in rows]
    errors = sum(row["errors"] > 0 for row in ours)
    detected = sum(row["detected"] for row in ours)
    false = len(result["alarms"][f"{EXAMPLES} book on the clean cases"]["with_error"])
    yield f"| **TrainCheck**, book of the examples | {errors} | {detected} | {detected} | {false} |\n"


def _escaped(words: str) -> str:
    return words.replace("|", "\\|").replace("\n", " ")
