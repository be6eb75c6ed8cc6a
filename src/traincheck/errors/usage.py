"""Errors in a command or in the value of an option."""

from __future__ import annotations

import os
from collections.abc import Sequence

from traincheck.errors.base import PathLike, TrainCheckError


class UsageError(TrainCheckError):
    """Errors in a command or in the value of an option."""

    slug = "usage"
    exit_code = 2


class ScriptNotFound(UsageError):
    slug = "script-not-found"

    def __init__(self, path: PathLike) -> None:
        super().__init__(
            f"There is no script '{os.fspath(path)}'. Give the path of a Python file, or `-m package.module`, "
            "or a command such as `python train.py` or `torchrun train.py`."
        )


class NotAScript(UsageError):
    slug = "not-a-script"

    def __init__(self, path: PathLike, reason: str) -> None:
        super().__init__(
            f"'{os.fspath(path)}' is not a Python script ({reason}). "
            "To run another program and observe its Python children, write `-- program ...`."
        )


class CommandNotFound(UsageError):
    slug = "command-not-found"

    def __init__(self, command: str) -> None:
        super().__init__(f"There is no program '{command}' on PATH. Check the words after `--`.")


class CommandNotRunnable(UsageError):
    slug = "command-not-runnable"

    def __init__(self, command: str, reason: str) -> None:
        super().__init__(
            f"The program '{command}' cannot be started: {reason}. If it is a script, name its interpreter first."
        )


class NoTarget(UsageError):
    slug = "no-target"

    def __init__(self) -> None:
        super().__init__(
            "There is nothing to run. Give a script with its arguments, or `-m package.module ...`, "
            "or `-- command ...` for a launcher such as torchrun."
        )


class NoBook(UsageError):
    slug = "no-book"

    def __init__(self) -> None:
        super().__init__(
            "There is no book to check against, and --packs none disables the packs. Remove --packs none, or name a "
            "book with --book BOOK. To learn a book from good runs: traincheck infer RUN ... -o BOOK"
        )


class NoRuleDeployed(UsageError):
    slug = "no-rule-deployed"

    def __init__(self, script: str, others: Sequence[str]) -> None:
        belong = f"its rules belong to {', '.join(others)}" if others else "it holds no rule that is not muted"
        cure = f", or use --as {others[0]} if this is that program" if others else ""
        super().__init__(
            f"Nothing can be checked: no rule of the book applies to {script or 'this program'} ({belong}). Learn a "
            f"book from good runs of this program or of several others{cure}, or add --packs shipped."
        )


class OtherFile(UsageError):
    slug = "other-file"

    def __init__(self, path: PathLike, kind: str, option: str) -> None:
        super().__init__(
            f"'{os.fspath(path)}' exists and is not {kind}; TrainCheck did not change it. "
            f"Name another file with {option}."
        )


class NoSuchInvariant(UsageError):
    slug = "no-such-invariant"

    def __init__(self, path: PathLike, name: str, matching: int, candidates: Sequence[tuple[str, str]] = ()) -> None:
        matches = f"{matching} ids begin" if matching else "no id begins"
        names = "; ".join(f"{rule} ({sentence})" for rule, sentence in candidates)
        hint = f" Did you mean {names}?" if names else ""
        super().__init__(f"In '{os.fspath(path)}' {matches} with '{name}'.{hint} `traincheck show` prints the ids.")


class BadOption(UsageError):
    slug = "bad-option"

    def __init__(self, option: str, value: object, expected: str) -> None:
        super().__init__(f"{option} was given {value!r}; expected {expected}.")


class MissingExtra(UsageError, ImportError):
    slug = "missing-extra"

    def __init__(self, feature: str, package: str, command: str) -> None:
        super().__init__(f"{feature} needs the package '{package}', which is not installed. Install it: {command}")


class WorkloadUnusable(UsageError):
    slug = "workload-unusable"

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(
            f"The workload '{name}' cannot be used: {reason}. A workload is what a function FILE.py:FUNCTION or "
            "MODULE:FUNCTION returns when it is called with seed and device; it has build_model, build_optimizer, "
            "batch and loss."
        )


class NotTheSameWork(UsageError):
    slug = "not-the-same-work"

    def __init__(self, difference: str) -> None:
        super().__init__(
            f"The two workers do not execute the same work: they differ in {difference}, which no hardware fault can "
            "change. The workload must depend on its seed alone; `traincheck sdc doctor` names the difference."
        )
