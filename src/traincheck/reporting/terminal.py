"""Print findings as they happen, and a summary at the end, to stderr. The program keeps stdout to itself."""

from __future__ import annotations

import contextlib
import textwrap
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from rich.console import Console
from rich.padding import Padding
from rich.style import Style
from rich.table import Table
from rich.text import Text

from traincheck.files import PathLike
from traincheck.reporting import phrases
from traincheck.reporting.rank_rows import job_names, rank_rows
from traincheck.reporting.verification_table import HEAD, VerificationRow, verification_rows, without_occasion
from traincheck.version import __version__
from traincheck.vocab.finding import Divergence, Finding, Report, Site
from traincheck.vocab.invariant import ERROR
from traincheck.vocab.verification import NOT_TRUE_HERE, UNDECIDED, WRONG

WIDEST = 120
"""Maximum line width, because longer lines are hard to read."""

LIVE_BLOCKS = 20
"""Findings printed in full while the program runs. Later findings get one line, so the program stays readable."""

ROWS, REASONS, NAMES = 25, 6, 3
"""Maximum rows of a table, reasons of a list, and names of a list. The report files hold all."""

_LABEL, _WHERE, _NUMBERS, _SPANS = 12, 30, 12, 24
_STYLES = {ERROR: "bold red", "notice": "bold yellow"}
_VERIFIED_STYLES = {WRONG: "bold red", NOT_TRUE_HERE: "yellow", UNDECIDED: "yellow"}


class TerminalSink:
    """Prints findings live, and a summary. `reports` are the files that the other sinks write.

    Colours and links appear only on a terminal. NO_COLOR disables colours.
    """

    def __init__(self, console: Console | None = None, reports: Sequence[PathLike] = ()) -> None:
        self._console = console or Console(stderr=True, highlight=False, force_jupyter=False)
        self._reports = tuple(reports)
        self._shown = 0

    def open(self, run: Mapping[str, object]) -> None:
        """Print one line with the checked script."""
        script = str(run.get("script") or "this run")
        self._print(Text(f"TrainCheck {__version__} checks {phrases.plain(script)}", "dim"))

    def show(self, finding: Finding) -> None:
        """Print the finding as a block after an empty line, because the last line may hold a progress bar."""
        self._shown += 1
        if self._shown <= LIVE_BLOCKS:
            self._print(Text("\n").append(finding_block(finding, self._width())))
        else:
            self._print(_title(finding, self._width()))

    def close(self, report: Report) -> None:
        """Print verdict, findings, counts, unobserved rules, and the paths of the reports."""
        width = self._width()
        self._console.print()
        self._print(_verdict(report))
        self._show_findings(report, width)
        if report.verification:
            self._show_verification(report, width)
        if report.ranks:
            self._console.print()
            self._console.print(Padding(_ranks_table(report), (0, 0, 0, 2)), width=width)
            for divergence in report.divergences:
                self._print(_divergence_text(divergence, report, width))
        self._console.print()
        self._print(_facts(report, self._reports, width))

    def close_verification(self, report: Report) -> None:
        """Print the findings, the table of verified computations, unobserved parts, and the paths of the reports."""
        width = self._width()
        self._show_findings(report, width)
        self._show_verification(report, width)
        self._console.print()
        self._print(Text("\n").join(_lines([*_unobserved(report, width), *_files(self._reports)])))

    def _show_findings(self, report: Report, width: int) -> None:
        if report.findings:
            self._console.print()
            self._console.print(_findings_table(report.findings), width=width)
            if len(report.findings) > ROWS:
                self._print(Text(f"  and {len(report.findings) - ROWS:,} more findings in the reports", "dim"))

    def _show_verification(self, report: Report, width: int) -> None:
        rows = report.verification
        self._console.print()
        if rows:
            self._console.print(Padding(_verification_table(verification_rows(rows)), (0, 0, 0, 2)), width=width)
        unused = ", ".join(without_occasion(rows))
        self._print(Text("\n").join(_lines([("no occasion", _wrapped(unused, width))])))

    def _width(self) -> int:
        return min(self._console.width, WIDEST)

    def _print(self, text: Text) -> None:
        # TrainCheck wraps the text itself: a path broken over two lines cannot be clicked or copied.
        self._console.print(text, no_wrap=True, overflow="ignore", crop=False, highlight=False)


def finding_block(finding: Finding, width: int = WIDEST) -> Text:
    """Return all details of a finding, wrapped to `width` where a break is allowed."""
    rows: list[tuple[str, Text]] = [("cause", _wrapped(finding.cause, width))]
    if finding.site:
        rows.append(("where", _site(finding.site)))
    if finding.variables:
        rows.append(("variables", _wrapped(phrases.listed(finding.variables, NAMES), width)))
    rows += [("expected", _wrapped(finding.expected, width)), ("observed", _wrapped(finding.observed, width))]
    for number, advice in enumerate(finding.advice, 1):
        rows.append(("look at" if number == 1 else "", _wrapped(f"{number}. {advice}", width)))
    rows.append(("read more", _wrapped(phrases.read_more(finding), width)))
    if finding.invariants:
        rows.append(("invariants", _wrapped(phrases.listed(finding.invariants, NAMES), width)))
    return Text("\n").join([_title(finding, width), *_lines(rows)])


def _lines(rows: Sequence[tuple[str, Text]]) -> Iterator[Text]:
    for label, text in rows:
        if text.plain:
            indent = Text("\n" + " " * (_LABEL + 3))
            yield Text.assemble((f"  {label:<{_LABEL}} ", "dim"), indent.join(text.split("\n")))


def _wrapped(text: str, width: int) -> Text:
    lines = textwrap.wrap(
        phrases.plain(text), max(width - _LABEL - 3, 20), break_long_words=False, break_on_hyphens=False
    )
    return Text("\n".join(lines))


def _title(finding: Finding, width: int) -> Text:
    where = f" at step {finding.step}{_on_ranks(finding)}: "
    head = Text.assemble(
        (f"TrainCheck {phrases.plain(finding.severity).upper()}", _STYLES.get(finding.severity, "bold")), where
    )
    margin = " " * len(head)
    lines = textwrap.wrap(
        phrases.plain(phrases.titled(finding)),
        width,
        initial_indent=margin,
        subsequent_indent="  ",
        break_on_hyphens=False,
    )
    return head.append("\n".join(lines)[len(margin) :], "bold")


def _on_ranks(finding: Finding) -> str:
    if finding.differing.is_minority:
        return f", {phrases.about_ranks(finding)}"
    alone = finding.rank == 0 and len(finding.ranks) < 2  # there may be no other rank
    return "" if alone else f" {'' if finding.compared else 'on '}{phrases.about_ranks(finding)}"


def _site(site: Site) -> Text:
    style = Style()
    with contextlib.suppress(OSError, ValueError):  # a name that this system does not allow
        file = Path(site.file).resolve(strict=True)
        style = Style(link=file.as_uri())
    return Text.assemble(Text(phrases.plain(f"{site.file}:{site.line}"), style), f" in {phrases.plain(site.function)}")


def _verdict(report: Report) -> Text:
    no_findings = "bold yellow" if report.unjudged else "bold green"
    style = {"errors": "bold red", "notices": "bold yellow"}.get(report.verdict, no_findings)
    style = "bold red" if report.differs else style
    return Text.assemble(("TrainCheck: ", "bold"), (phrases.headline(report), style))


def _findings_table(findings: Sequence[Finding]) -> Table:
    ranks = any(finding.rank or finding.compared or len(finding.ranks) > 1 for finding in findings)
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", expand=True)
    table.add_column(" #", justify="right", no_wrap=True)
    table.add_column("severity", no_wrap=True)
    table.add_column("steps", no_wrap=True)
    if ranks:
        table.add_column("ranks", max_width=_NUMBERS, overflow="fold")
    table.add_column("finding", ratio=1, overflow="fold")
    table.add_column("where", overflow="fold")
    for number, finding in enumerate(findings[:ROWS], 1):
        severity = Text(finding.severity, _STYLES.get(finding.severity, ""))
        rank = [phrases.ranks_of(finding)] if ranks else []
        where = phrases.shortened(f"{finding.site.file}:{finding.site.line}", _WHERE) if finding.site else ""
        title = Text(phrases.plain(finding.title))
        table.add_row(str(number), severity, phrases.steps(finding), *rank, title, Text(phrases.plain(where)))
    return table


def _note_left_out(table: Table, rows: int) -> None:
    """Say below a table how many of its rows it does not show; in a cell, the sentence would be cut."""
    if rows > ROWS:
        table.caption = Text(f"  and {rows - ROWS:,} more rows in the reports")
        table.caption_justify = "left"


def _ranks_table(report: Report) -> Table:
    rows, jobs = rank_rows(report.ranks), job_names(report.ranks)
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("ranks", max_width=_SPANS, overflow="fold")
    if jobs:
        table.add_column("job", overflow="fold")
    for name in ("steps", "windows"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("recording", overflow="fold")
    table.add_column("agreement", overflow="fold")
    for row in rows[:ROWS]:
        job = [Text(phrases.plain(jobs[row.state.job]))] if jobs else []
        agreement = Text(phrases.plain(phrases.agreement(row.state)), "bold red" if row.state.apart is not None else "")
        numbers = (f"{row.state.steps:,}", f"{row.state.windows:,}")
        table.add_row(row.ranks, *job, *numbers, Text(phrases.plain(phrases.recording(row.state))), agreement)
    _note_left_out(table, len(rows))
    return table


def _verification_table(rows: Sequence[VerificationRow]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for name in HEAD:
        is_count = name == HEAD[2]
        table.add_column(name, justify="right" if is_count else "left", no_wrap=is_count, overflow="fold")
    for row in rows if len(rows) <= ROWS else sorted(rows, key=lambda row: row.kind != WRONG)[:ROWS]:
        cells = [Text(phrases.plain(cell)) for cell in row[:4]]
        cells[3].stylize(_VERIFIED_STYLES.get(row.kind, ""), 0, len(row.kind))
        table.add_row(*cells)
    _note_left_out(table, len(rows))
    return table


def _divergence_text(divergence: Divergence, report: Report, width: int) -> Text:
    jobs = job_names(report.ranks)
    of_job = f"job {jobs[divergence.job]}: " if divergence.job in jobs else ""
    lines = textwrap.wrap(
        phrases.plain(of_job + phrases.divergence_text(divergence)), width, initial_indent="  ", subsequent_indent="  "
    )
    return Text("\n".join(lines))


def _facts(report: Report, reports: Sequence[PathLike], width: int) -> Text:
    rows = [("invariants", _wrapped(phrases.judged(report.counts), width))]
    rows.append(("seen", _wrapped(phrases.seen(report.counts), width)))
    rows.append(("in full", _wrapped(phrases.in_full(report), width)))
    rows.append(("recorded", _wrapped(phrases.recorded(report), width)))
    if report.comparison is not None:
        text = f"with {report.comparison['a']}: {' '.join(report.comparison['text'][:1])}"
        rows.append(("compared", _wrapped(text, width)))
    if report.cost is not None:
        rows.append(("cost", _wrapped(phrases.cost(report.cost), width)))
    return Text("\n").join(_lines([*rows, *_unobserved(report, width), *_files(reports)]))


def _unobserved(report: Report, width: int) -> list[tuple[str, Text]]:
    rows = []
    reasons = Counter(report.not_observed).most_common()
    label = "not observed"
    for reason, times in reasons[:REASONS]:
        rows.append((label, _wrapped(f"{reason} ({times:,} times)" if times > 1 else reason, width)))
        label = ""
    if len(reasons) > REASONS:
        rows.append(("", _wrapped(f"and {len(reasons) - REASONS:,} more reasons", width)))
    return rows


def _files(reports: Sequence[PathLike]) -> list[tuple[str, Text]]:
    return [("" if index else "reports", Text(phrases.plain(str(path)))) for index, path in enumerate(reports)]
