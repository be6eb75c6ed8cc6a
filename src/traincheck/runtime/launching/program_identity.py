"""Program text: the identity of a program, read from its source before it runs.

Note [Features of a text]
Each feature is one statement about the structure of a text: a class and its bases, a function, an argument of it, an
import, a call of something inside a function, an attribute or variable that it assigns. `self.conv1 = nn.Conv2d(...)`
in a model gives the names of which those of its modules and parameters are made. Values (numbers, texts), comments and
order are no features, so that another seed, batch size or rate is the same program.

The text is read and not the models in memory, because the rules of a program are deployed when it starts: the first
window has to be observed by them as well, and the command, the processes and a later `traincheck check` have to decide
alike.
"""

from __future__ import annotations

import ast
import functools
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
"""Flags of Python and of launchers that are followed by the name of a module."""


@dataclass(frozen=True, slots=True)
class CheckedProgram:
    """The program that is checked: its name in run.json, the name by which it is known in books, and what it is.

    `name` is what the user gave with `--as`, otherwise the name in run.json.
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
        """Whether this is the program `script` that a book learned `runs` from.

        Source texts decide where both are known, and names elsewhere.
        """
        answers = [self.identity.same_as(ProgramIdentity.parse(run.program)) for run in runs if run.script == script]
        decided = [same for same in answers if same is not None]
        return any(decided) if decided else script == (self.name or self.script)


@functools.lru_cache(16)
def identity_of(target: Target, cwd: Path) -> ProgramIdentity:
    """What the program is. Where its text cannot be read, the identity knows the name of its entry module at most."""
    entry_point = entry_of(target, cwd)
    if entry_point is None:
        return ProgramIdentity(main_name_of(target))
    main, file = entry_point
    homes = [cwd.resolve()] if main != file.stem else [file.resolve().parent]
    entry: set[str] = set()
    modules: set[str] = set()
    try:
        for path, _, tree in own_files(file, homes):
            if path == file.resolve():
                entry.update(features(tree))
            else:
                modules.update(features(tree))
    except (OSError, ValueError, SyntaxError, RecursionError, MemoryError):
        return ProgramIdentity(main)
    return ProgramIdentity.of_features(main, entry, modules)


def main_name_of(target: Target) -> str:
    """The name of `__main__` in the process of the program, as far as the command line says it."""
    return target.words[0] if target.kind == "module" else target.name


def entry_of(target: Target, cwd: Path) -> tuple[str, Path] | None:
    """The name of the entry module and its file; None where there is no Python file.

    Launchers (`torchrun`, `accelerate launch`, `python -m torch.distributed.run`) are looked through.
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
    """The features of a text, see Note [Features of a text]."""
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
    """`self.conv1` for such an expression, empty for others; of what is called on a result, the name behind it."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        before = _dotted(node.value)
        return f"{before}.{node.attr}" if before else f".{node.attr}"
    return ""
