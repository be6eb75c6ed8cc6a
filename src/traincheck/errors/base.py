"""The base class of all errors, and the errors about plug-ins, output and workers."""

from __future__ import annotations

import os
from typing import TypeAlias

PathLike: TypeAlias = str | os.PathLike[str]


class TrainCheckError(Exception):
    """Base of all errors of TrainCheck. docs/messages.md explains each error under its `slug`."""

    slug = "error"
    exit_code = 1

    def __reduce__(self) -> tuple[object, ...]:
        # Errors travel between processes: rebuild them from the message, not from the arguments of the class.
        return type(self).__new__, (type(self), str(self))


class PluginError(TrainCheckError):
    """An extension that cannot be used."""

    slug = "plugin"
    exit_code = 2

    def __init__(self, group: str, name: str, reason: str) -> None:
        super().__init__(f"The extension '{name}' of {group} cannot be used: {reason}. Fix or uninstall its package.")


class OutputError(TrainCheckError):
    """A file or folder that cannot be written."""

    slug = "output"

    def __init__(self, path: PathLike, reason: str) -> None:
        super().__init__(
            f"Cannot write '{os.fspath(path)}': {reason}. "
            "Check its permissions and the free space, or name another path with -o."
        )


class WorkerLost(TrainCheckError):
    slug = "worker-lost"

    def __init__(self, path: str, code: int | None) -> None:
        how = "again and again" if code is None else f"by signal {-code}" if code < 0 else f"with exit code {code}"
        super().__init__(
            f"The process that was reading '{path}' ended {how}, most often because memory ran out. "
            "Nothing was written. Try again with --jobs 1, which needs the least memory."
        )


class WorkerFailed(TrainCheckError):
    slug = "worker-failed"

    def __init__(self, name: str, code: int | None, words: str) -> None:
        how = f"by signal {-code}" if code is not None and code < 0 else f"with exit code {code}"
        output = f" Its last output: {words}" if words else ""
        super().__init__(
            f"The process '{name}' of this command ended {how} before its work was done.{output} "
            "Try a smaller --workload or fewer --steps; memory may have run out."
        )


class StopTraining(TrainCheckError):
    """Raised before the next optimizer step after an error, with --on-violation stop, or by a callback."""

    slug = "stopped"
    exit_code = 3

    def __init__(self, title: str, step: int = 0) -> None:
        super().__init__(f"TrainCheck stopped the training {f'after step {step}' if step else 'on request'}: {title}")
