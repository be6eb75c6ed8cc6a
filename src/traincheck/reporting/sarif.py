"""SARIF 2.1.0: findings as GitHub code scanning, editors and other tools for static analysis take them.

Source: OASIS, Static Analysis Results Interchange Format (SARIF) Version 2.1.0, errata 01.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from pathlib import PurePath
from typing import Any
from urllib.parse import quote

from traincheck.reporting import phrases
from traincheck.reporting.base import Document
from traincheck.reporting.json_report import tellable
from traincheck.reporting.repository_paths import in_repository
from traincheck.terminal_text import json_text
from traincheck.version import __version__
from traincheck.vocab.finding import Finding, Report
from traincheck.vocab.invariant import ERROR

SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
ROOT = "%SRCROOT%"
"""What relative paths are relative to, as GitHub names it."""
LONGEST = 60
"""Characters of a rule's id that are taken from the title."""


class SarifSink(Document):
    """One result for each finding; findings of one title are of one rule."""

    name = "sarif"
    file = "traincheck.sarif"

    def text(self, report: Report) -> str:
        titles = list(dict.fromkeys(finding.title for finding in report.findings))
        driver = {
            "name": "TrainCheck",
            "version": __version__,
            "rules": [_rule(title, report) for title in titles],
        }
        run = {
            "tool": {"driver": driver},
            "invocations": [_invocation(report)],
            "columnKind": "unicodeCodePoints",
            "results": [_result(finding, titles, report) for finding in report.findings],
            "properties": {"verdict": report.verdict, "headline": phrases.headline(report)},
        }
        log = {"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}
        return json_text(json.dumps(tellable(log), indent=2, ensure_ascii=False)) + "\n"


def _rule(title: str, report: Report) -> dict[str, Any]:
    first = next(finding for finding in report.findings if finding.title == title)
    return {
        "id": rule_id(title),
        "shortDescription": _message(title),
        "fullDescription": _message(first.cause or title),
        "help": _message(*(first.advice or (title,))),
        "defaultConfiguration": {"level": _level(first)},
    }


def rule_id(title: str) -> str:
    """`gradients-are-not-cleared-between-steps`: the same in every report, so that results can be followed."""
    name = re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")
    if len(name) <= LONGEST and name:
        return name
    number = hashlib.sha256(title.encode("utf-8", "replace")).hexdigest()[:8]
    return f"{name[:LONGEST]}-{number}".lstrip("-")


def _result(finding: Finding, titles: list[str], report: Report) -> dict[str, Any]:
    place = f"{finding.site.file}:{finding.site.function}" if finding.site else ""
    told = f"{finding.title}\n{place}".encode("utf-8", "replace")
    return {
        "ruleId": rule_id(finding.title),
        "ruleIndex": titles.index(finding.title),
        "level": _level(finding),
        "message": _message(finding.title + ".", *phrases.in_lines(finding)),
        "locations": _locations(finding, report),
        "partialFingerprints": {"traincheck/v1": hashlib.sha256(told).hexdigest()[:32]},
        "properties": {
            "step": finding.step,
            "lastStep": finding.last_step,
            "times": finding.times,
            "ranks": list(finding.ranks or (finding.rank,)),
            "variables": [phrases.plain(name) for name in finding.variables],
            "invariants": [phrases.plain(name) for name in finding.invariants],
        },
    }


def _locations(finding: Finding, report: Report) -> list[dict[str, Any]]:
    """Where it is; of what has no place of its own the script that was run, for GitHub takes no result without one."""
    if finding.site is not None:
        function = phrases.plain(finding.site.function)
        named = {"logicalLocations": [{"fullyQualifiedName": function, "kind": "function"}]} if function else {}
        return [{"physicalLocation": _physical(finding.site.file, finding.site.line), **named}]
    script = str(report.run.get("script") or "")
    return [{"physicalLocation": _physical(script, 1)}] if script.endswith(".py") else []


def _physical(file: str, line: int) -> dict[str, Any]:
    named = in_repository(file)
    if PurePath(named).is_absolute():
        artifact = {"uri": f"file://{quote(PurePath(named).as_posix(), errors='replace')}"}
    else:
        artifact = {"uri": quote(PurePath(named).as_posix(), errors="replace"), "uriBaseId": ROOT}
    return {"artifactLocation": artifact, "region": {"startLine": max(line, 1)}}


def _invocation(report: Report) -> dict[str, Any]:
    """That TrainCheck did its work, and what it could not see."""
    told: list[dict[str, Any]] = [
        {"level": "note", "message": _message(f"not observed: {reason}{_times(times)}")}
        for reason, times in Counter(report.not_observed).most_common()
    ]
    if report.unjudged:
        told.insert(0, {"level": "warning", "message": _message(phrases.headline(report))})
    return {"executionSuccessful": True, "toolExecutionNotifications": told}


_MEANS_SOMETHING = str.maketrans({"\\": "\\\\", "[": "\\[", "]": "\\]", "{": "{{", "}": "}}"})
"""In a message: brackets would make a link, braces a placeholder (sections 3.11.5 and 3.11.6 of the standard)."""


def _message(*lines: str) -> dict[str, str]:
    """A message of these lines, in which all of it is text."""
    return {"text": "\n".join(phrases.plain(line) for line in lines).translate(_MEANS_SOMETHING)}


def _times(times: int) -> str:
    return f" ({times:,} times)" if times > 1 else ""


def _level(finding: Finding) -> str:
    return "error" if finding.severity == ERROR else "note"
