"""The code of docs/extend/sources.md runs, and an installed package provides its source."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from traincheck.trace.folder import RunFolder

GUIDE = Path(__file__).resolve().parents[2] / "docs" / "extend" / "sources.md"
BLOCK = re.compile(r"^```(python|toml)\n(.*?)^```", re.MULTILINE | re.DOTALL)
TEXT = GUIDE.read_text(encoding="utf-8")
BLOCKS = BLOCK.findall(TEXT)
LIBRARY, SOURCE, *_ = (text for kind, text in BLOCKS if kind == "python")
PROVES = next(text for kind, text in BLOCKS if "check_source" in text)

SCRIPT = """
import tiny_optim
import torch

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
optimizer = tiny_optim.SignSGD(model.parameters())
for step in range(5):
    model(torch.randn(16, 4)).pow(2).mean().backward()
    optimizer.step()
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A script, and the library and the package of the guide next to the installed ones."""
    site = tmp_path / "site"
    info = site / "my_package-1.0.dist-info"
    info.mkdir(parents=True)
    (site / "my_package").mkdir()
    (site / "my_package" / "__init__.py").write_text("")
    (site / "my_package" / "tiny_optim_source.py").write_text(SOURCE)
    (site / "tiny_optim.py").write_text(LIBRARY)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: my-package\nVersion: 1.0\n")
    (entry,) = (block for kind, block in BLOCKS if kind == "toml")
    (info / "entry_points.txt").write_text(
        entry.replace('[project.entry-points."traincheck.sources"]', "[traincheck.sources]").replace('"', "")
    )
    (tmp_path / "train.py").write_text(SCRIPT)
    return tmp_path


def run(project: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run Python with the package."""
    path = os.pathsep.join([str(project / "site"), os.environ.get("PYTHONPATH", "")])
    environ = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    return subprocess.run([sys.executable, *words], cwd=project, env=environ, capture_output=True, text=True)


def test_guide(project: Path) -> None:
    """All blocks run in order, and the test at the end passes."""
    code = "\n".join(text for kind, text in BLOCKS if kind == "python")
    (project / "guide.py").write_text(f"{code}\ntest_my_source()\n")
    done = run(project, "guide.py")
    assert done.returncode == 0, done.stderr


def test_the_guide_shows_the_template() -> None:
    template = Path(sys.modules["traincheck"].__path__[0]) / "sources" / "template.py"

    def statements(text: str) -> Iterator[str]:
        """The lines that the guide keeps: no docstrings, annotations or comments."""
        for line in text.splitlines():
            plain = re.sub(r": (SourceToolkit|Demand|Recorder)\b| -> [\w| ]+(?=:$)|  # .*", "", line).strip()
            if plain and not plain.startswith('"""'):
                yield plain.replace("LIBRARY", '"tiny_optim"')

    body = template.read_text(encoding="utf-8").partition("DECLARATION =")[2]
    assert list(statements(SOURCE.partition("DECLARATION =")[2])) == list(statements(body))


def test_a_package_brings_a_source(project: Path) -> None:
    done = run(project, "-m", "traincheck", "collect", "-o", "run", "train.py")
    assert done.returncode == 0 and "recorded 5 steps" in done.stderr + done.stdout, done.stdout + done.stderr
    windows = [window for _, read in RunFolder.open(project / "run").windows() for window in read]
    updates = [call for window in windows for call in window.calls if "tiny_optim.SignSGD.step" in call.levels]
    updates = [call for call in updates if "torch.optim.Optimizer.step" in call.levels]
    assert len(updates) == 5
    doctor = run(project, "-m", "traincheck", "doctor")
    assert "tiny_optim" in doctor.stdout, doctor.stdout + doctor.stderr


def test_a_package_with_a_broken_source_stops_the_command(project: Path) -> None:
    (project / "site" / "my_package" / "tiny_optim_source.py").write_text("DECLARATION = 1\n")
    done = run(project, "-m", "traincheck", "collect", "-o", "run", "train.py")
    assert done.returncode == 2 and "error [plugin]" in done.stderr, done.stderr
    assert "is no SourceDeclaration but int" in done.stderr and not (project / "run").exists()
