"""`traincheck packs`: list, print and build packs of rules."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from traincheck import config as configs
from traincheck.cli import flags, output_files
from traincheck.cli.commands import infer
from traincheck.cli.console import Progress, amount, columns, out, out_json, remark, say
from traincheck.cli.help_format import PlainCommand
from traincheck.errors import BadOption

if TYPE_CHECKING:
    from traincheck.inference.pack_building import Packed
    from traincheck.invariants.packs import Pack, Packs

EPILOG = """\b
Examples:
  traincheck packs list
  traincheck packs show mixed-precision
  traincheck packs build runs/* -o team-packs --themes themes.toml --release 3
  traincheck run --packs shipped --packs team-packs train.py
"""

LIST_EPILOG = """\b
Examples:
  traincheck packs list
  traincheck packs list --packs s3://team/packs --json
"""

SHOW_EPILOG = """\b
Examples:
  traincheck packs show general
  traincheck packs show distributed --packs team-packs --json
"""

BUILD_EPILOG = """\b
Examples:
  traincheck packs build runs/* -o packs
  traincheck packs build monday.tally runs/tuesday -o packs --themes themes.toml --release 3

Record good runs of several different programs. TrainCheck drops rules that only one program supports; a rule that
three programs support is an error. A theme gives the rules of some programs a pack of their own:

\b
  name = "team"
  torch = "2.4"
  least_programs = 3

\b
  [themes.speech]
  about = "Recurrent models of speech"
  programs = ["asr_*.py", "torchrun tts.py"]
  uses = ["torchaudio"]

TrainCheck uses this pack for programs that import one of the packages in `uses`, and with `ranks = 2` for programs of
at least two ranks. To share packs, put the folder where others can read it. They name it with --packs, and pin it with
FOLDER#sha256=DIGEST.
"""

HEAD = ("pack", "rules", "errors", "programs", "steps", "for", "about")

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    epilog=EPILOG,
    help="List, print and build packs of rules.",
)


def _configured(options: Mapping[str, Any]) -> list[Packs]:
    from traincheck.invariants.packs import SHIPPED, read_packs
    from traincheck.runtime.launching.rule_selection import packs_of

    config = configs.load(options, os.environ, Path.cwd())
    # With a configured book no pack is used; show the shipped ones all the same.
    return [read_packs(address) for address in packs_of(config) or [str(SHIPPED)]]


@app.command("list", cls=PlainCommand, epilog=LIST_EPILOG)
@flags.shared_options("packs")
def list_command(as_json: flags.AsJson = False, **options: Any) -> None:
    """List the packs and the programs that they are for.

    The list has the number of rules, and of the programs and steps they were learned from.
    """
    collections = _configured(options)
    if as_json:
        out_json([_data(collection) for collection in collections])
        return
    for collection in collections:
        manifest = collection.manifest
        versions = ", ".join(f"{name} {version}" for name, version in sorted(manifest.made_with.items()))
        out(f"{manifest.name} {manifest.version}, in {collection.home}: made with {versions}")
        for line in columns([HEAD, *map(_row, manifest.packs)]):
            out(line)


def _row(pack: Pack) -> tuple[str, ...]:
    audience = [f"{pack.ranks} ranks and more"] if pack.ranks > 1 else []
    audience += [" or ".join(pack.uses)] if pack.uses else []
    counts = (pack.rules, pack.errors, pack.programs, pack.steps)
    return pack.name, *(f"{count:,}" for count in counts), ", ".join(audience) or "all", pack.about


def _data(packs: Packs) -> dict[str, object]:
    import msgspec

    return {"place": str(packs.home), **msgspec.to_builtins(packs.manifest)}


@app.command("show", cls=PlainCommand, epilog=SHOW_EPILOG)
@flags.shared_options("packs")
def show_command(name: flags.PackName, text: flags.Text = None, as_json: flags.AsJson = False, **options: Any) -> None:
    """Print the rules of a pack, and its programs.

    TrainCheck learned the rules from good runs of these programs.
    """
    from traincheck.cli.commands.show import print_rules
    from traincheck.reporting.phrases import MAX_PROGRAMS, listed

    collections = _configured(options)
    for collection in collections:
        for pack in collection.manifest.packs:
            if pack.name == name:
                book = collection.book(pack)
                if not as_json:
                    out(f"{pack.name}: {pack.about}" if pack.about else pack.name)
                    programs = sorted({run.script for run in book.runs})
                    out(f"learned from {amount(len(programs), 'program')}: {listed(programs, MAX_PROGRAMS)}")
                print_rules(book.invariants, text or "", as_json)
                return
    names = ", ".join(pack.name for collection in collections for pack in collection.manifest.packs)
    raise BadOption("packs show", name, f"one of {names}")


@app.command("build", cls=PlainCommand, epilog=BUILD_EPILOG)
def build_command(
    runs: flags.Recordings,
    folder: flags.PacksFolder,
    themes: flags.Themes = None,
    release: flags.Release = "1",
    jobs: flags.Jobs = None,
) -> None:
    """Make packs from good runs of several programs.

    TrainCheck learns one book from all runs and divides it by themes.
    """
    raise typer.Exit(build(runs, folder, themes, release, jobs))


def build(names: Sequence[str], folder: Path, themes: Path | None, release: str, jobs: int | None) -> int:
    """Learn, write the packs into `folder`, and print their sizes."""
    from traincheck.addresses import readable_path
    from traincheck.inference.pack_building import Themes, build_packs, read_themes, stale_books, write_packs
    from traincheck.inference.tally_runs import gather

    assignment = read_themes(themes) if themes is not None else Themes()
    runs = [readable_path(name, "packs build") for name in names]
    output_files.may_hold_packs(folder)
    with Progress() as progress:
        gathered = gather(runs, progress, infer.checked_jobs(jobs, runs))
        progress("weighing candidates", 0, 0)
        packed = build_packs(gathered.tallies, assignment, release)
    for line in gathered.remarks:
        remark(line)
    if not packed.books:
        programs = len({tally.script for tally in gathered.tallies})
        expected = f"runs of several programs with common rules (these are runs of {programs})"
        raise BadOption("packs build", " ".join(names), expected)
    old = stale_books(folder, packed)
    write_packs(packed, folder)
    for path in old:
        path.unlink(missing_ok=True)
    _report_built(packed, folder)
    return 0


def _report_built(packed: Packed, folder: Path) -> None:
    import hashlib

    from traincheck.invariants.packs import MANIFEST

    for line in columns([HEAD, *map(_row, packed.manifest.packs)]):
        say(line)
    digest = hashlib.sha256((folder / MANIFEST).read_bytes()).hexdigest()
    remark(f"{amount(sum(pack.rules for pack in packed.manifest.packs), 'rule')} in {folder}#sha256={digest}")
