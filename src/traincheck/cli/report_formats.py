"""Sinks: the further places that a report goes to, as `--report FORMAT[=FILE]` says. See Note [Sinks by name]."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from traincheck import plugins
from traincheck.cli.console import remark
from traincheck.config import Config
from traincheck.errors import BadOption, OutputError, PluginError, TrainCheckError

if TYPE_CHECKING:
    from traincheck.vocab.finding import Report
    from traincheck.vocab.invariant import Invariant

GROUP = "traincheck.sinks"
STDOUT = "-"


@dataclass(frozen=True, slots=True)
class Asked:
    """A sink as it was asked for. `place` is the file it writes, `-`, or what a sink that writes none makes of it."""

    name: str
    place: str
    sink: Any
    words: str
    origin: str

    @property
    def file(self) -> Path | None:
        """The file that it writes, if it is one that does."""
        return Path(self.place) if self.sink.file and self.place != STDOUT else None


def asked_for(config: Config, runs: int = 1) -> list[Asked]:
    """The sinks that the options ask for, for the reports of so many runs.

    Raises BadOption for what no sink knows or for a file that several reports would go to, and PluginError.
    """
    origin = config.origin("reports")
    found: list[Asked] = []
    for words in config.reports:
        name, _, place = words.partition("=")
        sink = _named(name, words, origin)
        file = getattr(sink, "file", None)
        if not isinstance(file, str):
            raise PluginError(GROUP, name, "it does not say in `file` which file it writes, or with '' that it is none")
        one = Asked(name, place or file, sink, words, origin)
        if one.file is not None and runs > 1:
            raise BadOption(origin, words, "one RUN, for a file holds the report of one")
        if one.place and any(one.place == other.place for other in found):
            raise BadOption(origin, words, "a place of its own for each format")
        found.append(one)
    return found


def _named(name: str, words: str, origin: str) -> Any:
    """The class of this name. No package is looked at for one of ours."""
    if name not in plugins.SINKS and name not in (known := plugins.names(GROUP)):
        raise BadOption(origin, words, f"FORMAT or FORMAT=FILE, and as FORMAT one of {', '.join(known)}")
    return plugins.load(GROUP, only=[name])[name]


class Sinks:
    """The sinks of one run. Make them before anything long begins: places that cannot be written are told then."""

    def __init__(self, asked: Sequence[Asked], run: Mapping[str, object]) -> None:
        """Raises BadOption, which names the option, and PluginError."""
        self._verdicts: Sequence[tuple[Invariant, str]] = ()
        self._open = [(one, self._opened(one, run)) for one in asked]
        self.files = [one.file or Path(STDOUT) for one in asked if one.file or one.place == STDOUT]

    def _opened(self, one: Asked, run: Mapping[str, object]) -> Any:
        try:
            sink = one.sink(one.place, lambda: self._verdicts)
            sink.open(run)
        except (OutputError, ValueError) as error:
            expected = "a place that can be written" if isinstance(error, OutputError) else str(error)
            why = f" ({error})" if isinstance(error, OutputError) else ""
            raise BadOption(one.origin, one.words, expected + why) from None
        except TrainCheckError:
            raise
        except Exception as error:  # it may be somebody else's code
            raise PluginError(GROUP, one.name, f"it cannot be opened ({type(error).__name__}: {error})") from error
        return sink

    def close(self, report: Report, verdicts: Sequence[tuple[Invariant, str]]) -> None:
        """Hand them the report, each of them whatever becomes of the others. Raises OutputError, the first one."""
        self._verdicts = verdicts
        failed: list[OutputError] = []
        for one, sink in self._open:
            try:
                for finding in report.findings:
                    sink.show(finding)
                sink.close(report)
            except OutputError as error:
                failed.append(error)
            except Exception as error:  # as above
                failed.append(OutputError(one.words, f"{type(error).__name__}: {error}"))
        for further in failed[1:]:
            remark(str(further))
        if failed:
            raise failed[0]
