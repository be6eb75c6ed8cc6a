"""Figures of the mutation score: counts, shares with 95 % intervals, and the page docs/mutation-score.md."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from benchmarks.mutants.operator import KINDS, Operator, reserved
from benchmarks.mutants.places import FAR, NEAR, NONE
from benchmarks.mutants.running import (
    COUNTED,
    CRASHED,
    EQUIVALENT,
    EXPERIMENTS,
    IMPLAUSIBLE,
    OWN,
    OWN_OTHER_BATCH,
    PACKS,
    VERIFY_EVERY,
)

OPEN, RESERVED = "open", "reserved"
Row = Mapping[str, Any]


def wilson(hits: int, of: int, z: float = 1.96) -> tuple[float, float]:
    """The 95 % interval of a share (E. B. Wilson, 1927)."""
    if not of:
        return 0.0, 1.0
    share, square = hits / of, z * z
    middle = (share + square / (2 * of)) / (1 + square / of)
    half = z / (1 + square / of) * math.sqrt(share * (1 - share) / of + square / (4 * of * of))
    return max(0.0, middle - half), min(1.0, middle + half)


def share(hits: int, of: int) -> str:
    """`12 of 40, 30 % [18-46]`."""
    if not of:
        return "-"
    low, high = wilson(hits, of)
    return f"{hits} of {of}, {hits / of:.0%} [{100 * low:.0f}-{100 * high:.0f}]"


def figures(programs: Sequence[Row], operators: Sequence[Operator]) -> dict[str, Any]:
    """What the page is made of. Reserved operators are counted together, never one by one."""
    by_name = {operator.name: operator for operator in operators}
    held_back = reserved(operators)
    rows = [
        {**mutant, "parts": program["parts"], "kind": operator.kind, "diagnoses": operator.diagnoses}
        for program in programs
        for mutant in program["mutants"]
        for operator in (by_name[mutant["operator"]],)
    ]
    part = {RESERVED: [row for row in rows if row["operator"] in held_back]}
    part[OPEN] = [row for row in rows if row["operator"] not in held_back]
    clean = [program for program in programs if not program["problem"]]
    settings = [
        setting for setting in (PACKS, EXPERIMENTS, OWN) if any(setting in program["errors"] for program in clean)
    ]
    return {
        "operators": {OPEN: len(operators) - len(held_back), RESERVED: len(held_back)},
        "programs": len(programs),
        "failed": [program["name"] for program in programs if program["problem"] and not program["untrained"]],
        "untrained": [program["name"] for program in programs if program["untrained"]],
        "parts": {name: _of_part(part[name], settings) for name in (OPEN, RESERVED)},
        "kinds": {kind: _score([row for row in rows if row["kind"] == kind], settings) for kind in KINDS},
        "loops": {
            loop: _score([row for row in rows if _loop(row["parts"]) == loop], settings)
            for loop in sorted({_loop(row["parts"]) for row in rows})
        },
        "open operators": {
            operator.name: _score([row for row in part[OPEN] if row["operator"] == operator.name], settings)
            for operator in operators
            if operator.name not in held_back
        },
        "false alarms": {
            setting: {
                "programs": sum(setting in program["errors"] for program in clean),
                "with an error": [program["name"] for program in clean if program["errors"].get(setting)],
                "with a notice": sum(program["notices"].get(setting, 0) > 0 for program in clean),
                "errors": _counted(slug for program in clean for slug in program["errors"].get(setting, ())),
            }
            for setting in (*settings, OWN_OTHER_BATCH)
            if any(setting in program["errors"] for program in clean)
        },
    }


def _loop(parts: Mapping[str, str]) -> str:
    return "own loop" if parts["program"] else parts["loop"]


def _counted(slugs: Iterable[str]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for slug in slugs:
        counts[slug] = counts.get(slug, 0) + 1
    return dict(sorted(counts.items(), key=lambda entry: -entry[1]))


def _of_part(rows: Sequence[Row], settings: Sequence[str]) -> dict[str, Any]:
    outcomes = {
        name: sum(row["outcome"] == name for row in rows) for name in (CRASHED, IMPLAUSIBLE, EQUIVALENT, COUNTED)
    }
    return {**outcomes, **_score(rows, settings)}


def _score(rows: Sequence[Row], settings: Sequence[str]) -> dict[str, Any]:
    counted = [row for row in rows if row["outcome"] == COUNTED]
    score: dict[str, Any] = {"mutants": len(counted)}
    for setting in settings:
        judged = [row for row in counted if setting in row["verdicts"]]
        verdicts = [row["verdicts"][setting] for row in judged]
        lates = [verdict["late"] for verdict in verdicts if verdict["late"] is not None]
        score[setting] = {
            "mutants": len(verdicts),
            "detected": sum(verdict["detected"] for verdict in verdicts),
            "at any time": len(lates),
            "named": sum(
                verdict["detected"] and verdict["diagnosis"] in row["diagnoses"]
                for row, verdict in zip(judged, verdicts, strict=True)
            ),
            "module": {
                place: sum(verdict["detected"] and verdict.get("module") == place for verdict in verdicts)
                for place in (NEAR, FAR, NONE)
            },
            "only noticed": sum(verdict["late"] is None and verdict["notices"] > 0 for verdict in verdicts),
            "median steps late": statistics.median(lates) if lates else None,
        }
    return score


HEAD = f"""# Mutation score

`make bench-mutants` writes this page from `benchmarks/results/mutants.json`; do not edit it by hand.

The corpus in `benchmarks/corpus/` generates clean training programs. Operators in `benchmarks/mutants/` put one
silent error into a program, as people make it. A mutant counts if it does not crash, if its losses stay plausible,
and if it is not equivalent. An equivalent mutant differs by no more than rounding from the clean run: in losses,
parameters after an update, saved files and printed scores.

*Detected* is an error that the clean run does not have, at the latest one step after the first difference. *Named*
means that the leading finding has one of the diagnoses that the operator lists. The programs come from seeds that no
pack was learned from. *packs* are the packs alone. *packs and experiments* verifies steps as well
(`--verify-every {VERIFY_EVERY}`). *own* adds a book of three earlier good runs of the clean program, with other seeds
and another length, for the first programs. A clean run of each mutated one also has another batch size. Intervals are
95 % (Wilson).

A third of the operators is *reserved*: a fixed seed draws them, and nobody looks at their single mutants.
"""


MODULES = """Detected errors that are in the code of a module: whether the first variable or the line of the leading
finding belongs to that module, its parent or its child.
"""


def page(result: Mapping[str, Any]) -> str:
    """The text of docs/mutation-score.md."""
    lines = [
        HEAD,
        f"{result['programs']} programs; {result['operators'][OPEN]} open and {result['operators'][RESERVED]} reserved "
        f"operators. {len(result['untrained'])} of the programs learn nothing (a loss that is NaN, or does not fall) "
        "and are left out.\n",
    ]
    settings = [setting for setting in (PACKS, EXPERIMENTS, OWN) if setting in result["false alarms"]]
    lines += [
        "| operators | mutants | crashed | implausible | equivalent | counted | " + " | ".join(_heads(settings)) + " |"
    ]
    lines += ["|---" * (6 + 4 * len(settings)) + "|"]
    for name, part in result["parts"].items():
        made = sum(part[outcome] for outcome in (CRASHED, IMPLAUSIBLE, EQUIVALENT, COUNTED))
        cells = [made, part[CRASHED], part[IMPLAUSIBLE], part[EQUIVALENT], part["mutants"]]
        lines += [_row(name, cells, part, settings)]
    lines += [
        "\n## False alarms\n",
        "| setting | clean programs | with an error | with a notice |",
        "|---|---|---|---|",
    ]
    for setting, alarms in result["false alarms"].items():
        errors, of = len(alarms["with an error"]), alarms["programs"]
        lines += [f"| {setting} | {of} | {share(errors, of)} | {alarms['with a notice']} |"]
    lines += [
        "\n## Named modules\n",
        MODULES,
        "| operators | setting | the module, or a level away | another module | no module |",
        "|---|---|---|---|---|",
    ]
    for name, part in result["parts"].items():
        for setting in settings:
            near, far, none = (part[setting]["module"][place] for place in (NEAR, FAR, NONE))
            lines += [f"| {name} | {setting} | {share(near, near + far + none)} | {far} | {none} |"]
    for title, key in (("By kind", "kinds"), ("By loop", "loops"), ("By open operator", "open operators")):
        lines += [f"\n## {title}\n", f"| {title[3:]} | counted | " + " | ".join(_heads(settings)) + " |"]
        lines += ["|---" * (2 + 4 * len(settings)) + "|"]
        lines += [
            _row(name, [part["mutants"]], part, settings) for name, part in result[key].items() if part["mutants"]
        ]
    return "\n".join(lines) + "\n"


def _heads(settings: Sequence[str]) -> list[str]:
    return [f"{setting}: {head}" for setting in settings for head in ("detected", "named", "at any time", "steps late")]


def _row(name: str, cells: Sequence[object], part: Row, settings: Sequence[str]) -> str:
    for setting in settings:
        score = part[setting]
        late = score["median steps late"]
        cells = [
            *cells,
            share(score["detected"], score["mutants"]),
            score["named"],
            score["at any time"],
            "-" if late is None else f"{late:g}",
        ]
    return f"| {name} | " + " | ".join(map(str, cells)) + " |"
