"""The extension points: a registry of each, as `name -> "module:NAME"`, which is imported on use.

Packages add relations, sources, sinks and trackers through entry points of the same group names.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Iterable
from importlib.metadata import entry_points
from typing import Any

from traincheck.errors import PluginError
from traincheck.vocab.source_declaration import SourceDeclaration

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

SOURCES = {
    "regions": "traincheck.sources.functions.declaration:REGIONS",
    "optimizers": "traincheck.sources.optimizers.declaration:OPTIMIZERS",
    "modules": "traincheck.sources.modules.declaration:MODULES",
    "autograd": "traincheck.sources.gradients.declaration:AUTOGRAD",
    "graph": "traincheck.sources.gradients.declaration:GRAPH",
    "lifecycle": "traincheck.sources.functions.declaration:LIFECYCLE",
    "loaders": "traincheck.sources.data.declaration:LOADERS",
    "compiled": "traincheck.sources.compile.declaration:COMPILED",
    "module_state": "traincheck.sources.modules.declaration:MODULE_STATE",
    "buffers": "traincheck.sources.modules.declaration:BUFFERS",
    "evaluation": "traincheck.sources.modules.declaration:EVALUATION",
    "copies": "traincheck.sources.modules.declaration:COPIES",
    "clipping": "traincheck.sources.gradients.declaration:CLIPPING",
    "checkpoints": "traincheck.sources.checkpoints.declaration:CHECKPOINTS",
    "collectives": "traincheck.sources.distributed.declaration:COLLECTIVES",
    "functions": "traincheck.sources.functions.declaration:FUNCTIONS",
    "run": "traincheck.sources.recording.declaration:RUN",
    "project": "traincheck.sources.functions.declaration:PROJECT",
    "jax": "traincheck.sources.jax.declaration:JAX",
    "replays": "traincheck.sources.replay.declaration:REPLAYS",
    "derivatives": "traincheck.sources.verification.declaration:DERIVATIVES",
    "updates": "traincheck.sources.verification.declaration:UPDATES",
    "round_trip": "traincheck.sources.verification.declaration:ROUND_TRIPS",
    "inputs": "traincheck.sources.verification.declaration:INPUTS",
    "recomputations": "traincheck.sources.verification.declaration:RECOMPUTATIONS",
    "accumulations": "traincheck.sources.verification.declaration:ACCUMULATIONS",
    "summaries": "traincheck.sources.tensors.declaration:SUMMARIES",
}
"""Declarations, which import no torch; sources/registry.py builds the sources themselves."""

SOURCE_GROUP = "traincheck.sources"
DIAGNOSIS_GROUP = "traincheck.diagnoses"
"""Its extensions are objects; those that come with TrainCheck are files in the folders of `diagnoses`."""

GROUPS: dict[str, dict[str, str]] = {
    "traincheck.relations": RELATIONS,
    SOURCE_GROUP: SOURCES,
    "traincheck.sinks": SINKS,
    "traincheck.trackers": TRACKERS,
    DIAGNOSIS_GROUP: {},
}

MEMBERS: dict[str, tuple[str, ...]] = {
    "traincheck.relations": (
        "occasions",
        "needs",
        "is_optional_practice",
        "is_setting",
        "argument_of",
        "implied",
        "describe",
    ),
    SOURCE_GROUP: ("offers", "attach"),
    "traincheck.sinks": ("open", "show", "close"),
    "traincheck.trackers": ("open", "show", "measure", "close"),
}
"""The methods that each class of a group must have."""


def check(group: str) -> None:
    """Import everything that installed packages add to an extension point. Raises PluginError as `load` does.

    Of sources it imports the classes as well.
    """
    if not added(group):
        return
    extensions = load(group)
    if group == SOURCE_GROUP:
        for name, _ in added(group):
            source_class(extensions[name])


def names(group: str) -> list[str]:
    """The names of an extension point's extensions; nothing is imported."""
    return list(dict.fromkeys([*GROUPS[group], *(name for name, _ in added(group))]))


def load(group: str, only: Iterable[str] | None = None) -> dict[str, Any]:
    """The extensions of a group by name: built-in ones first, then those of installed packages.

    They are classes, and declarations in the group of sources. With `only`, those that have one of these names. If all
    of these are built in, no installed package is imported. (`check` finds packages that claim a built-in name.)

    Raises PluginError if two extensions claim one name, or one cannot be imported, has another `name`, or lacks a
    method.
    """
    targets = dict(GROUPS[group])
    requested = None if only is None else set(only)
    if requested is None or not requested <= targets.keys():
        for name, target in added(group):
            if name in targets:
                raise PluginError(group, name, f"both {targets[name]} and {target} claim it")
            targets[name] = target
    selected = targets.keys() if requested is None else requested
    return {name: _extension(group, name, target) for name, target in targets.items() if name in selected}


@functools.cache
def added(group: str) -> tuple[tuple[str, str], ...]:
    """What installed packages add to an extension point: the name and `module:NAME` of each."""
    return tuple((entry.name, entry.value) for entry in _entry_points().select(group=group))


@functools.cache  # reading a file of every installed package takes as long as judging some windows
def _entry_points() -> Any:
    return entry_points()


def source_class(declaration: SourceDeclaration) -> Any:
    """The class of a source that an installed package adds. Raises PluginError as `load` does."""
    return _checked_class(SOURCE_GROUP, declaration.name, declaration.source)


def source_declaration(name: str, target: str) -> SourceDeclaration:
    """The declaration of a source at `target` (`module:NAME`). Raises PluginError as `load` does."""
    declaration = _imported(SOURCE_GROUP, name, target)
    if not isinstance(declaration, SourceDeclaration):
        raise PluginError(SOURCE_GROUP, name, f"{target} is no SourceDeclaration but {type(declaration).__name__}")
    if declaration.name != name:
        raise PluginError(SOURCE_GROUP, name, f"{target} calls itself {declaration.name!r}")
    return declaration


def _extension(group: str, name: str, target: str) -> Any:
    if group == DIAGNOSIS_GROUP:
        return _imported(group, name, target)  # diagnoses/catalogue.py checks it
    if group == SOURCE_GROUP:
        return source_declaration(name, target)
    return _checked_class(group, name, target)


def _checked_class(group: str, name: str, target: str) -> Any:
    extension = _imported(group, name, target)
    if not isinstance(extension, type):
        raise PluginError(group, name, f"{target} is no class but {type(extension).__name__}")
    if getattr(extension, "name", None) != name:
        raise PluginError(group, name, f"{target} calls itself {getattr(extension, 'name', None)!r}")
    missing = [member for member in MEMBERS[group] if not callable(getattr(extension, member, None))]
    if missing:
        raise PluginError(group, name, f"{target} has no {', '.join(missing)}")
    return extension


def _imported(group: str, name: str, target: str) -> Any:
    module, _, attribute = target.partition(":")
    if not attribute:
        raise PluginError(group, name, f"{target!r} names no class; write it as `module:Class`")
    try:
        return getattr(importlib.import_module(module), attribute)
    except Exception as error:  # code of another package may raise anything
        raise PluginError(group, name, f"{target} cannot be imported ({type(error).__name__}: {error})") from error
