"""`traincheck sdc study`: a suspect worker compared with a trusted one that executes the same training."""

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
  traincheck sdc study --fault bitflip@forward:*.attention,bit=exponent,chance=0.1 -o study.json
  traincheck sdc study --level 1 --workload decoder-small --steps 5
  traincheck sdc study --tensor-parallel 2 --fault bitflip@forward:*.attention,bit=20,rank=1 --html study.html
  traincheck sdc study --from study.json --html study.html             # an earlier one, as a page
  traincheck sdc study --framework xla --fault bitflip@backward:*.feed_forward,bit=20
  torchrun --nnodes 2 --nproc-per-node 1 --rdzv-endpoint HOST:29400 -m traincheck sdc study --device cuda -o study.json
  torchrun --nnodes 2 --nproc-per-node 8 --rdzv-endpoint HOST:29400 -m traincheck sdc study --tensor-parallel 8 ...

Without a launcher both workers are processes of this machine, and differ only by --fault, which is put into the suspect
one. Started by a launcher as two processes, rank 0 is the trusted worker and rank 1 the suspect one; with
--tensor-parallel N as 2 N processes, those below N are the trusted host.

\b
Exit codes: 0 no bit differed, 3 some did. Under a launcher it is 0, as a launcher takes others for a crash.
"""

STEPS = 10
"""Of each level: a few seconds for the smallest workload; faults that seldom strike need more."""

SHOWN = 12
"""Lines of the table of steps: the rest stands in the file."""


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
    file: sdc_flags.StudyFile = None,
    page: sdc_flags.StudyPage = None,
    source: sdc_flags.FromStudy = None,
    as_json: flags.AsJson = False,
) -> None:
    """Compare a suspect worker with a trusted one on three levels: submodules, steps, a period of training.

    Level 1 compares what each submodule computes and overwrites the suspect's with the trusted one. Level 2 lets
    differences grow within a step, compares gradients and copies parameters. Level 3 copies nothing.
    """
    from traincheck.sdc.faults.fault import parse_fault
    from traincheck.sdc.frameworks import framework_of, must_be_executable
    from traincheck.sdc.study.plan import Plan, launched_rank, levels_of
    from traincheck.sdc.study.study_file import differs, may_replace_study, read_study, write_study

    if source is not None:
        given = (workload, steps, device, faults, levels, file)
        usual = (framework, seed, threads, tensor_parallel) == ("torch", 0, 1, 1)
        if any(one not in (None, []) for one in given) or not usual:
            raise BadOption("--from", str(source), "besides it only --html and --json, for nothing is executed")
        _may_write(page, source, "--from")
        found = read_study(source)
        _tell(found, page, as_json)
        raise typer.Exit(FINDINGS if differs(found) else 0)
    framework = framework_of(framework, "traincheck sdc study")
    steps = STEPS if steps is None else steps
    sdc_flags.at_least("--steps", steps, 1)
    sdc_flags.at_least("--seed", seed, 0)
    sdc_flags.at_least("--threads", threads, 1)
    sdc_flags.at_least("--tensor-parallel", tensor_parallel, 1)
    chosen = tuple(parse_fault(text) for text in faults or ())
    named = workload or sdc_flags.BUILT_IN
    must_be_executable(framework, named, chosen, tensor_parallel)
    wanted = levels_of(levels or ())
    plan = Plan(named, steps, seed, device or "cpu", threads, wanted, chosen, tensor_parallel, framework)
    rank = launched_rank(tensor_parallel=tensor_parallel)
    if not rank:
        if file is not None:
            may_replace_study(file)
        _may_write(page, file, "-o")
    found = _execute(plan, rank)
    if rank:  # the first one tells
        return
    if file is not None:
        write_study(found, file)
        remark(f"what was found is in {file}")
    _tell(found, page, as_json)
    raise typer.Exit(FINDINGS if differs(found) and rank is None else 0)


def _may_write(page: Path | None, data: Path | None, option: str) -> None:
    """Raise OutputError for a page that cannot be written, and BadOption where it would replace the data."""
    from traincheck.files import may_write

    if page is None:
        return
    if data is not None and page.resolve() == data.resolve():
        raise BadOption("--html", str(page), f"another file than that of {option}, which it would replace")
    may_write(page)


def _tell(found: Mapping[str, Any], page: Path | None, as_json: bool) -> None:
    if page is not None:
        from traincheck.reporting.study.page import render_study
        from traincheck.sdc.study.study_file import differs

        render_study(found, differs(found), page)
        remark(f"tables and plots are in {page}")
    if as_json:
        out_json(found)
    else:
        for line in tables(found):
            out(line)


def _execute(plan: Plan, rank: int | None) -> dict[str, Any]:
    with Progress() as progress:
        if rank is None:
            from traincheck.sdc.study.plan import run_pair

            return run_pair(plan, progress, remark)
        from traincheck.sdc.environment import settle_here

        settle_here()
        from traincheck.sdc.study.worker_side import execute_side
        from traincheck.sdc.workload.workload import blamed

        with blamed(plan.workload):
            return execute_side(plan, rank, progress)


def tables(found: Mapping[str, Any]) -> Iterable[str]:
    """What a study has found, in lines for a terminal."""
    workers = found["workers"]
    trusted, suspect = _who(workers["trusted"]), _who(workers["suspect"])
    ranks = f", hosts of {found['tensor_parallel']} ranks" if found.get("tensor_parallel", 1) > 1 else ""
    yield f"{found['workload']}, seed {found['seed']}{ranks}: trusted {trusted}, suspect {suspect}"
    if {**workers["trusted"], "host": ""} != {**workers["suspect"], "host": ""}:
        yield "The two have different software or devices: they may differ without any fault."
    for level, tell in (("submodule", _submodule), ("step", _step), ("period", _period)):
        if level in found["levels"]:
            yield from tell(found["levels"][level])
    if found["interrupted"]:
        yield "It was interrupted; this is what was found so far."
    from traincheck.sdc.study.study_file import differs

    yield "The suspect worker computed otherwise than the trusted one." if differs(found) else "No bit differed."


def _who(worker: Mapping[str, str]) -> str:
    package = "jax" if "jax" in worker else "torch"
    return f"{worker['host']} ({worker['device']}, {package} {worker.get(package, 'unknown')})"


def _head(number: int, title: str, level: Mapping[str, Any]) -> Iterable[str]:
    yield ""
    yield f"Level {number}: {title}, {amount(level['steps'], 'step')}"
    for one in level["injected"]:
        where = [str(rank) for rank, times in enumerate(one.get("times_by_rank", ())) if times]
        yield f"  {one['fault']} struck {amount(one['times'], 'time')}{_on(where)}"


def _submodule(level: Mapping[str, Any]) -> Iterable[str]:
    yield from _head(1, "each submodule, synchronised", level)
    yield from _mismatches(level["by_kind"])


def _on(ranks: Sequence[str]) -> str:
    return f", on rank{'s' if len(ranks) > 1 else ''} {', '.join(ranks)} of the suspect host" if ranks else ""


def _mismatches(rows: Sequence[Mapping[str, Any]]) -> Iterable[str]:
    of_ranks = any("ranks" in one for one in rows)
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
            one["kind"],
            one["direction"],
            f"{one['elements']:,}",
            f"{one['different']:,}",
            f"{one['frequency']:.2e}",
            _number(one["severity"]),
            f"{one['not_finite']:,}",
            ", ".join(map(str, one.get("ranks", ()))),
        )
        for one in rows
        if one["different"]
    ]
    if cells:
        yield from columns([head, *cells])
    same = sum(one["elements"] for one in rows if not one["different"])
    if same or not cells:
        yield f"  {'elsewhere ' if cells else ''}none of {same:,} elements differs"


def _number(value: float | None) -> str:
    return "not finite" if value is None else f"{value:.3g}"


def _step(level: Mapping[str, Any]) -> Iterable[str]:
    yield from _head(2, "one optimizer step, then parameters are copied", level)
    yield from _mismatches(level["by_kind"])
    whole, alone = level["worst_noise_to_signal"], level["worst_noise_to_signal_of_a_parameter"]
    yield f"  worst noise to signal of the gradients: {_number(whole)} (of one alone: {_number(alone)})"
    head = ("step", "loss", "suspect's loss", "noise to signal", "loudest gradient")
    rows = [
        (
            *_losses(one),
            _number(one["noise_to_signal"]),
            one["worst_parameter"] if one["worst_noise_to_signal"] != 0 else "",
        )
        for one in _some(level["series"])
    ]
    yield from columns([head, *rows])


def _losses(one: Mapping[str, Any]) -> tuple[str, ...]:
    told = [f"{value:.6f}" if value is not None else "not finite" for value in (one["loss"], one["suspect_loss"])]
    return f"{one['step']}", *told


def _some(series: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
    """Steps at equal distances, with the first and the last."""
    if len(series) <= SHOWN:
        return series
    return [series[round(place * (len(series) - 1) / (SHOWN - 1))] for place in range(SHOWN)]


def _period(level: Mapping[str, Any]) -> Iterable[str]:
    yield from _head(3, "a period of training, nothing copied", level)
    head = ("step", "loss", "suspect's loss", "distance of parameters", "relative")
    rows = [
        (*_losses(one), _number(one["parameter_distance"]), _number(one["relative_distance"]))
        for one in _some(level["series"])
    ]
    yield from columns([head, *rows])
    found = level["evaluation"]
    yield f"  evaluation: trusted {_number(found['trusted'])}, suspect {_number(found['suspect'])}"
