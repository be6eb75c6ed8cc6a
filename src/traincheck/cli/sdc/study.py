"""`traincheck sdc study`: compare a suspect worker with a trusted worker on the same training."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from traincheck.cli import flags
from traincheck.cli.console import FINDINGS, Progress, amount, columns, out, out_json, remark
from traincheck.cli.sdc import flags as sdc_flags
from traincheck.errors import BadOption

if TYPE_CHECKING:
    from traincheck.sdc.study.plan import Plan

EPILOG = """\b
Examples:
  traincheck sdc study --fault intermittent@forward:*.attention,chance=0.1 -o study.json
  traincheck sdc study --level 1 --workload decoder-small --steps 5
  traincheck sdc study --tensor-parallel 2 --fault bitflip@forward:*.attention,bit=20,rank=1 -o study.html
  traincheck sdc study --from study.json -o study.html                 # an earlier study, as a page
  traincheck sdc study --framework xla --fault intermittent@backward:*.feed_forward
  torchrun --nnodes 2 --nproc-per-node 1 --rdzv-endpoint HOST:29400 -m traincheck sdc study --device cuda -o study.json
  torchrun --nnodes 2 --nproc-per-node 8 --rdzv-endpoint HOST:29400 -m traincheck sdc study --tensor-parallel 8 ...

Without a launcher both workers are processes of this machine; --fault goes into the suspect worker. Under a launcher
with two processes, rank 0 is the trusted worker and rank 1 the suspect worker. With --tensor-parallel N there are 2 N
processes, and the ranks below N are the trusted host.

\b
Exit codes: 0 no bit differed, 3 some did. Under a launcher always 0, as a launcher treats other codes as a crash.
"""

STEPS = 10
"""Steps of each level: a few seconds for the smallest workload. Rare faults need more."""

SHOWN = 12
"""Lines of the table of steps; the file has all of them."""

PAGE = ".html"


def command(
    workload: sdc_flags.Workload = None,
    framework: sdc_flags.Framework = "torch",
    steps: sdc_flags.Steps = None,
    seed: sdc_flags.Seed = 0,
    device: sdc_flags.Device = None,
    threads: sdc_flags.Threads = 1,
    faults: sdc_flags.Faults = None,
    levels: sdc_flags.Levels = None,
    tensor_parallel: sdc_flags.TensorParallel = 1,
    files: sdc_flags.StudyFiles = None,
    source: sdc_flags.FromStudy = None,
    as_json: flags.AsJson = False,
) -> None:
    """Compare a suspect worker with a trusted worker.

    Level 1 compares the output of each submodule and then corrects the suspect's. Level 2 compares the gradients of a
    step and then copies the parameters. Level 3 compares a period of training and copies nothing.
    """
    from traincheck.sdc.faults.fault import parse_fault
    from traincheck.sdc.frameworks import check_executable, framework_of
    from traincheck.sdc.study.plan import Plan, launcher_rank, levels_of
    from traincheck.sdc.study.study_file import check_replaceable_study, differs, read_study, write_study

    pages = [file for file in files or () if file.suffix == PAGE]
    data_files = [file for file in files or () if file.suffix != PAGE]
    if source is not None:
        options = (workload, steps, device, faults, levels, data_files or None)
        defaults = (framework, seed, threads, tensor_parallel) == ("torch", 0, 1, 1)
        if any(option not in (None, []) for option in options) or not defaults:
            raise BadOption("--from", str(source), "only -o FILE.html and --json with it, as nothing is executed")
        _check_pages(pages)
        study = read_study(source)
        _print(study, pages, as_json)
        raise typer.Exit(FINDINGS if differs(study) else 0)
    framework = framework_of(framework, "traincheck sdc study")
    steps = STEPS if steps is None else steps
    sdc_flags.at_least("--steps", steps, 1)
    sdc_flags.at_least("--seed", seed, 0)
    sdc_flags.at_least("--threads", threads, 1)
    sdc_flags.at_least("--tensor-parallel", tensor_parallel, 1)
    injected = tuple(parse_fault(text) for text in faults or ())
    name = workload or sdc_flags.BUILT_IN
    check_executable(framework, name, injected, tensor_parallel)
    plan = Plan(
        name, steps, seed, device or "cpu", threads, levels_of(levels or ()), injected, tensor_parallel, framework
    )
    rank = launcher_rank(tensor_parallel=tensor_parallel)
    if not rank:
        for file in data_files:
            check_replaceable_study(file)
        _check_pages(pages)
    study = _execute(plan, rank)
    if rank:  # rank 0 reports
        return
    for file in data_files:
        write_study(study, file)
        remark(f"results: {file}")
    _print(study, pages, as_json)
    raise typer.Exit(FINDINGS if differs(study) and rank is None else 0)


def _check_pages(pages: Sequence[Path]) -> None:
    """Raise OutputError for a page that cannot be written."""
    from traincheck.files import may_write

    for page in pages:
        may_write(page)


def _print(study: Mapping[str, Any], pages: Sequence[Path], as_json: bool) -> None:
    for page in pages:
        from traincheck.reporting.study.page import render_study
        from traincheck.sdc.study.study_file import differs

        render_study(study, differs(study), page)
        remark(f"tables and plots: {page}")
    if as_json:
        out_json(study)
    else:
        for line in tables(study):
            out(line)


def _execute(plan: Plan, rank: int | None) -> dict[str, Any]:
    with Progress() as progress:
        if rank is None:
            from traincheck.sdc.study.plan import run_pair

            return run_pair(plan, progress, remark)
        from traincheck.sdc.environment import set_variables

        set_variables()
        from traincheck.sdc.study.worker_side import execute_side
        from traincheck.sdc.workload.workload import workload_errors

        with workload_errors(plan.workload):
            return execute_side(plan, rank, progress)


def tables(study: Mapping[str, Any]) -> Iterable[str]:
    """The results of a study, in lines for a terminal."""
    workers = study["workers"]
    trusted, suspect = _who(workers["trusted"]), _who(workers["suspect"])
    ranks = f", hosts of {study['tensor_parallel']} ranks" if study.get("tensor_parallel", 1) > 1 else ""
    yield f"{study['workload']}, seed {study['seed']}{ranks}: trusted {trusted}, suspect {suspect}"
    if {**workers["trusted"], "host": ""} != {**workers["suspect"], "host": ""}:
        yield "The two have different software or devices: they may differ without any fault."
    for level, lines in (("submodule", _submodule), ("step", _step), ("period", _period)):
        if level in study["levels"]:
            yield from lines(study["levels"][level])
    if study["interrupted"]:
        yield "It was interrupted; these are the results so far."
    from traincheck.sdc.study.study_file import differs

    yield "The suspect worker computed other bits than the trusted worker." if differs(study) else "No bit differed."


def _who(worker: Mapping[str, str]) -> str:
    package = "jax" if "jax" in worker else "torch"
    return f"{worker['host']} ({worker['device']}, {package} {worker.get(package, 'unknown')})"


def _head(number: int, title: str, level: Mapping[str, Any]) -> Iterable[str]:
    yield ""
    yield f"Level {number}: {title}, {amount(level['steps'], 'step')}"
    for fault in level["injected"]:
        ranks = [str(rank) for rank, times in enumerate(fault.get("times_by_rank", ())) if times]
        yield f"  {fault['fault']} struck {amount(fault['times'], 'time')}{_on(ranks)}"


def _submodule(level: Mapping[str, Any]) -> Iterable[str]:
    yield from _head(1, "each submodule, synchronised", level)
    yield from _mismatches(level["by_kind"])


def _on(ranks: Sequence[str]) -> str:
    return f", on rank{'s' if len(ranks) > 1 else ''} {', '.join(ranks)} of the suspect host" if ranks else ""


def _mismatches(rows: Sequence[Mapping[str, Any]]) -> Iterable[str]:
    of_ranks = any("ranks" in row for row in rows)
    head = (
        "submodule",
        "direction",
        "elements",
        "differ",
        "frequency",
        "severity",
        "not finite",
        "ranks"[: 5 * of_ranks],
    )
    cells = [
        (
            row["kind"],
            row["direction"],
            f"{row['elements']:,}",
            f"{row['different']:,}",
            f"{row['frequency']:.2e}",
            _number(row["severity"]),
            f"{row['not_finite']:,}",
            ", ".join(map(str, row.get("ranks", ()))),
        )
        for row in rows
        if row["different"]
    ]
    if cells:
        yield from columns([head, *cells])
    same = sum(row["elements"] for row in rows if not row["different"])
    if same or not cells:
        yield f"  {'elsewhere ' if cells else ''}no difference in {same:,} elements"


def _number(value: float | None) -> str:
    return "not finite" if value is None else f"{value:.3g}"


def _step(level: Mapping[str, Any]) -> Iterable[str]:
    yield from _head(2, "one optimizer step, then parameters are copied", level)
    yield from _mismatches(level["by_kind"])
    whole, single = level["worst_noise_to_signal"], level["worst_noise_to_signal_of_a_parameter"]
    yield f"  worst noise to signal of the gradients: {_number(whole)} (of a single parameter: {_number(single)})"
    head = ("step", "loss", "suspect's loss", "noise to signal", "loudest gradient")
    rows = [
        (
            *_losses(row),
            _number(row["noise_to_signal"]),
            row["worst_parameter"] if row["worst_noise_to_signal"] != 0 else "",
        )
        for row in _thinned(level["series"])
    ]
    yield from columns([head, *rows])


def _losses(row: Mapping[str, Any]) -> tuple[str, ...]:
    losses = [f"{value:.6f}" if value is not None else "not finite" for value in (row["loss"], row["suspect_loss"])]
    return f"{row['step']}", *losses


def _thinned(series: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
    """Steps at equal distances, with the first and the last."""
    if len(series) <= SHOWN:
        return series
    return [series[round(index * (len(series) - 1) / (SHOWN - 1))] for index in range(SHOWN)]


def _period(level: Mapping[str, Any]) -> Iterable[str]:
    yield from _head(3, "a period of training, nothing copied", level)
    head = ("step", "loss", "suspect's loss", "distance of parameters", "relative")
    rows = [
        (*_losses(row), _number(row["parameter_distance"]), _number(row["relative_distance"]))
        for row in _thinned(level["series"])
    ]
    yield from columns([head, *rows])
    losses = level["evaluation"]
    yield f"  evaluation: trusted {_number(losses['trusted'])}, suspect {_number(losses['suspect'])}"
