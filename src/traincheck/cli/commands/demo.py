"""`traincheck demo`: see it work, wherever it is installed, on two small programs that come with it."""

from __future__ import annotations

import difflib
import importlib.util
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import typer

from traincheck.cli import flags
from traincheck.cli.console import FINDINGS, out, remark
from traincheck.errors import MissingExtra, RunFolderInUse
from traincheck.options import ENVIRONMENT
from traincheck.runtime.launching import child_processes

EPILOG = """\b
Examples:
  traincheck demo
  traincheck demo -o try-it

Two programs are trained, a few seconds each on a CPU: a sound one, and one in which a single line stands in the wrong
place. Nothing is downloaded. Programs, recordings and reports stay in the folder, to be looked at.

Exit codes: 0 the error was found and the sound program passed, 1 not so, 2 PyTorch is missing or wrong usage.
"""

SCRIPTS = Path(__file__).resolve().parents[2] / "demo"
"""The programs, as texts: they import torch, which no module of ours does on its own."""
NAMES = {"sound": 0, "broken": FINDINGS}
"""The programs, and how `traincheck run` has to end on them."""


def command(out: flags.DemoFolder = None) -> None:
    """See it work: a sound program, and a broken one.

    Trains both under `traincheck run`, against the packs that come with it.
    """
    raise typer.Exit(demo(out))


def demo(folder: Path | None = None) -> int:
    """Write the programs, check both while they train, and say where to look; the exit code."""
    if importlib.util.find_spec("torch") is None:
        raise MissingExtra("traincheck demo", "torch", "pip install torch")
    home = _made(folder)
    for name in NAMES:
        (home / f"{name}.py").write_text(program(name), encoding="utf-8")
    out(f"Two programs in {home}, which differ in one line:\n")
    out(difference())
    unexpected = [name for name, code in NAMES.items() if _run(home, name) != code]
    if unexpected:
        remark(f"the demo did not end as it should: see {', '.join(str(home / 'runs' / name) for name in unexpected)}")
        return 1
    out("\nThe broken program ends with a lower loss than the sound one. Nobody wrote the rule that it breaks: it was")
    out(
        "learned from other programs. Open the report in a browser, and then put two words before a command of yours:\n"
    )
    out(f"  {home / 'runs' / 'broken' / 'report.html'}")
    out("  traincheck run YOUR_SCRIPT.py")
    return 0


def program(name: str) -> str:
    """The text of a program."""
    return (SCRIPTS / f"{name}.txt").read_text(encoding="utf-8")


def difference() -> str:
    """What is not the same in the two programs."""
    sound, broken = (program(name).splitlines() for name in NAMES)
    lines = difflib.unified_diff(sound, broken, "sound.py", "broken.py", lineterm="", n=1)
    return "\n".join(f"  {line}" for line in lines)


def _made(folder: Path | None) -> Path:
    """The folder, empty. Raises RunFolderInUse where there is something in it."""
    if folder is None:
        return Path(tempfile.mkdtemp(prefix="traincheck-demo-"))
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise RunFolderInUse(folder)
    folder.mkdir(parents=True, exist_ok=True)
    return folder.absolute()


def _run(home: Path, name: str) -> int:
    """Check one of them while it trains, as somebody would who types it there; the exit code."""
    words = ["run", "-o", f"runs/{name}", f"{name}.py"]
    out(f"\n$ traincheck {' '.join(words)}")
    sys.stdout.flush()  # before the child writes to the same place
    # What is set here for the user's own runs (a book, alerts) is not for these.
    plain = {
        key: value for key, value in child_processes.detached(os.environ).items() if not key.startswith(ENVIRONMENT)
    }
    return subprocess.run([sys.executable, "-m", "traincheck", *words], cwd=home, env=plain, check=False).returncode
