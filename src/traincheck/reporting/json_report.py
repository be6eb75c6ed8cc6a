"""Write and read the JSON report, the versioned interface for programs."""

from __future__ import annotations

from typing import Any

import msgspec

from traincheck.errors import ReportNotFound, ReportTooNew, ReportUnreadable
from traincheck.files import PathLike, read_bounded, write_whole
from traincheck.reporting.base import Document
from traincheck.terminal_text import json_text
from traincheck.vocab.finding import REPORT_VERSION, Cost, Counts, Divergence, Finding, RankState, Report
from traincheck.vocab.verification import VerifiedComputation


class _Document(msgspec.Struct):
    """The JSON form of a report. Fields of findings and counts are those of their classes; a gold test pins them."""

    version: int
    verdict: str
    findings: tuple[Finding, ...]
    counts: Counts
    not_observed: tuple[str, ...]
    run: dict[str, Any]
    ranks: tuple[RankState, ...] = ()
    divergences: tuple[Divergence, ...] = ()
    cost: Cost | None = None
    verification: tuple[VerifiedComputation, ...] = ()
    comparison: dict[str, Any] | None = None


class _Compared(msgspec.Struct):
    """The fields of a comparison on which other reports rely."""

    a: str
    result: str
    text: list[str]


class _Version(msgspec.Struct):
    version: int


class JsonSink(Document):
    """Writes the JSON report after the run."""

    name = "json"
    file = "traincheck.json"

    def text(self, report: Report) -> str:
        return json_of(report)


def write_json(report: Report, path: PathLike) -> None:
    """Write the JSON report of version `REPORT_VERSION` to `path`, whole or not at all. Raises OutputError."""
    write_whole(path, json_of(report).encode())


def json_of(report: Report) -> str:
    """Return the JSON report as indented text that ends with a line break.

    A value in `run` without a JSON type becomes its text, a number that is not finite becomes null. A character that
    UTF-8 cannot encode (file names may contain some) is escaped.
    """
    document = _Document(
        version=report.version,
        verdict=report.verdict,
        findings=report.findings,
        counts=report.counts,
        not_observed=report.not_observed,
        run=report.run,
        ranks=report.ranks,
        divergences=report.divergences,
        cost=report.cost,
        verification=report.verification,
        comparison=report.comparison,
    )
    return json_text(msgspec.json.format(msgspec.json.encode(jsonable(document)), indent=2).decode()) + "\n"


def jsonable(value: object) -> Any:
    """Return `value` (a finding, a status) as dicts, lists, texts and numbers that JSON can hold."""
    return _jsonable(msgspec.to_builtins(value, enc_hook=str, str_keys=True))


def _jsonable(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, dict):
        return {_jsonable(key): _jsonable(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_jsonable(item) for item in value]
    return value


def read_json(path: PathLike) -> Report:
    """Return the report in the file `path`.

    Raises ReportNotFound, ReportTooNew, and ReportUnreadable for anything else that is not a complete report. Unknown
    fields are ignored.
    """
    try:
        data = read_bounded(path)
    except FileNotFoundError:
        raise ReportNotFound(path) from None
    except IsADirectoryError:
        raise ReportUnreadable(path, "it is a folder") from None
    except OSError as error:
        raise ReportUnreadable(path, error.strerror or str(error)) from None
    if not data.strip():
        raise ReportUnreadable(path, "it is empty")
    try:
        version = msgspec.json.decode(data, type=_Version).version
        if version > REPORT_VERSION:
            raise ReportTooNew(path, version, REPORT_VERSION)
        document = msgspec.json.decode(data, type=_Document)
        if document.comparison is not None:
            msgspec.convert(document.comparison, _Compared)
    except msgspec.ValidationError as error:
        raise ReportUnreadable(path, str(error)) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ReportUnreadable(path, f"it is not JSON ({error})") from None
    ranks, divergences = document.ranks, document.divergences
    report = Report(
        document.findings,
        document.counts,
        document.not_observed,
        document.run,
        document.version,
        ranks,
        divergences,
        document.cost,
        document.verification,
        document.comparison,
    )
    if report.verdict != document.verdict:
        raise ReportUnreadable(
            path, f"its verdict is {document.verdict!r} and its findings amount to {report.verdict!r}"
        )
    return report
