"""Everything but the sources, what finds corruption and the callbacks of frameworks works without torch."""

from __future__ import annotations

import subprocess
import sys

from repository import MODULES, SRC, module_name

BLOCKED = """
import sys

class Blocker:
    def find_spec(self, name, path=None, target=None):
        package = name.split(".")[0]
        if package in BLOCKED:
            raise ModuleNotFoundError(f"No module named {package!r}", name=package)

sys.meta_path.insert(0, Blocker())
"""


OF_FRAMEWORKS = {"hugging_face.py", "lightning.py", "accelerate.py"}
"""Their frameworks import torch."""


def python(text: str, without: str = "torch") -> subprocess.CompletedProcess[str]:
    """Run `text` in a Python in which a package cannot be imported."""
    whole = f"BLOCKED = {{{without!r}}}\n{BLOCKED}{text}"
    return subprocess.run([sys.executable, "-c", whole], capture_output=True, text=True, check=False)


def test_modules_are_imported_without_torch() -> None:
    left_out = {"__main__.py", "sitecustomize.py", *OF_FRAMEWORKS}
    names = [
        module_name(path)
        for path in MODULES
        if not {"sources", "sdc"} & set(path.relative_to(SRC).parts) and path.name not in left_out
    ]
    lines = "".join(f"import {name}\n" for name in names)
    done = python(f"{lines}assert 'torch' not in sys.modules\n")
    assert done.returncode == 0, done.stderr


def test_import_of_the_package_brings_nothing_large() -> None:
    large = ("torch", "numpy", "pyarrow", "rich", "typer", "jinja2")
    done = python(f"import traincheck\nprint([name for name in {large!r} if name in sys.modules])\n")
    assert done.stdout.strip() == "[]", done.stdout + done.stderr


def test_commands_report_missing_torch_and_help_works_without_it() -> None:
    lines = "from traincheck.cli.main import main\n"
    for name in ("doctor", "study", "screen"):
        done = python(f"{lines}sys.exit(main(['sdc', '{name}']))\n")
        assert done.returncode == 2 and "pip install 'traincheck[torch]'" in done.stderr, done.stderr
    done = python(f"{lines}assert main(['sdc', 'study', '--help']) == 0\nassert 'torch' not in sys.modules\n")
    assert done.returncode == 0, done.stderr


def test_commands_report_missing_jax() -> None:
    lines = "from traincheck.cli.main import main\n"
    for name in ("doctor", "study"):
        done = python(f"{lines}sys.exit(main(['sdc', '{name}', '--framework', 'xla']))\n", without="jax")
        assert done.returncode == 2 and "pip install 'traincheck[xla]'" in done.stderr, done.stderr
