"""`traincheck compare`: find the first operation that differs between two runs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Optional

import typer

from traincheck.cli import flags
from traincheck.cli.console import FINDINGS, out, remark
from traincheck.cli.report_formats import HTML, JSON, STDOUT, RequestedSink, requests_of
from traincheck.errors import BadOption, OutputError
from traincheck.options import OPTIONS

if TYPE_CHECKING:
    from traincheck.comparison.configuration import ConfigurationDifference
    from traincheck.comparison.element_differences import ElementDifferences
    from traincheck.comparison.run_comparison import Comparison
    from traincheck.comparison.spread import Spread
    from traincheck.reporting.comparison.page import Code

EPILOG = """\b
Examples:
  traincheck collect --record operations -o runs/before train.py
  traincheck collect --record operations -o runs/after train.py --fused
  traincheck compare runs/before runs/after
  traincheck compare runs/before runs/before-again runs/after
  traincheck compare runs/before runs/after --report html=comparison.html
  traincheck compare runs/before runs/after --map "blocks.*.mlp=h.*.ffn"
  traincheck compare runs/before runs/after --json | jq .origins[0]

An origin is an operation whose inputs are equal and whose result is not. Only the first step with an origin is shown,
because everything behind it differs as well.

Exit codes: 0 equal, in all bits or up to rounding, 3 different, 2 wrong usage or no sketches, 1 TrainCheck failed.
"""

MARKDOWN = "markdown"

RunA = Annotated[Path, typer.Argument(metavar="RUN_A", help="Run folder to compare with.", show_default=False)]
Others = Annotated[
    list[Path],
    typer.Argument(
        metavar="[RUN_A_AGAIN]... RUN_B",
        help="Run folder that may differ. In front of it, further runs of the first program show its noise.",
        show_default=False,
    ),
]
Reports = Annotated[
    Optional[list[str]],  # noqa: UP045
    flags.flag(
        "reports",
        "Also write the comparison: html (both runs side by side), json or markdown. FILE - is standard output. "
        "Repeatable.",
    ),
]


@dataclass(frozen=True, slots=True)
class _Format:
    """A format of the comparison, with its default file."""

    file: str


_FORMATS = {HTML: _Format("comparison.html"), JSON: _Format("comparison.json"), MARKDOWN: _Format("comparison.md")}


def command(
    a: RunA,
    others: Others,
    names: flags.Names = None,
    reports: Reports = None,
    as_json: flags.AsJson = False,
) -> None:
    """Find the first operation that differs between two runs.

    Both runs need sketches of their operations (`--record operations`). They may come from different programs,
    machines and versions of torch. Programs that share no modules are compared by the values that they name with
    `traincheck.mark`.
    """
    *repetitions, b = others
    raise typer.Exit(compare(a, b, repetitions, as_json, reports or (), names or ()))


def compare(
    a: Path,
    b: Path,
    repetitions: Sequence[Path] = (),
    as_json: bool = False,
    reports: Sequence[str] = (),
    names: Sequence[str] = (),
) -> int:
    """Print the comparison and write the requested reports; 3 where the runs differ.

    If a repetition of the first run differs from it, their comparison is the result. `names` are those that the user
    matched.

    Raises BadOption, OutputError, and what `compare_runs` raises.
    """
    from traincheck.comparison.configuration import configuration_differences
    from traincheck.comparison.difference import DIFFERENT
    from traincheck.comparison.element_differences import element_differences
    from traincheck.comparison.given_names import given_names
    from traincheck.comparison.report import lines
    from traincheck.comparison.run_comparison import common_steps, compare_runs
    from traincheck.comparison.spread import first_losses, spread_of

    requests = _requested(reports, as_json)
    given = given_names(names)
    comparison = compare_runs(a, b, repetitions, given)
    if comparison.unrepeated is not None:
        again, given = repetitions[comparison.unrepeated], ()
        remark(f"{again} is no repetition of {a}, so {b} was not compared")
        b = again
    configuration = configuration_differences(a, b)
    is_different = comparison.result == DIFFERENT
    labels = (a.name, b.name) if a.name != b.name else (str(a), str(b))
    losses = first_losses(comparison, common_steps(a, b, given)) if comparison.origins else ()
    elements = element_differences(comparison.origins[0], a, b) if comparison.origins else None
    if all(request.target != STDOUT for request in requests):
        for line in lines(comparison, *labels, configuration, losses, elements):
            out(line)
    if requests:
        spread = spread_of(comparison, common_steps(a, b, given))
        _write_reports(requests, comparison, (a, b), labels, configuration, spread, elements)
    return FINDINGS if is_different else 0


def _requested(reports: Sequence[str], as_json: bool) -> list[RequestedSink]:
    """The requested formats. Raises BadOption for another format, and for a file that cannot be written."""
    from traincheck.files import may_write

    texts = [(text, OPTIONS["reports"].flag) for text in reports]
    if as_json:
        texts.insert(0, (f"{JSON}={STDOUT}", OPTIONS["json"].flag))
    requests = requests_of(texts, _format)
    for request in requests:
        try:
            if request.target != STDOUT:
                may_write(request.target)
        except OutputError as error:
            raise BadOption(request.origin, request.text, f"a file that can be written ({error})") from None
    return requests


def _format(name: str, text: str, origin: str) -> _Format:
    if name not in _FORMATS:
        raise BadOption(origin, text, f"FORMAT or FORMAT=FILE, with the format one of {', '.join(_FORMATS)}")
    return _FORMATS[name]


def _write_reports(
    requests: Sequence[RequestedSink],
    comparison: Comparison,
    folders: tuple[Path, Path],
    labels: tuple[str, str],
    configuration: Sequence[ConfigurationDifference],
    spread: Spread,
    elements: ElementDifferences | None,
) -> None:
    """Write the requested reports."""
    from traincheck.comparison.report import data
    from traincheck.reporting.base import write_document
    from traincheck.terminal_text import json_text

    for request in requests:
        if request.name == JSON:
            value = data(comparison, str(folders[0]), str(folders[1]), configuration, spread, elements)
            text = json_text(json.dumps(value, indent=2, ensure_ascii=False, default=str)) + "\n"
        elif request.name == HTML:
            from traincheck.reporting.comparison.page import page_of

            text = page_of(comparison, *labels, spread, configuration, _code(comparison, folders))
        else:
            from traincheck.reporting.comparison.markdown import markdown_of

            text = markdown_of(comparison, *labels, configuration, spread.losses, elements)
        write_document(request.target, text)
        if request.target != STDOUT:
            remark(f"{request.name} report: {request.target}")


def _code(comparison: Comparison, folders: tuple[Path, Path]) -> tuple[Code | None, Code | None]:
    """The code around the first origin in each run."""
    if not comparison.origins:
        return None, None
    origin = comparison.origins[0]
    operations = (*origin.others_a, origin.a), (*origin.others_b, origin.b)
    sites = (next((each.site for each in run if each is not None and each.site), "") for run in operations)
    own, other = (_code_at(site, folder) for site, folder in zip(sites, folders, strict=True))
    return own, other


def _code_at(text: str, folder: Path) -> Code | None:
    from traincheck.checking.code_excerpts import FILES, excerpt
    from traincheck.checking.finding_details import roots_of
    from traincheck.reporting.comparison.page import Code
    from traincheck.trace.folder import RunFolder
    from traincheck.vocab.finding import Site

    try:
        site = Site.parse(text)
    except ValueError:  # of a damaged recording
        return None
    if site is None:
        return None
    manifest = RunFolder.open(folder).manifest
    run = {FILES: manifest.files, "script": manifest.script}
    return Code(site, excerpt(site, run, manifest.script_digest, roots_of(folder)))
