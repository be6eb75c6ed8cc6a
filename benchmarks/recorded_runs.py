"""Records the example scripts once and reuses their run folders."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


def record(
    script: Path,
    folder: Path,
    args: Sequence[str] = (),
    edits: Mapping[str, str] | None = None,
    python: str = sys.executable,
) -> Path:
    """Record a script with `args` and `python` if the run folder is missing, and return the folder.

    `edits` are applied to a copy of the script, as a user would edit it; each must match. The copy keeps the name of
    the original. Raises SystemExit with the output of a failed program.
    """
    if (folder / "run.json").exists():
        return folder
    home = folder.parent / f"{folder.name}.script"
    home.mkdir(parents=True, exist_ok=True)
    text = script.read_text()
    for old, new in (edits or {}).items():
        if old not in text:
            raise SystemExit(f"{script.name} has no {old!r} to replace")
        text = text.replace(old, new)
    (home / script.name).write_text(text)
    print(f"recording {script.name} {' '.join(args)} {edits or ''}", file=sys.stderr, flush=True)
    command = [python, "-m", "traincheck", "collect", "-o", str(folder.resolve()), script.name, *args]
    # The TrainCheck of this checkout, even if the environment has another.
    paths = os.pathsep.join((str(ROOT / "src"), *filter(None, [os.environ.get("PYTHONPATH")])))
    environ = {**os.environ, "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"), "PYTHONPATH": paths}
    done = subprocess.run(command, capture_output=True, text=True, cwd=home, env=environ)
    if done.returncode:
        raise SystemExit(f"{script.name} failed:\n{done.stdout[-2000:]}{done.stderr[-4000:]}")
    return folder
