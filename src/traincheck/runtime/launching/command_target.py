"""Parses the command line into your program: a script, a module or a command."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import sys
import warnings
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from traincheck.errors import CommandNotFound, NoTarget, NotAScript, ScriptNotFound
from traincheck.files import project_of

COMPILED = (".pyc",)
SOURCE = (".py", ".pyw")
INTERPRETER = re.compile(r"python[\d.]*")
HEAD = 1 << 16
"""Bytes to search for a zero byte, which a binary file has and text has not."""


@dataclass(frozen=True, slots=True)
class Target:
    """`script.py args`, `-m module args` or `-- command args`. `words` starts with the script, module or command."""

    kind: Literal["script", "module", "command"]
    words: tuple[str, ...]

    @classmethod
    def parse(cls, words: Sequence[str]) -> Target:
        """The target that `words` name, with its arguments unchanged. Raises NoTarget.

        A first word that is a program on the PATH (python, torchrun) and not a file begins a command, even without
        `--`.
        """
        first, rest = (words[0], tuple(words[1:])) if words else ("", ())
        if first == "--":
            target = cls("command", rest)
        elif first == "-m":
            target = cls("module", rest)
        elif first.startswith("-m") and not first.startswith("--"):
            target = cls("module", (first[2:], *rest))
        else:
            target = cls("command" if _is_program(first) else "script", tuple(words))
        if not target.words or not target.words[0]:
            raise NoTarget
        return target

    @classmethod
    def running(cls, name: str = "") -> Target:
        """The program of this process, from its command line; `name` or `notebook` if there is none."""
        main = sys.modules.get("__main__")
        spec, file = getattr(main, "__spec__", None), getattr(main, "__file__", None)
        if name or not file:
            return cls("script", (name or "notebook",))
        if spec is not None:
            return cls("module", (spec.name.removesuffix(".__main__"), *sys.argv[1:]))
        return cls("script", (sys.argv[0] if Path(sys.argv[0]).is_file() else file, *sys.argv[1:]))

    @property
    def name(self) -> str:
        """A short name for messages and folders: `train` for `dir/train.py`, `-m pkg.train` and `-- bash train.sh`."""
        word = self.words[0]
        if self.kind == "module":
            return word.rpartition(".")[2]
        path = self.file or Path(word) if self.kind == "command" else Path(word)
        return path.stem or path.resolve().stem

    def argv(self, python: str) -> list[str]:
        """The command that starts the target. `python` is the interpreter for a script or module."""
        if self.kind == "script":
            return [python, *self.words]
        if self.kind == "module":
            return [python, "-m", *self.words]
        return list(self.words)

    def project(self, cwd: Path, search: str = "") -> tuple[str, ...]:
        """Absolute folders with your own code.

        This is the project around the script's folder. For a module or a command, it is the project around the working
        directory, and around the script that the command names. See `own_code`. `search` is the value of PYTHONPATH.
        """
        folders = [] if self.kind == "script" else [cwd.resolve()]
        file = cwd / self.words[0] if self.kind == "script" else self.file if self.kind == "command" else None
        if file is not None and (self.kind == "script" or file.suffix in SOURCE):
            script = (cwd / file).resolve()
            folders.append(script if script.is_dir() else script.parent)
        return tuple(dict.fromkeys(str(own_code(folder, search)) for folder in folders))

    @property
    def script(self) -> str:
        """The program's name in books and reports: `dir/train.py`, `-m module`, or for a command `torchrun train.py`.

        Only the last part of an absolute path is used, so that books are the same on every machine.
        """
        if self.kind == "module":
            return f"-m {self.words[0]}"
        parts = [Path(self.words[0]), *([self.file] if self.kind == "command" and self.file else [])]
        return " ".join(path.name if path.is_absolute() else str(path) for path in parts)

    @property
    def file(self) -> Path | None:
        """The program's main file; None if the command line does not name it."""
        if self.kind == "command":
            return next((Path(word) for word in self.words[1:] if Path(word).is_file()), None)
        path = Path(self.words[0])
        if self.kind == "module":
            path = Path(*self.words[0].split("."))
            path = path / "__main__.py" if path.is_dir() else path.with_name(f"{path.name}.py")
        elif path.is_dir():
            path = path / "__main__.py"
        return path if path.is_file() else None

    @property
    def digest(self) -> str:
        """The SHA-256 of `file` in hex digits, or an empty string. It distinguishes scripts of the same name."""
        try:
            return hashlib.sha256(self.file.read_bytes()).hexdigest() if self.file else ""
        except OSError:
            return ""

    def check(self, environ: Mapping[str, str]) -> None:
        """Raise ScriptNotFound, NotAScript or CommandNotFound if the start is certain to fail.

        Python itself reports syntax errors in .py files and missing modules.
        """
        if self.kind == "script":
            check_script(Path(self.words[0]))
        elif self.kind == "command" and shutil.which(self.words[0], path=environ.get("PATH", os.defpath)) is None:
            raise CommandNotFound(self.words[0])


def own_code(folder: Path, search: str = "") -> Path:
    """The outermost folder of your own code around `folder`, an absolute path.

    This is the folder of the project (a repository, a package with its set-up), or a folder on PYTHONPATH (`search`),
    or `folder` itself. It is never the root, a home folder or a folder above it, because these hold much more than the
    project. It never reaches across a folder of installed packages, which holds other people's code.
    """
    marked = project_of(folder)
    listed = [Path(entry).resolve() for entry in search.split(os.pathsep) if entry]
    around = [marked] if marked is not None else [entry for entry in listed if entry in folder.parents]
    home = Path(os.path.expanduser("~")).resolve()  # noqa: PTH111 - it never raises where no home is known
    for candidate in around:
        is_wide = candidate == candidate.parent or candidate == home or candidate in home.parents
        between = folder.relative_to(candidate).parts
        if not is_wide and not any(part in ("site-packages", "dist-packages") for part in between):
            return candidate
    return folder


def _is_program(word: str) -> bool:
    """Whether a word names a program to run: an interpreter, or a program on the PATH that is not a file here."""
    path = Path(word)
    if path.exists():
        return path.is_file() and INTERPRETER.fullmatch(path.name) is not None
    return bool(word) and shutil.which(word) is not None


def check_script(path: Path) -> None:
    """Raise ScriptNotFound or NotAScript unless Python could run `path`."""
    if not path.exists():
        raise ScriptNotFound(path)
    if path.is_dir():
        if not (path / "__main__.py").is_file():
            raise NotAScript(path, "a folder without a __main__.py")
    elif path.is_file() and path.suffix not in COMPILED:  # pipes and devices are not read here
        reason = _no_source(path)
        if reason and not _runnable_archive(path):
            raise NotAScript(path, reason)


def _no_source(path: Path) -> str:
    """The reason why the file is not Python source, or an empty string."""
    try:
        with path.open("rb") as file:
            head = file.read(HEAD)
            if b"\0" in head:
                return "it is a binary file"
            source = head if path.suffix in SOURCE else head + file.read()
    except OSError as error:
        return error.strerror or str(error)
    if path.suffix in SOURCE:
        return ""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compile(source, str(path), "exec", dont_inherit=True)
    except (SyntaxError, ValueError) as error:  # also raised for an undecodable file
        return f"its name does not end in .py and it does not compile as Python: {error}"
    return ""


def _runnable_archive(path: Path) -> bool:
    try:
        with zipfile.ZipFile(path) as archive:
            return "__main__.py" in archive.namelist()
    except (OSError, zipfile.BadZipFile):
        return False
