"""Registries: name -> "module:Class" for the extension points, imported on use.

Packages add their own through entry points of the same group names, such as `traincheck.relations`.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Iterable
from importlib.metadata import entry_points
from typing import Any

from traincheck.errors import PluginError

RELATIONS = {
    "EventContain": "traincheck.relations.event_contain.relation:EventContain",
    "APISequence": "traincheck.relations.api_sequence.relation:APISequence",
    "APIArg": "traincheck.relations.api_arg.relation:APIArg",
    "APIOutput": "traincheck.relations.api_output.relation:APIOutput",
    "Consistent": "traincheck.relations.consistent.relation:Consistent",
    "Periodic": "traincheck.relations.periodic.relation:Periodic",
}

SINKS = {
    "json": "traincheck.reporting.json_report:JsonSink",
    "html": "traincheck.reporting.html.sink:HtmlSink",
    "junit": "traincheck.reporting.junit:JUnitSink",
    "sarif": "traincheck.reporting.sarif:SarifSink",
    "github": "traincheck.reporting.github:GitHubSink",
    "markdown": "traincheck.reporting.markdown:MarkdownSink",
}

TRACKERS = {
    "tensorboard": "traincheck.reporting.trackers.tensorboard:TensorBoard",
    "wandb": "traincheck.reporting.trackers.wandb:WeightsAndBiases",
    "mlflow": "traincheck.reporting.trackers.mlflow:MLflow",
}

GROUPS: dict[str, dict[str, str]] = {
    "traincheck.relations": RELATIONS,
    "traincheck.sinks": SINKS,
    "traincheck.trackers": TRACKERS,
}

MEMBERS: dict[str, tuple[str, ...]] = {
    "traincheck.relations": ("occasions", "needs", "is_habit", "is_setting", "argument_of", "implied", "describe"),
    "traincheck.sinks": ("open", "show", "close"),
    "traincheck.trackers": ("open", "show", "measure", "close"),
}
"""The methods that a class must have to be an extension of a group, whatever they do."""


def check(group: str) -> None:
    """See to it that what installed packages add to an extension point can be used, if any does. Raises as `load`."""
    if _added(group):
        load(group)


def names(group: str) -> list[str]:
    """The names of an extension point's classes, none of which is imported."""
    return list(dict.fromkeys([*GROUPS[group], *(name for name, _ in _added(group))]))


def load(group: str, only: Iterable[str] | None = None) -> dict[str, Any]:
    """The classes of an extension point by name: built-in ones first, then those of installed packages.

    With `only` those of them that have these names: where all of these are built in, no package is looked at.
    (`check` has told of those that claim such a name, too.)

    Raises PluginError for a name that two claim, for a class that cannot be imported, for one whose own `name` is
    another, and for one that lacks a method.
    """
    places = dict(GROUPS[group])
    names = None if only is None else set(only)
    if names is not None and names <= places.keys():
        return {name: _class(group, name, place) for name, place in places.items() if name in names}
    for name, place in _added(group):
        if name in places:
            raise PluginError(group, name, f"both {places[name]} and {place} claim it")
        places[name] = place
    return {name: _class(group, name, place) for name, place in places.items() if names is None or name in names}


@functools.cache  # a file of every installed package is read for it, which takes as long as judging some windows
def _added(group: str) -> tuple[tuple[str, str], ...]:
    """What installed packages add to an extension point, as a name and a place each."""
    return tuple((entry.name, entry.value) for entry in entry_points(group=group))


def _class(group: str, name: str, place: str) -> Any:
    module, _, attribute = place.partition(":")
    if not attribute:
        raise PluginError(group, name, f"{place!r} names no class; write it as `module:Class`")
    try:
        found = getattr(importlib.import_module(module), attribute)
    except Exception as error:  # it is somebody else's code, and whatever it raises has to be told with its name
        raise PluginError(group, name, f"{place} cannot be imported ({type(error).__name__}: {error})") from error
    if not isinstance(found, type):
        raise PluginError(group, name, f"{place} is no class but {type(found).__name__}")
    if getattr(found, "name", None) != name:
        raise PluginError(group, name, f"{place} calls itself {getattr(found, 'name', None)!r}")
    missing = [member for member in MEMBERS.get(group, ()) if not callable(getattr(found, member, None))]
    if missing:
        raise PluginError(group, name, f"{place} has no {', '.join(missing)}")
    return found
