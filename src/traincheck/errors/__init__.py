"""The errors that TrainCheck raises.

TrainCheckError
├── UsageError                 an error in a command or an option (exit code 2)
│   ├── ScriptNotFound
│   ├── NotAScript
│   ├── CommandNotFound
│   ├── CommandNotRunnable
│   ├── NoTarget
│   ├── NoBook
│   ├── NoRuleDeployed
│   ├── OtherFile
│   ├── NoSuchInvariant
│   ├── BadOption
│   ├── MissingExtra
│   ├── NotTheSameWork
│   └── WorkloadUnusable
├── InputError                 a file that cannot be read (exit code 2)
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
│   │   ├── NothingToCompare
│   │   ├── NoInitialState
│   │   ├── TraceTooNew
│   │   ├── TraceUnreadable
│   │   ├── TraceOutOfReach
│   │   ├── SessionUnreadable
│   │   └── RunFolderInUse
│   ├── ReportError
│   │   ├── ReportNotFound
│   │   ├── ReportUnreadable
│   │   └── ReportTooNew
│   ├── FingerprintsError
│   │   ├── FingerprintsUnreadable
│   │   ├── FingerprintsTooNew
│   │   └── FingerprintsOfOthers
│   └── StudyError
│       ├── StudyUnreadable
│       └── StudyTooNew
├── PluginError                a relation, source or sink of a package that cannot be used (exit code 2)
├── OutputError                a file that cannot be written (exit code 1)
├── WorkerLost                 a process that helped with the work and ended before it was done (exit code 1)
├── WorkerFailed               a process that executed a training and ended before it was done (exit code 1)
└── StopTraining               raised in the training loop on request (--on-violation stop)
"""

from __future__ import annotations

from traincheck.errors.base import (
    OutputError,
    PathLike,
    PluginError,
    StopTraining,
    TrainCheckError,
    WorkerFailed,
    WorkerLost,
)
from traincheck.errors.inputs import (
    BookConflict,
    BookError,
    BookNotFound,
    BookTooNew,
    BookUnreadable,
    BookUnrecognised,
    FingerprintsError,
    FingerprintsOfOthers,
    FingerprintsTooNew,
    FingerprintsUnreadable,
    InputError,
    JournalUnreadable,
    LibraryUnreadable,
    NoInitialState,
    NothingToCompare,
    PacksUnreadable,
    ReportError,
    ReportNotFound,
    ReportTooNew,
    ReportUnreadable,
    RunFolderEmpty,
    RunFolderError,
    RunFolderInUse,
    RunFolderNotFound,
    SessionUnreadable,
    StudyError,
    StudyTooNew,
    StudyUnreadable,
    TallyError,
    TallyTooNew,
    TallyUnreadable,
    TraceOutOfReach,
    TraceTooNew,
    TraceUnreadable,
)
from traincheck.errors.usage import (
    BadOption,
    CommandNotFound,
    CommandNotRunnable,
    MissingExtra,
    NoBook,
    NoRuleDeployed,
    NoSuchInvariant,
    NoTarget,
    NotAScript,
    NotTheSameWork,
    OtherFile,
    ScriptNotFound,
    UsageError,
    WorkloadUnusable,
)

__all__ = [
    "BadOption",
    "BookConflict",
    "BookError",
    "BookNotFound",
    "BookTooNew",
    "BookUnreadable",
    "BookUnrecognised",
    "CommandNotFound",
    "CommandNotRunnable",
    "FingerprintsError",
    "FingerprintsOfOthers",
    "FingerprintsTooNew",
    "FingerprintsUnreadable",
    "InputError",
    "JournalUnreadable",
    "LibraryUnreadable",
    "MissingExtra",
    "NoBook",
    "NoRuleDeployed",
    "NoSuchInvariant",
    "NoTarget",
    "NotAScript",
    "NotTheSameWork",
    "OtherFile",
    "OutputError",
    "PacksUnreadable",
    "PathLike",
    "PluginError",
    "ReportError",
    "ReportNotFound",
    "ReportTooNew",
    "ReportUnreadable",
    "RunFolderEmpty",
    "NoInitialState",
    "NothingToCompare",
    "RunFolderError",
    "RunFolderInUse",
    "RunFolderNotFound",
    "ScriptNotFound",
    "SessionUnreadable",
    "StopTraining",
    "StudyError",
    "StudyTooNew",
    "StudyUnreadable",
    "TallyError",
    "TallyTooNew",
    "TallyUnreadable",
    "TraceOutOfReach",
    "TraceTooNew",
    "TraceUnreadable",
    "TrainCheckError",
    "UsageError",
    "WorkerFailed",
    "WorkerLost",
    "WorkloadUnusable",
]
