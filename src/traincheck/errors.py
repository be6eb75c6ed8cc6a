"""Every error that TrainCheck raises on purpose.

TrainCheckError
├── UsageError                 a command or an option that cannot be obeyed (exit code 2)
│   ├── ScriptNotFound
│   ├── NotAScript
│   ├── CommandNotFound
│   ├── BadOption
│   └── MissingExtra
├── InputError                 a file that cannot be read as what it should be (exit code 2)
│   ├── BookError
│   │   ├── BookNotFound
│   │   ├── BookUnreadable
│   │   ├── BookTooNew
│   │   └── BookConflict
│   └── RunFolderError
│       ├── RunFolderNotFound
│       ├── RunFolderEmpty
│       ├── TraceTooNew
│       └── RunFolderInUse
├── OutputError                a place that cannot be written (exit code 1)
└── StopTraining               raised in the training loop on request (--on-violation stop)
"""

from __future__ import annotations

import os


class TrainCheckError(Exception):
    """Base of all our errors. `slug` is the name under which docs/messages.md explains it."""

    slug = "error"
    exit_code = 1


class UsageError(TrainCheckError):
    """A command or an option that cannot be obeyed."""

    slug = "usage"
    exit_code = 2


class ScriptNotFound(UsageError):
    slug = "script-not-found"

    def __init__(self, path: str | os.PathLike[str]) -> None:
        super().__init__(
            f"There is no script '{os.fspath(path)}'. Give the path of a Python file, or `-m package.module`, "
            "or `-- command ...` for a launcher such as torchrun."
        )


class NotAScript(UsageError):
    slug = "not-a-script"

    def __init__(self, path: str | os.PathLike[str], why: str) -> None:
        super().__init__(
            f"'{os.fspath(path)}' is not a Python script ({why}). "
            "To run another program whose Python children are to be observed, write `-- program ...`."
        )


class CommandNotFound(UsageError):
    slug = "command-not-found"

    def __init__(self, command: str) -> None:
        super().__init__(f"There is no program '{command}' on PATH. Check the words after `--`.")


class BadOption(UsageError):
    slug = "bad-option"

    def __init__(self, option: str, value: object, expected: str) -> None:
        super().__init__(f"{option} was given {value!r}; expected {expected}.")


class MissingExtra(UsageError):
    slug = "missing-extra"

    def __init__(self, what: str, package: str, command: str) -> None:
        super().__init__(f"{what} needs the package '{package}', which is not installed. Install it: {command}")


class InputError(TrainCheckError):
    """A file that cannot be read as what it should be."""

    slug = "input"
    exit_code = 2


class BookError(InputError):
    """A book of invariants that cannot be used."""

    slug = "book"


class BookNotFound(BookError):
    slug = "book-not-found"

    def __init__(self, path: str | os.PathLike[str]) -> None:
        super().__init__(
            f"There is no book '{os.fspath(path)}'. Learn one from good runs: traincheck infer RUN ... -o {os.fspath(path)}"
        )


class BookUnreadable(BookError):
    slug = "book-unreadable"

    def __init__(self, path: str | os.PathLike[str], line: int, why: str) -> None:
        super().__init__(
            f"{os.fspath(path)}, line {line}: {why}. A book is JSON Lines as `traincheck infer` writes it; "
            "write it again, or mend or delete the line."
        )


class BookTooNew(BookError):
    slug = "book-too-new"

    def __init__(self, path: str | os.PathLike[str], version: object, known: int) -> None:
        super().__init__(
            f"{os.fspath(path)} is a book of format {version}; this TrainCheck reads up to {known}. "
            "Upgrade TrainCheck: pip install -U traincheck"
        )


class BookConflict(BookError):
    slug = "book-conflict"

    def __init__(self, invariant: str, first: str | os.PathLike[str], second: str | os.PathLike[str]) -> None:
        super().__init__(
            f"The id {invariant} names one rule in {os.fspath(first)} and another in {os.fspath(second)}. "
            "One of the files was changed by hand; learn it again with `traincheck infer`."
        )


class RunFolderError(InputError):
    """A run folder that cannot be read."""

    slug = "run-folder"


class RunFolderNotFound(RunFolderError):
    slug = "run-folder-not-found"

    def __init__(self, path: str | os.PathLike[str]) -> None:
        super().__init__(f"There is no run folder '{os.fspath(path)}'. Record one: traincheck collect -o {os.fspath(path)} train.py")


class RunFolderEmpty(RunFolderError):
    slug = "run-folder-empty"

    def __init__(self, path: str | os.PathLike[str], why: str) -> None:
        super().__init__(
            f"The run folder '{os.fspath(path)}' holds no events ({why}). "
            "Record the run again with `traincheck collect`; `traincheck doctor` tells what can be observed here."
        )


class TraceTooNew(RunFolderError):
    slug = "trace-too-new"

    def __init__(self, path: str | os.PathLike[str], version: object, known: int) -> None:
        super().__init__(
            f"{os.fspath(path)} was written in trace format {version}; this TrainCheck reads up to {known}. "
            "Upgrade TrainCheck: pip install -U traincheck"
        )


class RunFolderInUse(RunFolderError):
    slug = "run-folder-in-use"

    def __init__(self, path: str | os.PathLike[str]) -> None:
        super().__init__(
            f"'{os.fspath(path)}' already holds something. Nothing was overwritten; name another folder with -o, "
            "or remove that one."
        )


class OutputError(TrainCheckError):
    """A place that cannot be written."""

    slug = "output"

    def __init__(self, path: str | os.PathLike[str], why: str) -> None:
        super().__init__(f"Cannot write '{os.fspath(path)}': {why}. Check its permissions and the free space, or name another place with -o.")


class StopTraining(TrainCheckError):
    """Raised before the next optimizer step when a finding of severity error was made and stopping was asked for."""

    slug = "stopped"
    exit_code = 3

    def __init__(self, title: str, step: int) -> None:
        super().__init__(f"TrainCheck stopped the training after step {step}: {title}")
