"""Reads the lines of the user's code around a call, if the file is the one that ran.

Note [Whose code is shown]
A file is shown only where its SHA-256 is the one that the run wrote down: that of the script at its start, or that of a
file with a finding at its end. So no line is shown that was not there when the program ran, and the run folder of a
stranger, which may name any file, gets nothing out of it that the stranger does not have. What is secret in a line is
left out as everywhere else.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from difflib import SequenceMatcher
from pathlib import Path

from traincheck import redaction
from traincheck.files import read_bounded
from traincheck.vocab.finding import Report, Site
from traincheck.vocab.finding_details import CodeExcerpt

BEFORE, AFTER = 5, 3
"""Lines that are shown above and below that of the call: what led to it is above."""

LARGEST = 2 << 20
"""Bytes of a file of code; a larger one was made by a program, and nobody reads it."""

FILES = "files"
"""The key in the facts of a run under which the digests of its files stand."""


def with_files(report: Report, root: Path, started: str) -> Report:
    """The report of a run that has just ended, with the digests of the files that its findings name.

    `root` is the folder in which the program was started, at the time `started`. A file that was changed since is left
    out: which of its texts the program had is not known.
    """
    sites = {finding.site.file for finding in report.findings if finding.site}
    digests = {file: digest for file in sorted(sites) if (digest := _digest_since(root / file, started))}
    return replace(report, run={**report.run, FILES: digests}) if digests else report


def _digest_since(path: Path, started: str) -> str:
    try:
        if path.stat().st_mtime > datetime.fromisoformat(started).timestamp() + 1:  # it is told in whole seconds
            return ""
        return hashlib.sha256(read_bounded(path, LARGEST)).hexdigest()
    except (OSError, ValueError, OverflowError):  # not there any more, or a name or time that cannot be
        return ""


def excerpt(site: Site, run: Mapping[str, object], script_digest: str, roots: Iterable[Path]) -> CodeExcerpt:
    """The lines around `site`, or why there are none. Nothing is raised.

    `run` holds the facts of the run, `roots` are the folders in which the program may have been started.
    """
    files = run.get(FILES)
    noted = files.get(site.file) if isinstance(files, Mapping) else None
    accepted = {str(noted), script_digest} - {"", "None"}
    there = False
    for root in roots:
        try:
            data = read_bounded(root / site.file, LARGEST)
        except (OSError, ValueError):
            continue
        there = True
        if hashlib.sha256(data).hexdigest() in accepted:
            return _around(site.line, data.decode("utf-8", "replace"))
    if not there:
        reason = f"{site.file} was not found from here, so its lines are not shown"
    elif noted or (script_digest and site.file == run.get("script")):
        reason = f"{site.file} has changed since the run, so its lines are not shown"
    else:
        reason = f"nothing says whether {site.file} is as it was in the run, so its lines are not shown"
    return CodeExcerpt(site.line, note=reason)


def _around(line: int, text: str) -> CodeExcerpt:
    lines = text.split("\n")
    if not 1 <= line <= len(lines):
        return CodeExcerpt(line, note=f"the file has no line {line}")
    first, last = max(line - BEFORE, 1), min(line + AFTER, len(lines))
    shown = [line_text.expandtabs(4).rstrip() for line_text in _without_secrets(text, lines)[first - 1 : last]]
    while last > line and not shown[-1]:
        shown.pop()
        last -= 1
    while first < line and not shown[0]:
        shown.pop(0)
        first += 1
    return CodeExcerpt(line, first, tuple(shown))


def _without_secrets(text: str, lines: Sequence[str]) -> list[str]:
    """The lines without what is secret in them: also what goes over several lines (a private key), which is looked for
    in the whole text and takes as many lines afterwards."""
    redacted = redaction.text(text).split("\n")
    if len(redacted) == len(lines):
        return redacted
    lines_left = [redaction.MARK] * len(lines)
    for kind, start, stop, first, last in SequenceMatcher(None, lines, redacted, False).get_opcodes():
        if kind == "equal" or (kind == "replace" and stop - start == last - first):
            lines_left[start:stop] = redacted[first:last]
    return lines_left
