"""Guarding: who is told of a run from outside, as the options say: webhook, command, Prometheus, OpenTelemetry."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Literal

from traincheck import plugins
from traincheck.cli.console import remark
from traincheck.config import Config
from traincheck.errors import BadOption, OutputError, PluginError, TrainCheckError
from traincheck.options import OPTIONS

if TYPE_CHECKING:
    from traincheck.reporting.metrics.otlp import Otlp
    from traincheck.reporting.metrics.prometheus import Prometheus
    from traincheck.reporting.trackers.tracking import Tracking
    from traincheck.runtime.run_monitor import Guard, Receiver

MOST_PORTS = 65_535
SECRET = "(a secret)"


def silent_after(config: Config) -> float:
    """Seconds of `--silent-after`. Raises BadOption."""
    with suppress(ValueError):
        found = float(config.silent_after)
        if 0 < found < float("inf"):
            return found
    raise _bad(config, "silent_after", "a number of seconds above 0")


def guard(config: Config, more: Sequence[Receiver] = ()) -> Guard:
    """What looks out for a run that this command starts, for `more` as well. Raises as `receivers`."""
    from traincheck.runtime.run_monitor import Guard

    seconds = silent_after(config)
    return Guard([*receivers(config), *more], remark, seconds)


def tracking(config: Config) -> list[Tracking]:
    """The trackers that are asked for; none of them is at work yet. Raises BadOption, MissingExtra and PluginError."""
    group, origin = "traincheck.trackers", config.origin("trackers")
    found: list[Tracking] = []
    for words in config.trackers:
        from traincheck.reporting.trackers.tracking import Tracking

        name, _, place = words.partition("=")
        if name not in plugins.TRACKERS and name not in (known := plugins.names(group)):
            raise BadOption(origin, words, f"TRACKER or TRACKER=PLACE, and as TRACKER one of {', '.join(known)}")
        tracker = plugins.load(group, only=[name])[name]
        try:
            tracker(place)
        except ValueError as error:
            raise BadOption(origin, words, str(error)) from None
        except OutputError as error:
            raise BadOption(origin, words, f"a place that can be written ({error})") from None
        except TrainCheckError:
            raise
        except Exception as error:  # it may be somebody else's code
            raise PluginError(group, name, f"it cannot be made ({type(error).__name__}: {error})") from error
        found.append(Tracking(name, f"{tracker.__module__}:{tracker.__qualname__}", place, remark))
    return found


def receivers(config: Config) -> list[Receiver]:
    """Those that the options ask for, at work: a port is open from now on, and nothing is sent yet.

    Raises BadOption, which never shows a secret, and MissingExtra.
    """
    found: list[Receiver] = []
    try:
        if config.metrics_port is not None:
            found.append(_prometheus(config, config.metrics_port))
        if config.otlp is not None:
            found.append(_otlp(config, config.otlp))
        if config.webhook is not None or config.alert_command is not None:
            found.append(_alerts(config))
    except BaseException:
        for one in found:
            one.close()
        raise
    return found


def _alerts(config: Config) -> Receiver:
    from traincheck.reporting.alerts.alert_queue import Carrier, Courier
    from traincheck.reporting.alerts.alerts import Alerts
    from traincheck.reporting.alerts.command import Command
    from traincheck.reporting.alerts.webhook import Webhook

    carriers: list[Carrier] = []
    for name, value, kind in (
        ("webhook", config.webhook, Webhook),
        ("alert_command", config.alert_command, Command),
    ):
        if value is not None:
            try:
                carriers.append(kind(value))
            except ValueError as error:
                raise _bad(config, name, str(error)) from None
    least: Literal["error", "notice"] = "notice" if config.alert_on == "notice" else "error"
    return Alerts([Courier(carrier, remark) for carrier in carriers], least)


def _prometheus(config: Config, told: str) -> Prometheus:
    from traincheck.reporting.metrics.prometheus import Prometheus, is_loopback

    port = int(told) if told.isdecimal() and told.isascii() else -1
    if not 0 <= port <= MOST_PORTS:
        raise _bad(config, "metrics_port", f"a number of a port, 0 to {MOST_PORTS}")
    token = config.metrics_token or ""
    if not (token.isascii() and token.isprintable()):
        raise _bad(config, "metrics_token", "plain ASCII characters")
    try:
        open_to_all = not is_loopback(config.metrics_host)
    except (OSError, ValueError) as error:
        raise _bad(config, "metrics_host", f"an address of this host ({error})") from None
    if open_to_all and not token:
        option = OPTIONS["metrics_token"]
        why = f"an address that only this host can reach, or a token beside it ({option.flag} or {option.variable})"
        raise _bad(config, "metrics_host", why)
    try:
        found = Prometheus(config.metrics_host, port, token)
    except OSError as error:
        why = f"a port of {config.metrics_host} that is free ({error.strerror or error})"
        raise _bad(config, "metrics_port", why) from None
    remark(f"metrics at {found.address}")
    return found


def _otlp(config: Config, endpoint: str) -> Otlp:
    from traincheck.reporting.metrics.otlp import Otlp

    try:
        return Otlp(endpoint, remark)
    except ValueError as error:
        raise _bad(config, "otlp", str(error)) from None


def _bad(config: Config, name: str, expected: str) -> BadOption:
    origin = config.origin(name)
    option = OPTIONS[name]
    told = SECRET if option.secret else getattr(config, name)
    return BadOption(origin if name in config.origins and origin != "default" else option.flag, told, expected)
