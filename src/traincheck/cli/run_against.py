"""Compares the run of `traincheck run --against RUN_A` with RUN_A while it trains."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from traincheck.cli.console import remark, say
from traincheck.config import Config
from traincheck.errors import BadOption, TrainCheckError
from traincheck.options import OPERATIONS, OPTIONS

if TYPE_CHECKING:
    from traincheck.comparison.given_names import GivenName
    from traincheck.comparison.live_comparison import LiveComparison
    from traincheck.comparison.run_comparison import Comparison
    from traincheck.trace.folder import RunFolder
    from traincheck.vocab.finding import Report


def recording_operations(
    config: Config, against: Path, names: Sequence[str] = ()
) -> tuple[Config, tuple[GivenName, ...]]:
    """The configuration of a run that is compared with `against`: it records operations. And the `names` that the user
    matched.

    Raises NothingToCompare if `against` has no sketches, the errors of `RunFolder`, and BadOption for another --record
    and for names that cannot be parsed.
    """
    from traincheck.comparison.given_names import given_names
    from traincheck.comparison.run_comparison import recorded_ranks

    record = OPTIONS["record"].flag
    if config.origin("record") == record and config.record != OPERATIONS:
        raise BadOption(record, config.record, f"{OPERATIONS} with {OPTIONS['against'].flag}")
    given = given_names(names)
    recorded_ranks(against)
    return replace(config, record=OPERATIONS), given


def live_comparison(
    against: Path, folder: RunFolder, config: Config, given: Sequence[GivenName] = ()
) -> LiveComparison:
    """The comparison of the run in `folder` with `against`, which shows the first difference and reacts to it.

    `given` are names that the user matched.
    """
    from traincheck.comparison.live_comparison import LiveComparison

    def react(comparison: Comparison) -> None:
        first, *others = _text(comparison, against, folder.path, given)
        remark(first)
        for line in others:
            say(line)
        if config.on_violation == "stop":
            origin = comparison.origins[0]
            try:
                folder.request_stop(f"the run differs from {against}", origin.step)
            except TrainCheckError as error:
                remark(str(error))

    return LiveComparison(against, folder, react, given)


def with_comparison(report: Report, live: LiveComparison, folder: Path) -> Report:
    """The report of a run, with the result of its comparison, or the reason why there is none."""
    from traincheck.comparison.configuration import configuration_differences
    from traincheck.comparison.report import data

    comparison, against = live.comparison, live.earlier
    if live.fault:
        reason = f"steps to compare with {against}: {live.fault}"
        report = replace(report, not_observed=(*report.not_observed, reason))
    if comparison is None:
        return report
    entry = data(comparison, str(against), str(folder), configuration_differences(against, folder))
    return replace(report, comparison={**entry, "text": _text(comparison, against, folder, live.given)})


def _text(comparison: Comparison, against: Path, folder: Path, given: Sequence[GivenName]) -> list[str]:
    """The comparison as `traincheck compare` prints it."""
    from traincheck.comparison.configuration import configuration_differences
    from traincheck.comparison.report import lines
    from traincheck.comparison.run_comparison import common_steps
    from traincheck.comparison.spread import first_losses

    losses = first_losses(comparison, common_steps(against, folder, given)) if comparison.origins else ()
    labels = (against.name, folder.name) if against.name != folder.name else (str(against), str(folder))
    return list(lines(comparison, *labels, configuration_differences(against, folder), losses))
