"""The base of all errors, and those that are neither about usage nor about what is read."""

from __future__ import annotations

import os
from typing import TypeAlias

PathLike: TypeAlias = str | os.PathLike[str]


class TrainCheckError(Exception):
    """Base of all our errors. `slug` is the name under which docs/messages.md explains it."""

    slug = "error"
    exit_code = 1

    def __reduce__(self) -> tuple[object, ...]:
        # As made from its message: our classes take what the message is made of, and errors travel between processes.
        return type(self).__new__, (type(self), str(self))


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


class WorkerFailed(TrainCheckError):
    slug = "worker-failed"

    def __init__(self, name: str, code: int | None, words: str) -> None:
        how = f"by signal {-code}" if code is not None and code < 0 else f"with exit code {code}"
        said = f" It said: {words}" if words else ""
        super().__init__(
            f"The process '{name}' of this command ended {how} before its work was done.{said} "
            "Try a smaller --workload or fewer --steps; memory may have run out."
        )


class StopTraining(TrainCheckError):
    """Raised before the next optimizer step when a finding of severity error was made and stopping was asked for."""

    slug = "stopped"
    exit_code = 3

    def __init__(self, title: str, step: int = 0) -> None:
        super().__init__(f"TrainCheck stopped the training {f'after step {step}' if step else 'as asked'}: {title}")
