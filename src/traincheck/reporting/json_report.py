"""The JSON report: the versioned interface of a check for programs."""

from __future__ import annotations

from typing import Any

import msgspec

from traincheck.errors import ReportNotFound, ReportTooNew, ReportUnreadable
from traincheck.files import PathLike, read_bounded, write_whole
from traincheck.reporting.base import Document
from traincheck.terminal_text import json_text
from traincheck.vocab.finding import REPORT_VERSION, Cost, Counts, Divergence, Finding, RankState, Report


class _Document(msgspec.Struct, rename={"divergences": "partings"}):
    """The JSON form of a report. Fields of findings and counts are those of their classes; a gold test pins them.

    The key `partings` is part of the published format.
    """

    version: int
    verdict: str
    findings: tuple[Finding, ...]
    counts: Counts
    not_observed: tuple[str, ...]
    run: dict[str, Any]
    ranks: tuple[RankState, ...] = ()
    divergences: tuple[Divergence, ...] = ()
    cost: Cost | None = None


class _Version(msgspec.Struct):
    version: int


class JsonSink(Document):
    """Writes the JSON report when the run is over."""

    name = "json"
    file = "traincheck.json"

    def text(self, report: Report) -> str:
        return json_of(report)


def write_json(report: Report, path: PathLike) -> None:
    """Writes the JSON report of version `REPORT_VERSION` to `path`, whole or not at all. Raises OutputError."""
    write_whole(path, json_of(report).encode())


def json_of(report: Report) -> str:
    """The JSON report as text, indented, ending with a line break.

    A value in `run` that JSON does not know is written as its text, a number that is not finite as null, and a
    character that UTF-8 cannot hold (file names may) is written out.
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
    )
    return json_text(msgspec.json.format(msgspec.json.encode(tellable(document)), indent=2).decode()) + "\n"


def tellable(value: object) -> Any:
    """`value` (a finding, a status) as JSON can tell it: dicts, lists, texts and numbers, as `json_of` has it."""
    return _tellable(msgspec.to_builtins(value, enc_hook=str, str_keys=True))


def _tellable(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, dict):
        return {_tellable(key): _tellable(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_tellable(item) for item in value]
    return value


def read_json(path: PathLike) -> Report:
    """The report in the file `path`.

    Raises ReportNotFound, ReportTooNew, and ReportUnreadable for anything that is not a whole report. Fields that this
    version does not know are passed over.
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
    )
    if report.verdict != document.verdict:
        raise ReportUnreadable(
            path, f"its verdict is {document.verdict!r} and its findings amount to {report.verdict!r}"
        )
    return report
