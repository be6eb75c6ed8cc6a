"""Build alerts: one message each, with text for people and data for programs."""

from __future__ import annotations

import hashlib
import platform
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from traincheck.reporting import phrases, status_phrases
from traincheck.reporting.json_report import jsonable
from traincheck.vocab.finding import Finding
from traincheck.vocab.run_status import RunStatus

VERSION = 1
"""Version of the message. 1: text, version, id, kind, run, finding (2026). Fields may be added to it."""

Kind = Literal["finding", "silent", "ended"]


@dataclass(frozen=True, slots=True)
class Alert:
    """One message. `id` is the same in every delivery attempt and for every watcher of the run, so receivers can
    recognise duplicates."""

    id: str
    kind: Kind
    text: str
    run: dict[str, Any]
    finding: Finding | None = None

    def encoded(self) -> bytes:
        """Return the message as JSON. Slack and compatible receivers show `text`; the other fields are for programs."""
        return msgspec.json.encode(
            {
                "text": jsonable(self.text),
                "version": VERSION,
                "id": self.id,
                "kind": self.kind,
                "run": jsonable(self.run),
                "finding": jsonable(self.finding),
            }
        )


def of_finding(finding: Finding, status: RunStatus) -> Alert:
    """Return the alert for a finding."""
    on = f" on rank {finding.rank}" if finding.rank or len(status.ranks) > 1 else ""
    ranks = f", {phrases.about_ranks(finding)}" if finding.compared else on
    lines = [f"TrainCheck {finding.severity.upper()} at step {finding.step}{ranks}: {phrases.titled(finding)}"]
    lines += [finding.cause] if finding.cause else []
    lines += [f"where: {finding.site}"] if finding.site else []
    lines += [f"look at: {finding.advice[0]}"] if finding.advice else []
    identity = (finding.severity, finding.step, finding.rank, finding.identity, *finding.invariants[:1])
    return _alert("finding", identity, lines, status, finding)


def of_silence(status: RunStatus, time: int = 1) -> Alert:
    """Return the alert for processes without a heartbeat; `time` counts these alerts in the run."""
    identity = (time, *(f"{rank.rank}-{rank.process}" for rank in status.silent))
    return _alert("silent", identity, [f"TrainCheck: {status_phrases.silence(status.silent)}"], status)


def of_end(status: RunStatus) -> Alert:
    """Return the alert for the end of the run."""
    return _alert(
        "ended",
        (),
        [f"TrainCheck: {status_phrases.ending(status)}", f"until then: {status_phrases.line(status)}"],
        status,
    )


def _alert(
    kind: Kind, identity: tuple[object, ...], lines: list[str], status: RunStatus, finding: Finding | None = None
) -> Alert:
    host = platform.node()
    lines.append(f"run: {status.script or 'unnamed'} in {status.folder}{f' on {host}' if host else ''}")
    run = {
        "folder": status.folder,
        "script": status.script,
        "host": host,
        "state": status.state,
        "exit_code": status.exit_code,
        "steps": status.steps,
        "errors": status.errors,
        "notices": status.notices,
    }
    number = hashlib.sha256(repr((status.run or status.folder, kind, *identity)).encode()).hexdigest()[:16]
    return Alert(number, kind, "\n".join(_harmless(line) for line in lines), run, finding)


def _harmless(text: str) -> str:
    """Return `text` on one line, with the characters escaped that Slack uses for mentions and links."""
    return phrases.plain(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
