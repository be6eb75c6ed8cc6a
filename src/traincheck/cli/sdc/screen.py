"""`traincheck sdc screen`: test whether the devices of a machine compute training correctly."""

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
    from traincheck.sdc.screening.reference_fingerprints import ReferenceFingerprints
    from traincheck.sdc.screening.rounds import Screened, Screening

EPILOG = """\b
Examples:
  traincheck sdc screen -o good.json                       # on a clean machine
  traincheck sdc screen --against good.json                # on others of its kind
  traincheck sdc screen --device cuda --workload decoder-1b-bf16 --seconds 600 --json
  traincheck sdc screen --seconds 10 --fault intermittent@backward,chance=0.01

\b
Exit codes: 0 all devices are clean, 3 a device is corrupt, 1 undecided, as the work is not reproducible.
"""

WORKLOAD = "decoder-small"
"""Large enough for the kernels of real training, small enough for several rounds on a CPU in a minute."""
STEPS = 3
"""Steps of a round: the third has updated parameters and an updated optimizer state."""
SHOWN = 5
"""Wrong results printed for each device; --json has more."""
UNDECIDED = 1


def command(
    workload: sdc_flags.Workload = None,
    steps: sdc_flags.Steps = None,
    seed: sdc_flags.Seed = 0,
    device: sdc_flags.Device = None,
    threads: sdc_flags.Threads = 1,
    seconds: sdc_flags.Seconds = 120,
    file: sdc_flags.FingerprintFile = None,
    against: sdc_flags.Against = None,
    faults: sdc_flags.Faults = None,
    as_json: flags.AsJson = False,
) -> None:
    """Test each device with real training work.

    TrainCheck executes rounds of matrix products and training steps. It compares their fingerprints with known ones
    (--against), with each other, and between devices of one kind.
    """
    from traincheck.sdc.environment import require_torch, set_variables
    from traincheck.sdc.faults.fault import parse_fault
    from traincheck.sdc.screening.reference_fingerprints import check_replaceable_reference, read_reference

    require_torch("traincheck sdc screen")
    steps = STEPS if steps is None else steps
    for name, value, least in (("--steps", steps, 1), ("--seed", seed, 0), ("--threads", threads, 1)):
        sdc_flags.at_least(name, value, least)
    sdc_flags.at_least("--seconds", seconds, 1)
    injected = tuple(parse_fault(text) for text in faults or ())
    reference = read_reference(against) if against is not None else None
    if file is not None:
        if injected:
            raise BadOption("-o", str(file), "no --fault: the fingerprints would be those of the fault")
        check_replaceable_reference(file)
    set_variables()
    from traincheck.sdc.screening.rounds import Screening, as_data

    screening = Screening(workload or WORKLOAD, steps, seed, threads, seconds, injected)
    screened, verdicts = _screen(screening, device, reference, against)
    if file is not None:
        _save(file, screening, screened, verdicts)
    if as_json:
        out_json(as_data(screening, screened, verdicts))
    else:
        for line in _lines(screening, screened, verdicts):
            out(line)
    raise typer.Exit(_code(verdicts))


def _screen(
    screening: Screening, device: str | None, reference: ReferenceFingerprints | None, against: Path | None
) -> tuple[Screened, list[dict[str, Any]]]:
    from traincheck.sdc.screening.rounds import devices_to_screen, screen
    from traincheck.sdc.screening.verdicts import judge

    def check(software: Mapping[str, str]) -> None:
        if reference is not None and against is not None:
            reference.check_comparable(against, screening.work, software)

    with Progress() as progress:
        screened = screen(screening, devices_to_screen(device), check, progress)
    return screened, judge(screened.devices, reference)


def _save(path: Path, screening: Screening, screened: Screened, verdicts: Sequence[Mapping[str, Any]]) -> None:
    from traincheck.sdc.screening.reference_fingerprints import write_reference
    from traincheck.sdc.screening.rounds import reference_from
    from traincheck.sdc.screening.verdicts import CLEAN

    clean = [rounds for rounds, verdict in zip(screened.devices, verdicts, strict=True) if verdict["verdict"] == CLEAN]
    if not clean:
        remark(f"no device is clean, so {path} was not written")
        return
    write_reference(reference_from(screening, clean[0]), path)
    remark(f"the fingerprints of {clean[0].device} are in {path}")


def _code(verdicts: Sequence[Mapping[str, Any]]) -> int:
    results = {verdict["verdict"] for verdict in verdicts}
    return FINDINGS if "corrupt" in results else UNDECIDED if "undecided" in results else 0


def _lines(screening: Screening, screened: Screened, verdicts: Sequence[Mapping[str, Any]]) -> Iterable[str]:
    for verdict in verdicts:
        software = verdict["software"]
        name = f"{software.get('name', software['device'])}, torch {software['torch']}"
        yield f"{verdict['device']} ({name}): {verdict['verdict'].upper()}"
        rounds = f"{amount(verdict['rounds'], 'round')} of {screening.workload} in {verdict['seconds']:.0f} s"
        compared = f"{amount(verdict['compared'], 'result')} compared with {verdict['against']}"
        yield f"  {rounds}, {compared}, {verdict['wrong']:,} wrong"
        rows = [(wrong["what"], wrong["reason"], f"round {wrong['round']}") for wrong in verdict["first_wrong"][:SHOWN]]
        yield from columns(rows, "    ")
        if verdict["verdict"] == "undecided":
            names = ", ".join(verdict["undetermined"])
            yield f"  Torch has no deterministic implementation of {names} here: the cause may be software."
            yield "  Run `traincheck sdc doctor`."
    if screened.interrupted:
        yield "Interrupted: these are the results of the completed rounds."
