"""Alerts, metrics and trackers of a run, made from the options before the run starts."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from traincheck import plugins
from traincheck.cli.console import remark
from traincheck.config import SECRET, Config
from traincheck.errors import BadOption, OutputError, PluginError, TrainCheckError
from traincheck.options import OPTIONS

if TYPE_CHECKING:
    from traincheck.reporting.alerts.alert_queue import Channel
    from traincheck.reporting.metrics.prometheus import Prometheus
    from traincheck.reporting.trackers.tracking import Tracking
    from traincheck.runtime.run_monitor import Receiver, RunMonitor

MAX_PORTS = 65_535
LOOPBACK = "127.0.0.1"
URL = "://"


def heartbeat_timeout(config: Config) -> float:
    """Seconds of `--heartbeat-timeout`. Raises BadOption."""
    with suppress(ValueError):
        seconds = float(config.heartbeat_timeout)
        if 0 < seconds < float("inf"):
            return seconds
    raise _bad(config, "heartbeat_timeout", config.heartbeat_timeout, "a number of seconds above 0")


def run_monitor(config: Config, more: Sequence[Receiver] = ()) -> RunMonitor:
    """The monitor of a run that this command starts, with the receivers of the options and `more`.

    Raises as `receivers`.
    """
    from traincheck.runtime.run_monitor import RunMonitor

    seconds = heartbeat_timeout(config)
    return RunMonitor([*receivers(config), *more], remark, seconds)


def trackers(config: Config) -> list[Tracking]:
    """The requested trackers, none of which is started. Raises BadOption, MissingExtra and PluginError."""
    group, origin = "traincheck.trackers", config.origin("trackers")
    requested: list[Tracking] = []
    for text in config.trackers:
        from traincheck.reporting.trackers.tracking import Tracking

        name, _, target = text.partition("=")
        if name not in plugins.TRACKERS and name not in (names := plugins.names(group)):
            raise BadOption(origin, text, f"TRACKER or TRACKER=TARGET, with the tracker one of {', '.join(names)}")
        tracker = plugins.load(group, only=[name])[name]
        try:
            tracker(target)
        except ValueError as error:
            raise BadOption(origin, text, str(error)) from None
        except OutputError as error:
            raise BadOption(origin, text, f"a folder that can be written ({error})") from None
        except TrainCheckError:
            raise
        except Exception as error:  # a plug-in may raise anything
            raise PluginError(group, name, f"it cannot be made ({type(error).__name__}: {error})") from error
        requested.append(Tracking(name, f"{tracker.__module__}:{tracker.__qualname__}", target, remark))
    return requested


def receivers(config: Config) -> list[Receiver]:
    """The requested receivers of findings and status. Ports are open when this returns; nothing is sent yet.

    Raises BadOption, which never shows a secret, and MissingExtra.
    """
    opened: list[Receiver] = []
    try:
        opened += [_metrics(config, text) for text in config.metrics]
        if config.alerts:
            opened.append(_alerts(config))
    except BaseException:
        for receiver in opened:
            receiver.close()
        raise
    return opened


def _alerts(config: Config) -> Receiver:
    from traincheck.reporting.alerts.alert_queue import AlertQueue
    from traincheck.reporting.alerts.alerts import Alerts

    queues = [AlertQueue(_channel(config, text), remark) for text in config.alerts]
    return Alerts(queues, "notice" if config.fail_on == "notice" else "error")


def _channel(config: Config, text: str) -> Channel:
    """The webhook of an address, else the command."""
    from traincheck.reporting.alerts.command import Command
    from traincheck.reporting.alerts.webhook import Webhook

    try:
        if URL in text:
            return Webhook(text)
        _check_program(text)
        return Command(text)
    except ValueError as error:
        raise _bad(config, "alerts", SECRET, str(error)) from None


def _check_program(text: str) -> None:
    """Raises ValueError for a path that is no program.

    It may be an address without its scheme: a secret, which `Command` would repeat in its message.
    """
    try:
        words = shlex.split(text)
    except ValueError:
        return  # `Command` says what is wrong with it
    if words and "/" in words[0] and shutil.which(words[0]) is None:
        raise ValueError("an address that begins with https:// or http://, or a program that is there")


def _metrics(config: Config, text: str) -> Receiver:
    if URL not in text:
        return _prometheus(config, text)
    from traincheck.reporting.metrics.otlp import Otlp

    try:
        return Otlp(text, remark)
    except ValueError as error:
        raise _bad(config, "metrics", text, str(error)) from None


def _prometheus(config: Config, text: str) -> Prometheus:
    from traincheck.reporting.metrics.prometheus import Prometheus, is_loopback

    name, _, number = text.rpartition(":")
    host = name.removeprefix("[").removesuffix("]") or LOOPBACK
    port = int(number) if number.isdecimal() and number.isascii() else -1
    if not 0 <= port <= MAX_PORTS:
        expected = f"PORT or HOST:PORT with a port from 0 to {MAX_PORTS}, or the http address of a collector"
        raise _bad(config, "metrics", text, expected)
    token_option = OPTIONS["metrics_token"]
    token = config.metrics_token or ""
    if not (token.isascii() and token.isprintable()):
        raise _bad(config, "metrics_token", SECRET, "plain ASCII characters")
    try:
        open_to_all = not is_loopback(host)
    except (OSError, ValueError) as error:
        raise _bad(config, "metrics", text, f"an address of this host ({error})") from None
    if open_to_all and not token:
        expected = f"an address that only this host can reach, or a token in {token_option.variable}"
        raise _bad(config, "metrics", text, expected)
    try:
        server = Prometheus(host, port, token)
    except OSError as error:
        expected = f"a port of {host} that is free ({error.strerror or error})"
        raise _bad(config, "metrics", text, expected) from None
    remark(f"metrics at {server.address}")
    return server


def _bad(config: Config, name: str, value: object, expected: str) -> BadOption:
    origin = config.origin(name)
    is_named = name in config.origins and origin != "default"
    return BadOption(origin if is_named else OPTIONS[name].flag, value, expected)
