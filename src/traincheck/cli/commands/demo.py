"""`traincheck demo`: check two small programs, of which one is broken."""

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

TrainCheck trains two programs, a few seconds each on a CPU: a sound one, and one with a single misplaced line. It
downloads nothing. Programs, recordings and reports stay in the folder.

Exit codes: 0 TrainCheck found the error and passed the sound program, 1 it did not, 2 PyTorch is missing or wrong
usage.
"""

SCRIPTS = Path(__file__).resolve().parents[2] / "demo"
"""The programs, as texts: they import torch, and TrainCheck's modules must not."""
NAMES = {"sound": 0, "broken": FINDINGS}
"""The programs, and the exit code of `traincheck run` on each."""


def command(out: flags.DemoFolder = None) -> None:
    """Try TrainCheck on a sound and a broken program.

    It trains both under `traincheck run`, against the shipped packs.
    """
    raise typer.Exit(demo(out))


def demo(folder: Path | None = None) -> int:
    """Write the programs, check both while they train, and name the reports; the exit code."""
    if importlib.util.find_spec("torch") is None:
        raise MissingExtra("traincheck demo", "torch", "pip install torch")
    home = _empty_folder(folder)
    for name in NAMES:
        (home / f"{name}.py").write_text(program(name), encoding="utf-8")
    out(f"Two programs in {home} differ in one line:\n")
    out(difference())
    unexpected = [name for name, code in NAMES.items() if _run(home, name) != code]
    if unexpected:
        folders = ", ".join(str(home / "runs" / name) for name in unexpected)
        remark(f"the demo did not give the expected results: see {folders}")
        return 1
    out("\nThe broken program ends with a lower loss than the sound one. TrainCheck learned the rule that it breaks")
    out("from other programs. Open the report in a browser, and then check a program of yours:\n")
    out(f"  {home / 'runs' / 'broken' / 'report.html'}")
    out("  traincheck run YOUR_SCRIPT.py")
    return 0


def program(name: str) -> str:
    """The text of a program."""
    return (SCRIPTS / f"{name}.txt").read_text(encoding="utf-8")


def difference() -> str:
    """The difference of the two programs."""
    sound, broken = (program(name).splitlines() for name in NAMES)
    lines = difflib.unified_diff(sound, broken, "sound.py", "broken.py", lineterm="", n=1)
    return "\n".join(f"  {line}" for line in lines)


def _empty_folder(folder: Path | None) -> Path:
    """The folder, which must be empty, or a temporary one. Raises RunFolderInUse."""
    if folder is None:
        return Path(tempfile.mkdtemp(prefix="traincheck-demo-"))
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise RunFolderInUse(folder)
    folder.mkdir(parents=True, exist_ok=True)
    return folder.absolute()


def _run(home: Path, name: str) -> int:
    """Run `traincheck run` on a program, as you would type it; the exit code."""
    words = ["run", "-o", f"runs/{name}", f"{name}.py"]
    out(f"\n$ traincheck {' '.join(words)}")
    sys.stdout.flush()  # before the child writes to the same place
    # The user's own settings (a book, alerts) do not apply to the demo.
    plain = {
        key: value for key, value in child_processes.detached(os.environ).items() if not key.startswith(ENVIRONMENT)
    }
    return subprocess.run([sys.executable, "-m", "traincheck", *words], cwd=home, env=plain, check=False).returncode
