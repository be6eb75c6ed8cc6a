"""Registries: name -> "module:Class" for the extension points, imported on use.

Packages add their own through entry points of the same group names, such as `traincheck.relations`.
"""

from __future__ import annotations

import importlib
from importlib.metadata import entry_points
from typing import Any

from traincheck.errors import PluginError

RELATIONS = {
    "EventContain": "traincheck.relations.event_contain:EventContain",
    "APISequence": "traincheck.relations.api_sequence:APISequence",
}

GROUPS: dict[str, dict[str, str]] = {"traincheck.relations": RELATIONS}


def load(group: str) -> dict[str, Any]:
    """The classes of an extension point by name: built-in ones first, then those of installed packages.

    Raises PluginError for a name that two claim, for a class that cannot be imported, and for one whose own `name`
    is another.
    """
    places = dict(GROUPS[group])
    for entry in entry_points(group=group):
        if entry.name in places:
            raise PluginError(group, entry.name, f"both {places[entry.name]} and {entry.value} claim it")
        places[entry.name] = entry.value
    return {name: _class(group, name, place) for name, place in places.items()}


def _class(group: str, name: str, place: str) -> Any:
    module, _, attribute = place.partition(":")
    try:
        found = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise PluginError(group, name, f"{place} cannot be imported ({error})") from error
    if getattr(found, "name", None) != name:
        raise PluginError(group, name, f"{place} calls itself {getattr(found, 'name', None)!r}")
    return found
