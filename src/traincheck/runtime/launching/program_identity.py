"""Identifies a program from its source code before it runs.

Note [Features of a text]
Each feature is one statement about the structure of the source. Examples are a class and its bases, a function and its
arguments, an import, a call inside a function, and an assigned attribute or variable. `self.conv1 = nn.Conv2d(...)` in
a model determines the names of its modules and parameters. Values (numbers, strings), comments and order are not
features, so another seed, batch size or learning rate gives the same program.

TrainCheck reads the source, not the models in memory, because it selects the rules before the program starts. These
rules must apply to the first window. The command, the processes and a later `traincheck check` must make the same
decision.
"""

from __future__ import annotations

import ast
import functools
import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from traincheck.runtime.launching.command_target import SOURCE, Target
from traincheck.runtime.launching.imported_packages import own_files
from traincheck.vocab.program import UNKNOWN, ProgramIdentity

if TYPE_CHECKING:
    from traincheck.config import Config
    from traincheck.invariants.book import LearnedRun
    from traincheck.trace.run_notes import Manifest

MODULE_FLAGS = ("-m", "--module")
"""Flags of Python and of launchers before a module name."""


@dataclass(frozen=True, slots=True)
class CheckedProgram:
    """A checked program: its name in run.json, its name in books, and its identity.

    `name` is the value of `--as`, or else the name in run.json.
    """

    script: str
    name: str = ""
    identity: ProgramIdentity = UNKNOWN

    @classmethod
    def of_run(cls, manifest: Manifest, config: Config) -> CheckedProgram:
        """The program of a recorded run."""
        identity = ProgramIdentity.parse(manifest.program)
        if config.as_program:
            return cls(manifest.script, config.as_program, ProgramIdentity(identity.main))
        return cls(manifest.script, manifest.script, identity)

    def is_one_of(self, script: str, runs: Iterable[LearnedRun]) -> bool:
        """Whether this is the program `script` in the `runs` of a book.

        The identities decide if both are known, and the names otherwise.
        """
        answers = [self.identity.same_as(ProgramIdentity.parse(run.program)) for run in runs if run.script == script]
        decided = [same for same in answers if same is not None]
        return any(decided) if decided else script == (self.name or self.script)


def identity_of(target: Target, cwd: Path) -> ProgramIdentity:
    """The identity of the program. If the source cannot be read, it has the name of the entry module at most."""
    return _read(target, cwd)[0]


def digests_of(target: Target, cwd: Path) -> dict[str, str]:
    """The SHA-256 of the program's own files by path, relative to `cwd` where they are below; empty if unreadable."""
    return dict(_read(target, cwd)[1])


@functools.lru_cache(16)
def _read(target: Target, cwd: Path) -> tuple[ProgramIdentity, tuple[tuple[str, str], ...]]:
    """The identity of the program, and its own files with their digests."""
    entry_point = entry_of(target, cwd)
    if entry_point is None:
        return ProgramIdentity(main_name_of(target)), ()
    main, file = entry_point
    homes = [cwd.resolve()] if main != file.stem else [file.resolve().parent]
    entry: set[str] = set()
    modules: set[str] = set()
    digests: list[tuple[str, str]] = []
    try:
        for path, _, tree in own_files(file, homes):
            shown = path.relative_to(cwd.resolve()) if path.is_relative_to(cwd.resolve()) else path
            digests.append((str(shown), hashlib.sha256(path.read_bytes()).hexdigest()))
            if path == file.resolve():
                entry.update(features(tree))
            else:
                modules.update(features(tree))
    except (OSError, ValueError, SyntaxError, RecursionError, MemoryError):
        return ProgramIdentity(main), ()
    return ProgramIdentity.of_features(main, entry, modules), tuple(sorted(digests))


def main_name_of(target: Target) -> str:
    """The name of `__main__` in the program's process, according to the command line."""
    return target.words[0] if target.kind == "module" else target.name


def entry_of(target: Target, cwd: Path) -> tuple[str, Path] | None:
    """The name and file of the entry module; None if there is no Python file.

    For launchers (`torchrun`, `accelerate launch`, `python -m torch.distributed.run`) it is the launched program.
    """
    words: Sequence[str] = target.words
    if target.kind == "script":
        file = target.file
        return (file.stem, cwd / file) if file is not None and file.suffix in SOURCE else None
    if target.kind == "module":
        words = (MODULE_FLAGS[0], *words)
    for flag, word in zip(("", *words), words, strict=False):
        if flag in MODULE_FLAGS:
            file = Target("module", (word,)).file
            if file is not None:
                return word, cwd / file
        elif word.endswith(SOURCE) and Path(word).is_file():
            return Path(word).stem, cwd / word
    return None


def features(tree: ast.AST) -> Iterator[str]:
    """The features of a source text, see Note [Features of a text]."""
    yield from _inside(tree, "")


def _inside(node: ast.AST, scope: str) -> Iterator[str]:
    for child in ast.iter_child_nodes(node):
        inner = scope
        if isinstance(child, ast.ClassDef):
            inner = f"{scope}{child.name}."
            yield f"class {inner}"
            yield from (f"{inner} is a {_dotted(base)}" for base in child.bases)
        elif isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            inner = f"{scope}{child.name}()."
            yield f"function {inner}"
            every = (*child.args.posonlyargs, *child.args.args, *child.args.kwonlyargs)
            yield from (f"{inner} takes {parameter.arg}" for parameter in every)
        elif isinstance(child, ast.Import):
            yield from (f"imports {alias.name}" for alias in child.names)
        elif isinstance(child, ast.ImportFrom):
            yield from (f"imports {alias.name} from {child.module or ''}" for alias in child.names)
        elif isinstance(child, ast.Call) and _dotted(child.func):
            yield f"{scope} calls {_dotted(child.func)}"
        elif isinstance(child, ast.Name | ast.Attribute) and isinstance(child.ctx, ast.Store) and _dotted(child):
            yield f"{scope} sets {_dotted(child)}"
        yield from _inside(child, inner)


def _dotted(node: ast.AST) -> str:
    """`self.conv1` for such an expression, `.name` for an attribute of a result, and an empty string otherwise."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        before = _dotted(node.value)
        return f"{before}.{node.attr}" if before else f".{node.attr}"
    return ""
