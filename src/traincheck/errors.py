"""Every error that TrainCheck raises on purpose.

TrainCheckError
├── UsageError                 a command or an option that cannot be obeyed (exit code 2)
│   ├── ScriptNotFound
│   ├── NotAScript
│   ├── CommandNotFound
│   ├── CommandNotRunnable
│   ├── NoTarget
│   ├── NoBook
│   ├── OtherFile
│   ├── NoSuchInvariant
│   ├── BadOption
│   └── MissingExtra
├── InputError                 a file that cannot be read as what it should be (exit code 2)
│   ├── BookError
│   │   ├── BookNotFound
│   │   ├── BookUnrecognised
│   │   ├── BookUnreadable
│   │   ├── BookTooNew
│   │   ├── BookConflict
│   │   ├── PacksUnreadable
│   │   └── LibraryUnreadable
│   ├── TallyError
│   │   ├── TallyUnreadable
│   │   └── TallyTooNew
│   ├── JournalUnreadable
│   ├── RunFolderError
│   │   ├── RunFolderNotFound
│   │   ├── RunFolderEmpty
│   │   ├── TraceTooNew
│   │   ├── TraceUnreadable
│   │   ├── TraceOutOfReach
│   │   ├── SessionUnreadable
│   │   └── RunFolderInUse
│   └── ReportError
│       ├── ReportNotFound
│       ├── ReportUnreadable
│       └── ReportTooNew
├── PluginError                a relation, source or sink of a package that cannot be used (exit code 2)
├── OutputError                a place that cannot be written (exit code 1)
├── WorkerLost                 a process that helped with the work and ended before it was done (exit code 1)
└── StopTraining               raised in the training loop on request (--on-violation stop)
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TypeAlias

PathLike: TypeAlias = str | os.PathLike[str]


class TrainCheckError(Exception):
    """Base of all our errors. `slug` is the name under which docs/messages.md explains it."""

    slug = "error"
    exit_code = 1

    def __reduce__(self) -> tuple[object, ...]:
        # As made from its message: our classes take what the message is made of, and errors travel between processes.
        return type(self).__new__, (type(self), str(self))


class _TooNew(Exception):
    what = ""

    def __init__(self, path: PathLike, version: object, known: int) -> None:
        told = f"{os.fspath(path)} {self.what} {version}; this TrainCheck reads up to {known}."
        super().__init__(f"{told} Upgrade TrainCheck: pip install -U traincheck")


class _Unreadable(Exception):
    what = cure = ""

    def __init__(self, path: PathLike, why: str) -> None:
        super().__init__(f"Cannot read '{os.fspath(path)}' as {self.what}: {why}. {self.cure}")


class UsageError(TrainCheckError):
    """A command or an option that cannot be obeyed."""

    slug = "usage"
    exit_code = 2


class ScriptNotFound(UsageError):
    slug = "script-not-found"

    def __init__(self, path: PathLike) -> None:
        super().__init__(
            f"There is no script '{os.fspath(path)}'. Give the path of a Python file, or `-m package.module`, "
            "or `-- command ...` for a launcher such as torchrun."
        )


class NotAScript(UsageError):
    slug = "not-a-script"

    def __init__(self, path: PathLike, why: str) -> None:
        super().__init__(
            f"'{os.fspath(path)}' is not a Python script ({why}). "
            "To run another program whose Python children are to be observed, write `-- program ...`."
        )


class CommandNotFound(UsageError):
    slug = "command-not-found"

    def __init__(self, command: str) -> None:
        super().__init__(f"There is no program '{command}' on PATH. Check the words after `--`.")


class CommandNotRunnable(UsageError):
    slug = "command-not-runnable"

    def __init__(self, command: str, why: str) -> None:
        super().__init__(
            f"The program '{command}' cannot be started: {why}. If it is a script, name its interpreter first."
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
            "There is no book to check against, and packs are turned off. Leave out --packs none, or name a book with "
            "--book BOOK; learn one from good runs: traincheck infer RUN ... -o BOOK"
        )


class OtherFile(UsageError):
    slug = "other-file"

    def __init__(self, path: PathLike, kind: str, option: str) -> None:
        super().__init__(
            f"'{os.fspath(path)}' exists and is not {kind}; it was left as it is. Name another file with {option}."
        )


class NoSuchInvariant(UsageError):
    slug = "no-such-invariant"

    def __init__(self, path: PathLike, name: str, matching: int, candidates: Sequence[tuple[str, str]] = ()) -> None:
        found = f"{matching} ids begin" if matching else "no id begins"
        told = "; ".join(f"{one} ({sentence})" for one, sentence in candidates)
        hint = f" Did you mean {told}?" if told else ""
        super().__init__(f"In '{os.fspath(path)}' {found} with '{name}'.{hint} `traincheck show` prints the ids.")


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

    def __init__(self, path: PathLike) -> None:
        super().__init__(
            f"There is no book '{os.fspath(path)}'. "
            f"Learn one from good runs: traincheck infer RUN ... -o {os.fspath(path)}"
        )


class BookUnrecognised(_Unreadable, BookError):
    slug = "book-unrecognised"
    what = "a book of invariants"
    cure = "A book is the file that `traincheck infer RUN ... -o BOOK` writes."


class BookUnreadable(BookError):
    slug = "book-unreadable"

    def __init__(self, path: PathLike, line: int, why: str) -> None:
        super().__init__(
            f"{os.fspath(path)}, line {line}: {why}. A book is JSON Lines as `traincheck infer` writes it; "
            "write it again, or mend or delete the line."
        )


class BookTooNew(_TooNew, BookError):
    slug = "book-too-new"
    what = "is a book of format"


class BookConflict(BookError):
    slug = "book-conflict"

    def __init__(self, invariant: str, first: PathLike, second: PathLike) -> None:
        super().__init__(
            f"The id {invariant} names one rule in {os.fspath(first)} and another in {os.fspath(second)}. "
            "One of the files was changed by hand; learn it again with `traincheck infer`."
        )


class PacksUnreadable(_Unreadable, BookError):
    slug = "packs-unreadable"
    what = "packs"
    cure = "Packs are what `traincheck packs build RUN ... -o FOLDER` writes, as a whole."


class LibraryUnreadable(_Unreadable, BookError):
    slug = "library-unreadable"
    what = "what a library says of its runs"
    cure = "`traincheck accept RUN` writes it; take back what was done to the file by hand."


class TallyError(InputError):
    slug = "tally"


class TallyUnreadable(_Unreadable, TallyError):
    slug = "tally-unreadable"
    what = "a tally file"
    cure = "A tally file is what `traincheck infer RUN ... --tally FILE` writes; a run is named by its folder."


class TallyTooNew(_TooNew, TallyError):
    slug = "tally-too-new"
    what = "is a tally file of format"


class JournalUnreadable(_Unreadable, InputError):
    slug = "journal-unreadable"
    what = "a journal"
    cure = "A journal is the file that `traincheck infer RUN ... -o BOOK` writes beside the book, BOOK.journal.jsonl."


class RunFolderError(InputError):
    """A run folder that cannot be read."""

    slug = "run-folder"


class RunFolderNotFound(RunFolderError):
    slug = "run-folder-not-found"

    def __init__(self, path: PathLike) -> None:
        super().__init__(
            f"There is no run folder '{os.fspath(path)}'. Record one: traincheck collect -o {os.fspath(path)} train.py"
        )


class RunFolderEmpty(RunFolderError):
    slug = "run-folder-empty"

    def __init__(self, path: PathLike, why: str) -> None:
        super().__init__(
            f"The run folder '{os.fspath(path)}' holds no events ({why}). "
            "Record the run again with `traincheck collect`; `traincheck doctor` tells what can be observed here."
        )


class TraceTooNew(_TooNew, RunFolderError):
    slug = "trace-too-new"
    what = "was written in trace format"


class TraceUnreadable(RunFolderError):
    slug = "trace-unreadable"

    def __init__(self, path: PathLike, why: str) -> None:
        super().__init__(
            f"'{os.fspath(path)}' is not as TrainCheck wrote it: {why}. "
            "Take it out of the run folder to read the rest, or record the run again."
        )


class TraceOutOfReach(RunFolderError):
    slug = "trace-out-of-reach"

    def __init__(self, path: PathLike, why: str) -> None:
        super().__init__(f"'{os.fspath(path)}' cannot be read: {why}. Check the path and its permissions.")


class SessionUnreadable(RunFolderError):
    slug = "session-unreadable"

    def __init__(self, path: PathLike, why: str) -> None:
        super().__init__(
            f"The settings of the run in '{os.fspath(path)}' cannot be read ({why}). "
            "Every process of the run needs them; start the run again."
        )


class RunFolderInUse(RunFolderError):
    slug = "run-folder-in-use"

    def __init__(self, path: PathLike) -> None:
        super().__init__(
            f"'{os.fspath(path)}' already holds something. Nothing was overwritten; name another folder with -o, "
            "or remove that one."
        )


class ReportError(InputError):
    """A JSON report that cannot be read."""

    slug = "report"


class ReportNotFound(ReportError):
    slug = "report-not-found"

    def __init__(self, path: PathLike) -> None:
        told = "Name the JSON report that `traincheck run` or `traincheck check` wrote."
        super().__init__(f"There is no report '{os.fspath(path)}'. {told}")


class ReportUnreadable(_Unreadable, ReportError):
    slug = "report-unreadable"
    what = "a report"
    cure = "A report is the JSON file that `traincheck run` and `traincheck check` write; check the run again."


class ReportTooNew(_TooNew, ReportError):
    slug = "report-too-new"
    what = "is a report of version"


class PluginError(TrainCheckError):
    """An extension that cannot be used."""

    slug = "plugin"
    exit_code = 2

    def __init__(self, group: str, name: str, why: str) -> None:
        super().__init__(f"The extension '{name}' of {group} cannot be used: {why}. Mend or uninstall its package.")


class OutputError(TrainCheckError):
    """A place that cannot be written."""

    slug = "output"

    def __init__(self, path: PathLike, why: str) -> None:
        super().__init__(
            f"Cannot write '{os.fspath(path)}': {why}. "
            "Check its permissions and the free space, or name another place with -o."
        )


class WorkerLost(TrainCheckError):
    slug = "worker-lost"

    def __init__(self, what: str, code: int | None) -> None:
        how = "again and again" if code is None else f"by signal {-code}" if code < 0 else f"with exit code {code}"
        super().__init__(
            f"The process that was reading '{what}' ended {how}, most often because memory ran out. "
            "Nothing was written. Try again with --jobs 1, which needs the least memory."
        )


class StopTraining(TrainCheckError):
    """Raised before the next optimizer step when a finding of severity error was made and stopping was asked for."""

    slug = "stopped"
    exit_code = 3

    def __init__(self, title: str, step: int = 0) -> None:
        super().__init__(f"TrainCheck stopped the training {f'after step {step}' if step else 'as asked'}: {title}")
