"""Errors in files that TrainCheck reads."""

from __future__ import annotations

import os

from traincheck.errors.base import PathLike, TrainCheckError


class _TooNew(Exception):
    kind = ""

    def __init__(self, path: PathLike, version: object, newest: int) -> None:
        problem = f"{os.fspath(path)} {self.kind} {version}; this TrainCheck reads up to {newest}."
        super().__init__(f"{problem} Install a newer TrainCheck to read it.")


class _Unreadable(Exception):
    kind = cure = ""

    def __init__(self, path: PathLike, reason: str) -> None:
        super().__init__(f"Cannot read '{os.fspath(path)}' as {self.kind}: {reason}. {self.cure}")


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
    kind = "a book of invariants"
    cure = "A book is the file that `traincheck infer RUN ... -o BOOK` writes."


class BookUnreadable(BookError):
    slug = "book-unreadable"

    def __init__(self, path: PathLike, line: int, reason: str) -> None:
        super().__init__(
            f"{os.fspath(path)}, line {line}: {reason}. A book is JSON Lines as `traincheck infer` writes it; "
            "write it again, or correct or delete the line."
        )


class BookTooNew(_TooNew, BookError):
    slug = "book-too-new"
    kind = "is a book of format"


class BookConflict(BookError):
    slug = "book-conflict"

    def __init__(self, invariant: str, first: PathLike, second: PathLike) -> None:
        super().__init__(
            f"The id {invariant} names one rule in {os.fspath(first)} and another in {os.fspath(second)}. "
            "One of the files was changed by hand; learn it again with `traincheck infer`."
        )


class PacksUnreadable(_Unreadable, BookError):
    slug = "packs-unreadable"
    kind = "packs"
    cure = "Packs are what `traincheck packs build RUN ... -o FOLDER` writes, as a whole."


class LibraryUnreadable(_Unreadable, BookError):
    slug = "library-unreadable"
    kind = "the record of a library"
    cure = "`traincheck accept RUN` writes it; undo manual changes to the file."


class TallyError(InputError):
    slug = "tally"


class TallyUnreadable(_Unreadable, TallyError):
    slug = "tally-unreadable"
    kind = "a tally file"
    cure = "A tally file is what `traincheck infer RUN ... --tally FILE` writes; a run is named by its folder."


class TallyTooNew(_TooNew, TallyError):
    slug = "tally-too-new"
    kind = "is a tally file of format"


class JournalUnreadable(_Unreadable, InputError):
    slug = "journal-unreadable"
    kind = "a journal"
    cure = "A journal is the file that `traincheck infer RUN ... -o BOOK` writes next to the book, BOOK.journal.jsonl."


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

    def __init__(self, path: PathLike, reason: str) -> None:
        super().__init__(
            f"The run folder '{os.fspath(path)}' holds no events ({reason}). "
            "Record the run again with `traincheck collect`; `traincheck doctor` lists what can be observed here."
        )


class NothingToCompare(RunFolderError):
    slug = "nothing-to-compare"

    def __init__(self, path: PathLike, reason: str) -> None:
        super().__init__(
            f"The run '{os.fspath(path)}' cannot be compared: {reason}. "
            "Record both runs with `traincheck collect --record operations PROGRAM`."
        )


class NoInitialState(RunFolderError):
    slug = "no-initial-state"

    def __init__(self, path: PathLike) -> None:
        super().__init__(
            f"The run '{os.fspath(path)}' holds no initial state to begin with. Record it again with "
            "`traincheck collect --record operations`, which saves weights of up to a quarter of --keep-recording."
        )


class TraceTooNew(_TooNew, RunFolderError):
    slug = "trace-too-new"
    kind = "was written in trace format"


class TraceUnreadable(RunFolderError):
    slug = "trace-unreadable"

    def __init__(self, path: PathLike, reason: str) -> None:
        super().__init__(
            f"'{os.fspath(path)}' is damaged or was changed: {reason}. "
            "Remove it from the run folder to read the rest, or record the run again."
        )


class TraceOutOfReach(RunFolderError):
    slug = "trace-out-of-reach"

    def __init__(self, path: PathLike, reason: str) -> None:
        super().__init__(f"'{os.fspath(path)}' cannot be read: {reason}. Check the path and its permissions.")


class SessionUnreadable(RunFolderError):
    slug = "session-unreadable"

    def __init__(self, path: PathLike, reason: str) -> None:
        super().__init__(
            f"The settings of the run in '{os.fspath(path)}' cannot be read ({reason}). "
            "Every process of the run needs them; start the run again."
        )


class RunFolderInUse(RunFolderError):
    slug = "run-folder-in-use"

    def __init__(self, path: PathLike) -> None:
        super().__init__(
            f"'{os.fspath(path)}' is not empty. TrainCheck did not change it; name another folder with -o, "
            "or remove that folder."
        )


class ReportError(InputError):
    """A JSON report that cannot be read."""

    slug = "report"


class ReportNotFound(ReportError):
    slug = "report-not-found"

    def __init__(self, path: PathLike) -> None:
        cure = "Name the JSON report that `traincheck run` or `traincheck check` wrote."
        super().__init__(f"There is no report '{os.fspath(path)}'. {cure}")


class ReportUnreadable(_Unreadable, ReportError):
    slug = "report-unreadable"
    kind = "a report"
    cure = "A report is the JSON file that `traincheck run` and `traincheck check` write; check the run again."


class ReportTooNew(_TooNew, ReportError):
    slug = "report-too-new"
    kind = "is a report of version"


class FingerprintsError(InputError):
    """Known fingerprints that cannot be compared with a device."""

    slug = "fingerprints"


class FingerprintsUnreadable(_Unreadable, FingerprintsError):
    slug = "fingerprints-unreadable"
    kind = "known fingerprints"
    cure = "They are the file that `traincheck sdc screen -o FILE` writes; write it again on a device that is clean."


class FingerprintsTooNew(_TooNew, FingerprintsError):
    slug = "fingerprints-too-new"
    kind = "holds known fingerprints of format"


class FingerprintsOfOthers(FingerprintsError):
    slug = "fingerprints-of-others"

    def __init__(self, path: PathLike, difference: str) -> None:
        super().__init__(
            f"'{os.fspath(path)}' belongs to another kind of device, software or workload: "
            f"{difference}. Results may differ without a fault. Give the same options, or write fingerprints for this "
            "kind: traincheck sdc screen -o FILE"
        )


class StudyError(InputError):
    """A file of a study that cannot be read."""

    slug = "study"


class StudyUnreadable(_Unreadable, StudyError):
    slug = "study-unreadable"
    kind = "a study"
    cure = "A study is the file that `traincheck sdc study -o FILE` writes; write it again."


class StudyTooNew(_TooNew, StudyError):
    slug = "study-too-new"
    kind = "holds a study of format"
