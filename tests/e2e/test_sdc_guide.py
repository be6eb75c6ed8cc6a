"""The blocks of "Silent data corruption" do what it says."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BLOCK = re.compile(r"^```(bash|python)\n(.*?)^```", re.MULTILINE | re.DOTALL)
BLOCKS = BLOCK.findall((ROOT / "docs" / "sdc.md").read_text(encoding="utf-8"))


def test_a_fault_is_put_in(tmp_path: Path) -> None:
    program = next(text for kind, text in BLOCKS if kind == "python")
    (tmp_path / "program.py").write_text(program)
    done = subprocess.run([sys.executable, "program.py"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout.split()[0]) > 2 and "Hit(step=" in done.stdout
