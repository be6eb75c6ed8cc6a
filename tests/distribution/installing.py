"""An environment into which the wheel was installed, far from any clone."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


class Installed:
    """An environment with the wheel and what it depends on; no torch."""

    def __init__(self, home: Path, wheel: Path) -> None:
        self.home, self.work = home / "venv", home / "work"
        self.work.mkdir()
        subprocess.run([sys.executable, "-m", "venv", str(self.home)], check=True)
        self.python = self.home / "bin" / "python"
        done = self.start(self.python, "-m", "pip", "install", "--quiet", "--no-compile", wheel)
        assert done.returncode == 0, done.stdout + done.stderr

    def start(self, *words: object) -> subprocess.CompletedProcess[str]:
        """Start a program with nothing of the tests' own environment."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "TRAINCHECK_"))}
        return subprocess.run(
            list(map(str, words)),
            cwd=self.work,
            env={**kept, "OMP_NUM_THREADS": "1", "COLUMNS": "100"},
            capture_output=True,
            text=True,
        )

    def does(self, *words: object, code: int = 0) -> str:
        """Run the installed `traincheck`; it must end with this exit code and without a traceback. Return its
        output."""
        done = self.start(self.home / "bin" / "traincheck", *words)
        assert done.returncode == code, f"{words}: {done.returncode}\n{done.stdout}{done.stderr}"
        assert "Traceback" not in done.stderr, done.stderr
        return done.stdout + done.stderr

    def lend_torch(self) -> None:
        """Let it find the packages of the tests' own environment, behind its own."""
        import torch

        (packages,) = self.home.glob("lib/python*/site-packages")
        (packages / "lent.pth").write_text(str(Path(torch.__file__).parents[1]))
