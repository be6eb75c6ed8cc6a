"""Write SARIF 2.1.0 for GitHub code scanning, editors and other static analysis tools.

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

from traincheck.diagnoses.catalogue import catalogue
from traincheck.reporting import phrases
from traincheck.reporting.base import Document
from traincheck.reporting.json_report import jsonable
from traincheck.reporting.repository_paths import in_repository
from traincheck.terminal_text import json_text
from traincheck.version import __version__
from traincheck.vocab.finding import Finding, Report
from traincheck.vocab.invariant import ERROR

SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
ROOT = "%SRCROOT%"
"""GitHub's name for the base of relative paths."""
FINGERPRINT = "traincheck/v2"
"""Version 1 uses the title, version 2 the diagnosis."""
LONGEST = 60
"""Characters of the title in a rule id, for reports without a diagnosis."""


class SarifSink(Document):
    """Writes one result for each finding. The rule of a result is the diagnosis of the finding."""

    name = "sarif"
    file = "traincheck.sarif"

    def text(self, report: Report) -> str:
        first_of_rule: dict[str, Finding] = {}
        for finding in report.findings:
            first_of_rule.setdefault(rule_id(finding), finding)
        rule_ids = list(first_of_rule)
        driver = {
            "name": "TrainCheck",
            "version": __version__,
            "rules": [_rule(name, finding) for name, finding in first_of_rule.items()],
        }
        run = {
            "tool": {"driver": driver},
            "invocations": [_invocation(report)],
            "columnKind": "unicodeCodePoints",
            "results": [_result(finding, rule_ids, report) for finding in report.findings],
            "properties": {"verdict": report.verdict, "headline": phrases.headline(report)},
        }
        log = {"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}
        return json_text(json.dumps(jsonable(log), indent=2, ensure_ascii=False)) + "\n"


def _rule(name: str, finding: Finding) -> dict[str, Any]:
    """Return a rule in the words of the catalogue, or of its first finding if the catalogue has no entry."""
    entry = catalogue().get(finding.diagnosis)
    title, problem, advice = finding.title, finding.cause, finding.advice
    if entry is not None:
        title, problem, advice = entry.title, entry.problem, entry.advice
    lines = [problem or title, *(f"{number}. {line}" for number, line in enumerate(advice, 1))]
    rule = {
        "id": name,
        "shortDescription": _message(title),
        "fullDescription": _message(problem or title),
        "help": _message(*lines, *filter(None, [phrases.read_more(finding)])),
        "defaultConfiguration": {"level": _level(finding)},
    }
    if entry is not None and entry.url:
        rule["helpUri"] = entry.url
    return rule


def rule_id(finding: Finding) -> str:
    """Return the slug of the diagnosis, or for reports of older versions the title as a slug."""
    return phrases.plain(finding.diagnosis) or slug_of(finding.title)


def slug_of(title: str) -> str:
    """`the-loss-is-not-printed` for a title; the same title always gives the same slug."""
    name = re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")
    if len(name) <= LONGEST and name:
        return name
    number = hashlib.sha256(title.encode("utf-8", "replace")).hexdigest()[:8]
    return f"{name[:LONGEST]}-{number}".lstrip("-")


def _result(finding: Finding, rule_ids: list[str], report: Report) -> dict[str, Any]:
    position = f"{finding.site.file}:{finding.site.function}" if finding.site else ""
    identity = f"{finding.identity}\n{position}".encode("utf-8", "replace")
    return {
        "ruleId": rule_id(finding),
        "ruleIndex": rule_ids.index(rule_id(finding)),
        "level": _level(finding),
        "message": _message(finding.title + ".", *phrases.in_lines(finding)),
        "locations": _locations(finding, report),
        "partialFingerprints": {FINGERPRINT: hashlib.sha256(identity).hexdigest()[:32]},
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
    """Return the location of a finding, or the script: GitHub rejects results without a location."""
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
    """Return the execution status, with notifications about unobserved rules."""
    notes: list[dict[str, Any]] = [
        {"level": "note", "message": _message(f"not observed: {reason}{_times(times)}")}
        for reason, times in Counter(report.not_observed).most_common()
    ]
    if report.unjudged:
        notes.insert(0, {"level": "warning", "message": _message(phrases.headline(report))})
    return {"executionSuccessful": True, "toolExecutionNotifications": notes}


_MEANS_SOMETHING = str.maketrans({"\\": "\\\\", "[": "\\[", "]": "\\]", "{": "{{", "}": "}}"})
"""Characters to escape in a message: brackets make links, braces placeholders (SARIF 3.11.5 and 3.11.6)."""


def _message(*lines: str) -> dict[str, str]:
    """Return a message of these lines as plain text."""
    return {"text": "\n".join(phrases.plain(line) for line in lines).translate(_MEANS_SOMETHING)}


def _times(times: int) -> str:
    return f" ({times:,} times)" if times > 1 else ""


def _level(finding: Finding) -> str:
    return "error" if finding.severity == ERROR else "note"
