"""The formats of `--report FORMAT[=FILE]` and `--json`: opens the sinks and gives them the report.

See Note [Sinks by name].
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from traincheck import plugins
from traincheck.cli.console import remark
from traincheck.config import Config
from traincheck.errors import BadOption, OutputError, PluginError, TrainCheckError
from traincheck.options import OPTIONS

if TYPE_CHECKING:
    from traincheck.vocab.finding import Report
    from traincheck.vocab.invariant import Invariant

GROUP = "traincheck.sinks"
STDOUT = "-"
JSON, HTML = "json", "html"


@dataclass(frozen=True, slots=True)
class RequestedSink:
    """A requested format. `target` is the file, `-`, or for a sink without a file the word after `=`."""

    name: str
    target: str
    sink: Any
    text: str
    origin: str

    @property
    def file(self) -> Path | None:
        """The file that the sink writes, None for standard output and for a sink without a file."""
        return Path(self.target) if self.sink.file and self.target != STDOUT else None


def requested(config: Config, runs: int = 1, as_json: bool = False) -> list[RequestedSink]:
    """The formats that the options request, for the reports of so many runs; `as_json` is JSON on standard output.

    Raises BadOption for an unknown format and for a file that several reports would go to, and PluginError.
    """
    texts = [(text, config.origin("reports")) for text in config.reports]
    if as_json:
        texts.insert(0, (f"{JSON}={STDOUT}", OPTIONS["json"].flag))
    return requests_of(texts, _sink, runs)


def requests_of(
    texts: Sequence[tuple[str, str]], find: Callable[[str, str, str], Any], runs: int = 1
) -> list[RequestedSink]:
    """The formats that texts `FORMAT[=FILE]` with their origins request, see `requested`.

    `find` returns the format of a name, for its text and origin, or raises BadOption.
    """
    requests: list[RequestedSink] = []
    for text, origin in texts:
        name, _, target = text.partition("=")
        sink = find(name, text, origin)
        file = getattr(sink, "file", None)
        if not isinstance(file, str):
            raise PluginError(GROUP, name, "its attribute `file` must name its default file, or be '' without a file")
        request = RequestedSink(name, target or file, sink, text, origin)
        if request.target and runs > 1 and (request.file is not None or name == JSON):
            raise BadOption(origin, text, "one RUN, because a file holds the report of one run")
        if request.target and any(request.target == other.target for other in requests):
            raise BadOption(origin, text, "a different file for each format")
        requests.append(request)
    return requests


def _sink(name: str, text: str, origin: str) -> Any:
    """The class of this name. Built-in formats do not look at installed packages."""
    if name not in plugins.SINKS and name not in (names := plugins.names(GROUP)):
        raise BadOption(origin, text, f"FORMAT or FORMAT=FILE, with the format one of {', '.join(names)}")
    return plugins.load(GROUP, only=[name])[name]


class Sinks:
    """The open sinks of one run. Open them before the run starts, so that a bad file is reported at once."""

    def __init__(self, requests: Sequence[RequestedSink], run: Mapping[str, object]) -> None:
        """Raises BadOption, which names the option, and PluginError."""
        self._verdicts: Sequence[tuple[Invariant, str]] = ()
        self._open = [(request, self._opened(request, run)) for request in requests]
        self.files = [request.file or Path(STDOUT) for request in requests if request.file or request.target == STDOUT]

    def _opened(self, request: RequestedSink, run: Mapping[str, object]) -> Any:
        try:
            sink = request.sink(request.target, lambda: self._verdicts)
            sink.open(run)
        except (OutputError, ValueError) as error:
            expected = f"a file that can be written ({error})" if isinstance(error, OutputError) else str(error)
            raise BadOption(request.origin, request.text, expected) from None
        except TrainCheckError:
            raise
        except Exception as error:  # a plug-in may raise anything
            raise PluginError(GROUP, request.name, f"it cannot be opened ({type(error).__name__}: {error})") from error
        return sink

    def close(self, report: Report, verdicts: Sequence[tuple[Invariant, str]], folder: Path) -> None:
        """Give every sink the report of the run in `folder`, even if another sink fails.

        Raises the first OutputError.
        """
        self._verdicts = verdicts
        errors: list[OutputError] = []
        for request, sink in self._open:
            try:
                if request.name == HTML:
                    from traincheck.checking.finding_details import finding_details

                    sink.details = finding_details(folder, report, [rule for rule, _ in verdicts])
                for finding in report.findings:
                    sink.show(finding)
                sink.close(report)
            except OutputError as error:
                errors.append(error)
            except Exception as error:  # as above
                errors.append(OutputError(request.text, f"{type(error).__name__}: {error}"))
        for further in errors[1:]:
            remark(str(further))
        if errors:
            raise errors[0]
