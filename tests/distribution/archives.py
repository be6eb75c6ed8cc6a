"""Checks the files in the wheel and the source archive.

`make dist` runs this file on the folder into which it built both.
"""

from __future__ import annotations

import json
import re
import sys
import tarfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "traincheck"
ALWAYS = (
    "traincheck/py.typed",
    "traincheck/packs/packs.json",
    "traincheck/demo/sound.txt",
    "traincheck/demo/broken.txt",
    "traincheck/reporting/html/templates/report.html.j2",
    "traincheck/reporting/html/templates/report.css",
    "traincheck/reporting/html/templates/report.js",
    "traincheck/reporting/study/templates/study.html.j2",
)
"""Data without which a command fails, or a type checker sees no types."""
OF_WHEELS = {"METADATA", "WHEEL", "RECORD", "entry_points.txt", "licenses/LICENSE"}
SUFFIXES = {".py", ".jsonl", ".json", ".j2", ".css", ".js", ".txt", ".typed"}
TOP = {
    *(".ci", ".gitignore", "CHANGELOG.md", "CONTRIBUTING.md", "LICENSE", "Makefile", "PKG-INFO", "README.md"),
    *("benchmarks", "constraints.txt", "docs", "examples", "mkdocs.yml", "pyproject.toml", "src", "tests"),
}
"""The top-level files of the source archive. With them, `make test` works as in a clone."""
NEVER = re.compile(
    r"__pycache__|\.py[co]$|\.actual$|(^|/)(runs|traincheck-runs|\.venv|build|dist|\.[a-z]+_cache)/|\.so$"
)


def of_package() -> set[str]:
    """The files of the package, as they lie on this disk, by their names in a wheel."""
    paths = {path.relative_to(PACKAGE.parent).as_posix() for path in PACKAGE.rglob("*") if path.is_file()}
    return {path for path in paths if not NEVER.search(path)}


def faults_of_wheel(path: Path) -> list[str]:
    """Return the errors in the contents of a wheel."""
    with zipfile.ZipFile(path) as archive:
        names = set(archive.namelist())
        packs = json.loads(archive.read("traincheck/packs/packs.json")) if ALWAYS[1] in names else {}
    notes = {name for name in names if re.match(r"traincheck-[^/]+\.dist-info/", name)}
    code = names - notes
    faults = [f"{name} is missing" for name in sorted({*ALWAYS, *of_package()} - code)]
    faults += [f"{name} should not be there" for name in sorted(code - of_package())]
    faults += [
        f"{name} is a file of no known kind" for name in sorted(code) if Path(name).suffix not in SUFFIXES | {""}
    ]
    faults += [f"pack {file} is missing" for file in files_of(packs) if f"traincheck/packs/{file}" not in names]
    if {name.partition("/")[2] for name in notes} != OF_WHEELS:
        faults.append(f"the notes are {sorted(notes)}")
    return faults


def files_of(packs: object) -> list[str]:
    """The names of files in the manifest of the packs."""
    return sorted(set(re.findall(r'"([\w-]+\.jsonl)"', json.dumps(packs))))


def faults_of_source(path: Path) -> list[str]:
    """Return the errors in the contents of a source archive."""
    with tarfile.open(path) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    faults = [f"{name} should not be there" for name in sorted(names) if NEVER.search(name)]
    top = {name.partition("/")[0] for name in names}
    faults += [f"{name} is missing" for name in sorted(TOP - top)]
    faults += [f"{name} should not be there" for name in sorted(top - TOP)]
    faults += [f"src/{name} is missing" for name in sorted(of_package()) if f"src/{name}" not in names]
    return faults


def main(folder: Path) -> int:
    """Look at the archives in a folder, one of each kind; the exit code."""
    faults = []
    for pattern, look in (("*.whl", faults_of_wheel), ("*.tar.gz", faults_of_source)):
        files = list(folder.glob(pattern))
        faults += [f"{len(files)} files {pattern} in {folder}, not one"] if len(files) != 1 else []
        for path in files:
            messages = look(path)
            faults += [f"{path.name}: {fault}" for fault in messages]
            print(f"{path}: {path.stat().st_size / 1e3:,.0f} kB")
    for fault in faults:
        print(fault, file=sys.stderr)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
