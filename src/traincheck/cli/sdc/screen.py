"""`traincheck sdc screen`: whether a machine computes training as it should."""

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
    from traincheck.sdc.screening.reference_fingerprints import Known
    from traincheck.sdc.screening.rounds import Screened, Screening

EPILOG = """\b
Examples:
  traincheck sdc screen --save good.json                   # on a machine that is clean
  traincheck sdc screen --against good.json                # on others of its kind
  traincheck sdc screen --device cuda --workload decoder-1b-bf16 --seconds 600 --json
  traincheck sdc screen --seconds 10 --fault bitflip@backward,chance=0.01

\b
Exit codes: 0 all devices are clean, 3 one is corrupt, 1 it cannot be told, as the work is not reproducible.
"""

WORKLOAD = "decoder-small"
"""Large enough for kernels to be used as in real training, small enough for several rounds on a CPU in a minute."""
STEPS = 3
"""Of a round: with updates of parameters that updates have made, and a state of the optimizer that is not new."""
SHOWN = 5
"""Wrong results that are printed of each device; --json has more."""
CANNOT_BE_TOLD = 1


def command(
    workload: sdc_flags.Workload = None,
    steps: sdc_flags.Steps = None,
    seed: sdc_flags.Seed = 0,
    device: sdc_flags.Device = None,
    threads: sdc_flags.Threads = 1,
    seconds: sdc_flags.Seconds = 120,
    save: sdc_flags.Save = None,
    against: sdc_flags.Against = None,
    faults: sdc_flags.Faults = None,
    as_json: flags.AsJson = False,
) -> None:
    """Exercise each device with real training work, and tell whether it computes what it should, each time.

    Rounds of matrix products of the model's shapes and of training steps are compared by fingerprint: with known ones
    (--against), with each other, and between devices of one kind.
    """
    from traincheck.sdc.environment import needs_torch, settle_here
    from traincheck.sdc.faults.fault import parse_fault
    from traincheck.sdc.screening.reference_fingerprints import may_replace_known, read_known

    needs_torch("traincheck sdc screen")
    steps = STEPS if steps is None else steps
    for name, value, least in (("--steps", steps, 1), ("--seed", seed, 0), ("--threads", threads, 1)):
        sdc_flags.at_least(name, value, least)
    sdc_flags.at_least("--seconds", seconds, 1)
    chosen = tuple(parse_fault(text) for text in faults or ())
    known = read_known(against) if against is not None else None
    if save is not None:
        if chosen:
            raise BadOption("--save", str(save), "no --fault beside it: the fingerprints would be those of the fault")
        may_replace_known(save)
    settle_here()
    from traincheck.sdc.screening.rounds import Screening, as_data

    screening = Screening(workload or WORKLOAD, steps, seed, threads, seconds, chosen)
    screened, verdicts = _screen(screening, device, known, against)
    if save is not None:
        _save(save, screening, screened, verdicts)
    if as_json:
        out_json(as_data(screening, screened, verdicts))
    else:
        for line in _lines(screening, screened, verdicts):
            out(line)
    raise typer.Exit(_code(verdicts))


def _screen(
    screening: Screening, device: str | None, known: Known | None, against: Path | None
) -> tuple[Screened, list[dict[str, Any]]]:
    from traincheck.sdc.screening.rounds import devices_to_screen, screen
    from traincheck.sdc.screening.verdicts import judge

    def check(software: Mapping[str, str]) -> None:
        if known is not None and against is not None:
            known.must_be_of(against, screening.work, software)

    with Progress() as progress:
        screened = screen(screening, devices_to_screen(device), check, progress)
    return screened, judge(screened.devices, known)


def _save(path: Path, screening: Screening, screened: Screened, verdicts: Sequence[Mapping[str, Any]]) -> None:
    from traincheck.sdc.screening.reference_fingerprints import write_known
    from traincheck.sdc.screening.rounds import known_from
    from traincheck.sdc.screening.verdicts import CLEAN

    clean = [rounds for rounds, one in zip(screened.devices, verdicts, strict=True) if one["verdict"] == CLEAN]
    if not clean:
        remark(f"no device is clean, so {path} was not written")
        return
    write_known(known_from(screening, clean[0]), path)
    remark(f"the fingerprints of {clean[0].device} are in {path}")


def _code(verdicts: Sequence[Mapping[str, Any]]) -> int:
    found = {one["verdict"] for one in verdicts}
    return FINDINGS if "corrupt" in found else CANNOT_BE_TOLD if "undecided" in found else 0


def _lines(screening: Screening, screened: Screened, verdicts: Sequence[Mapping[str, Any]]) -> Iterable[str]:
    for one in verdicts:
        told = one["software"]
        yield f"{one['device']} ({told.get('name', told['device'])}, torch {told['torch']}): {one['verdict'].upper()}"
        made = f"{amount(one['rounds'], 'round')} of {screening.workload} in {one['seconds']:.0f} s"
        yield f"  {made}, {amount(one['compared'], 'result')} compared with {one['against']}, {one['wrong']:,} wrong"
        rows = [(what["what"], what["reason"], f"round {what['round']}") for what in one["first_wrong"][:SHOWN]]
        yield from columns(rows, "    ")
        if one["verdict"] == "undecided":
            yield (
                f"  Of {', '.join(one['undetermined'])} torch has no deterministic implementation here, so this may be "
                "software. `traincheck sdc doctor` tells."
            )
    if screened.interrupted:
        yield "It was interrupted; this is what whole rounds have shown."
