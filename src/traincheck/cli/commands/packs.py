"""`traincheck packs`: the books that come with TrainCheck, those of a team, and how to make some."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

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

Record good runs of programs as different as your team's are: rules that only one of them bears out are left out, and a
rule is an error where three do. A theme puts rules that only some programs show into a pack of their own:

\b
  name = "team"
  torch = "2.4"

\b
  [themes.speech]
  about = "Recurrent models of speech"
  programs = ["asr_*.py", "torchrun tts.py"]
  uses = ["torchaudio"]

Such a pack is used for programs that import one of the packages it uses, and that have as many ranks as it says (ranks
= 2). To share packs, put the folder where others reach it; they name it with --packs, FOLDER#sha256=DIGEST to make sure
that it is this one.
"""

HEAD = ("pack", "rules", "errors", "programs", "steps", "for", "about")

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    epilog=EPILOG,
    help="Tell of the books that come with TrainCheck, and make packs.",
)


def _configured(packs: Sequence[str] | None) -> list[Packs]:
    from traincheck.invariants.packs import SHIPPED, read_packs
    from traincheck.runtime.launching.rule_selection import packs_of

    config = configs.load({"packs": tuple(packs or ()) or None}, os.environ, Path.cwd())
    # Those that would be used, or could be: a book that is configured takes the place of the shipped ones.
    return [read_packs(place) for place in packs_of(config) or [str(SHIPPED)]]


@app.command("list", cls=PlainCommand, epilog=LIST_EPILOG)
def list_command(packs: flags.Packs = None, as_json: flags.AsJson = False) -> None:
    """Tell which packs there are, and for whom they are.

    With how much they say, and what they were learned from.
    """
    found = _configured(packs)
    if as_json:
        out_json([_data(each) for each in found])
        return
    for each in found:
        told = each.manifest
        with_ = ", ".join(f"{name} {version}" for name, version in sorted(told.made_with.items()))
        out(f"{told.name} {told.version}, in {each.home}: made with {with_}")
        for line in columns([HEAD, *map(_row, told.packs)]):
            out(line)


def _row(pack: Pack) -> tuple[str, ...]:
    whom = [f"{pack.ranks} ranks and more"] if pack.ranks > 1 else []
    whom += [" or ".join(pack.uses)] if pack.uses else []
    counts = (pack.rules, pack.errors, pack.programs, pack.steps)
    return pack.name, *(f"{count:,}" for count in counts), ", ".join(whom) or "all", pack.about


def _data(packs: Packs) -> dict[str, object]:
    import msgspec

    return {"place": str(packs.home), **msgspec.to_builtins(packs.manifest)}


@app.command("show", cls=PlainCommand, epilog=SHOW_EPILOG)
def show_command(
    name: flags.PackName,
    packs: flags.Packs = None,
    text: flags.Text = None,
    relation: flags.Relation = None,
    severity: flags.Severity = None,
    as_json: flags.AsJson = False,
) -> None:
    """Print the rules of a pack, and its programs.

    These are the programs that the rules were learned from.
    """
    from traincheck.cli.commands.show import print_rules

    several = _configured(packs)
    for each in several:
        for pack in each.manifest.packs:
            if pack.name == name:
                book = each.book(pack)
                if not as_json:
                    out(f"{pack.name}: {pack.about}" if pack.about else pack.name)
                    out(f"learned from {', '.join(sorted({run.script for run in book.runs}))}")
                print_rules(book.invariants, text or "", relation or "", severity or "", as_json)
                return
    known = ", ".join(pack.name for each in several for pack in each.manifest.packs)
    raise BadOption("packs show", name, f"one of {known}")


@app.command("build", cls=PlainCommand, epilog=BUILD_EPILOG)
def build_command(
    runs: flags.Recordings,
    folder: flags.PacksFolder,
    themes: flags.Themes = None,
    release: flags.Release = "1",
    jobs: flags.Jobs = None,
) -> None:
    """Make packs from good runs of several programs.

    The book that is learned from all of them is taken apart by themes.
    """
    raise typer.Exit(build(runs, folder, themes, release, jobs))


def build(named: Sequence[str], folder: Path, themes: Path | None, release: str, jobs: int | None) -> int:
    """Learn, write the packs into `folder`, and say what they hold."""
    from traincheck.addresses import readable_place
    from traincheck.inference.pack_building import Themes, left_over, pack, read_themes, write_packs
    from traincheck.inference.tally_runs import gather

    chosen = read_themes(themes) if themes is not None else Themes()
    runs = [readable_place(one, "packs build") for one in named]
    output_files.may_hold_packs(folder)
    with Progress() as progress:
        gathered = gather(runs, progress, infer.workable(jobs, runs))
        progress("weighing candidates", 0, 0)
        packed = pack(gathered.tallies, chosen, release)
    for line in gathered.remarks:
        remark(line)
    if not packed.books:
        programs = len({tally.script for tally in gathered.tallies})
        raise BadOption(
            "packs build", " ".join(named), f"runs of several programs that have something in common (not {programs})"
        )
    old = left_over(folder, packed)
    write_packs(packed, folder)
    for path in old:
        path.unlink(missing_ok=True)
    _say_built(packed, folder)
    return 0


def _say_built(packed: Packed, folder: Path) -> None:
    import hashlib

    from traincheck.invariants.packs import MANIFEST

    for line in columns([HEAD, *map(_row, packed.manifest.packs)]):
        say(line)
    digest = hashlib.sha256((folder / MANIFEST).read_bytes()).hexdigest()
    remark(f"{amount(sum(pack.rules for pack in packed.manifest.packs), 'rule')} in {folder}#sha256={digest}")
