"""Write JUnit XML, which Jenkins, GitLab, Azure and most other CI systems show as test results."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from html import escape

from traincheck.reporting import phrases
from traincheck.reporting.base import Document
from traincheck.vocab.finding import Finding, Report
from traincheck.vocab.invariant import ERROR, NOTICE

FAILING = {"error": (ERROR,), "notice": (ERROR, NOTICE), "never": ()}
"""The failing severities for each value of `--fail-on`. Other findings are reported as skipped tests."""


@dataclass(slots=True)
class Element:
    """An XML element. The standard library's writer comes with a reader that expands untrusted entities, so this module
    has its own. Texts and values must be valid in XML; `_plain` ensures this."""

    tag: str
    attrib: dict[str, str] = field(default_factory=dict)
    text: str = ""
    children: list[Element] = field(default_factory=list)

    def add(self, tag: str, text: str = "", **attrib: str) -> Element:
        """Append a child and return it."""
        self.children.append(Element(tag, attrib, text))
        return self.children[-1]

    def lines(self, indent: str = "") -> Iterator[str]:
        """Return the element as text."""
        head = "".join([self.tag, *(f' {name}="{escape(value)}"' for name, value in self.attrib.items())])
        if self.children:
            yield f"{indent}<{head}>"
            for child in self.children:
                yield from child.lines(indent + "  ")
            yield f"{indent}</{self.tag}>"
        elif self.text:
            yield f"{indent}<{head}>{escape(self.text)}</{self.tag}>"
        else:
            yield f"{indent}<{head}/>"


class JUnitSink(Document):
    """Return one test case for each finding, and one for the satisfied invariants."""

    name = "junit"
    file = "traincheck-junit.xml"

    def text(self, report: Report) -> str:
        failing = FAILING.get(str(self._run.get("fail_on", ERROR)), (ERROR,))
        suite = Element("testsuite", {"name": _plain(f"traincheck {_script(report)}".strip())})
        properties = suite.add("properties")
        for fact, value in (("verdict", report.verdict), *_facts(report)):
            properties.add("property", name=_plain(fact), value=_plain(value))
        cases = [_of_invariants(report), *(_case(finding, name, report, failing) for name, finding in _named(report))]
        suite.children += cases
        fared = Counter(child.tag for case in cases for child in case.children)
        counts = {
            "tests": str(len(cases)),
            "failures": str(fared["failure"]),
            "errors": "0",
            "skipped": str(fared["skipped"]),
        }
        suite.attrib |= {**counts, **_times(report)}
        root = Element("testsuites", {"name": "TrainCheck", **counts}, children=[suite])
        return "\n".join(['<?xml version="1.0" encoding="utf-8"?>', *root.lines(), ""])


def _named(report: Report) -> list[tuple[str, Finding]]:
    """Return findings with unique names, because CI systems merge test cases with equal names."""
    seen: Counter[str] = Counter()
    named = []
    for finding in report.findings:
        name = phrases.titled(finding)
        seen[name] += 1
        named.append((f"{name} ({seen[name]})" if seen[name] > 1 else name, finding))
    return named


def _case(finding: Finding, name: str, report: Report, failing: tuple[str, ...]) -> Element:
    case = Element("testcase", {"classname": _classname(report), "name": _plain(name)})
    if finding.site is not None:
        case.attrib |= {"file": _plain(finding.site.file), "line": str(finding.site.line)}
    text = "\n".join(phrases.in_lines(finding))
    message = f"{finding.severity} at step {finding.step}: {finding.observed}"
    kind = "failure" if finding.severity in failing else "skipped"
    case.add(kind, text, type=_plain(finding.diagnosis or finding.severity), message=_plain(message))
    return case


def _of_invariants(report: Report) -> Element:
    """Return the test case for the satisfied invariants; it never passes if no rule could be judged."""
    case = Element("testcase", {"classname": _classname(report), "name": "invariants hold"})
    if report.unjudged:
        case.add("skipped", message=_plain(phrases.headline(report)))
    case.add("system-out", f"{phrases.judged(report.counts)}; {phrases.seen(report.counts)}")
    return case


def _classname(report: Report) -> str:
    return "traincheck." + _plain(_script(report).removesuffix(".py").replace("/", ".") or "run").lstrip(".")


def _script(report: Report) -> str:
    return str(report.run.get("script") or "")


def _facts(report: Report) -> list[tuple[str, object]]:
    return [(name, value) for name, value in report.run.items() if isinstance(value, str | int) and value != ""]


def _times(report: Report) -> dict[str, str]:
    """Return the start and the duration of the run, if known."""
    try:
        began = datetime.fromisoformat(str(report.run["started"]))
        ended = datetime.fromisoformat(str(report.run["ended"]))
        taken = {"time": f"{(ended - began).total_seconds():.3f}"}
    except (KeyError, ValueError, TypeError):  # not ended, or untrusted text
        return {}
    return {"timestamp": began.replace(tzinfo=None).isoformat(), **taken}


def _plain(value: object) -> str:
    """Return one line without characters that are invalid in XML."""
    return phrases.plain(str(value))
