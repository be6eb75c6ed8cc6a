"""Finds the diagnosis of a violated rule.

Note [Catalogue]
Each file in a topic folder of this package holds one `DIAGNOSIS`; its file name is its slug. Installed packages add
theirs through entry points of the group `traincheck.diagnoses`. No list names them. TrainCheck reads the catalogue
when the first rule is violated, so most runs never import it.

Note [The most specific match]
Several diagnoses may explain a violation: "ranks have diverged" fits every value that differs between ranks, and
"gradients of replicas differ" fits some of them. The diagnosis with the most specific match (the most fields set) is
the answer, so the order of the files does not matter, and an entry of your own can refine one of ours.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from types import MappingProxyType, ModuleType

from traincheck import diagnoses, plugins
from traincheck.diagnoses.diagnosis import Diagnosis, Match
from traincheck.errors import PluginError
from traincheck.plugins import DIAGNOSIS_GROUP
from traincheck.relations.base import short
from traincheck.vocab.finding import UNEXPLAINED, Violation
from traincheck.vocab.invariant import Invariant

_SLUG = re.compile(r"[a-z0-9]+(-[a-z0-9]+)+")
_TEXTS = ("slug", "title", "problem", "priority_reason", "example")


@functools.cache
def topics() -> Mapping[str, tuple[Diagnosis, ...]]:
    """The diagnoses that come with TrainCheck, by the title of their topic."""
    by_title = {}
    for package in _modules(diagnoses):
        if hasattr(package, "__path__"):
            entries = tuple(module.DIAGNOSIS for module in _modules(package))
            by_title[str(package.TITLE)] = tuple(sorted(entries, key=lambda entry: (entry.priority, entry.slug)))
    return MappingProxyType(by_title)


def _modules(package: ModuleType) -> Iterator[ModuleType]:
    for info in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
        yield importlib.import_module(info.name)


@functools.cache
def catalogue() -> Mapping[str, Diagnosis]:
    """All diagnoses by slug, those of installed packages last.

    Raises PluginError for an entry of a package that is incomplete or has the slug of another entry.
    """
    entries = {entry.slug: entry for group in topics().values() for entry in group}
    for slug, entry in plugins.load(DIAGNOSIS_GROUP).items():
        if slug in entries:
            raise PluginError(DIAGNOSIS_GROUP, slug, "TrainCheck has a diagnosis of this slug; choose another one")
        problem = flaw(entry)
        if not problem and entry.slug != slug:
            problem = f"its slug is {entry.slug!r}; the entry point needs the same name"
        if problem:
            raise PluginError(DIAGNOSIS_GROUP, slug, problem)
        entries[slug] = entry
    return MappingProxyType(entries)


def diagnose(violation: Violation) -> Diagnosis:
    """The most specific diagnosis of a violation, see Note [The most specific match]."""
    ranked = [(entry.specificity_for(violation), entry) for entry in catalogue().values()]
    matching = [pair for pair in ranked if pair[0] >= 0]
    if not matching:
        return _unexplained(violation.invariant)
    return min(matching, key=lambda pair: (-pair[0], pair[1].priority, pair[1].slug))[1]


def _unexplained(rule: Invariant) -> Diagnosis:
    """The general diagnosis in the words of a rule."""
    api = short(rule.subject.api)
    return replace(
        catalogue()[UNEXPLAINED],
        title=f"{api} does not behave as in good runs",
        problem=f"In good runs, {rule.sentence}; here it does not.",
        advice=(f"Check the code around this call of {api}, and what changed since the good runs.",),
    )


def slug_of_title(title: str) -> str:
    """The slug for a title in a report of an older version; empty for an unknown title."""
    for entry in catalogue().values():
        if title == entry.title or title in entry.former_titles:
            return entry.slug
    return UNEXPLAINED if title.endswith(" does not behave as in good runs") else ""


def flaw(entry: object) -> str:
    """Why an object cannot be an entry of the catalogue; empty if it can."""
    if not isinstance(entry, Diagnosis):
        return f"it is a {type(entry).__name__}, not a traincheck.diagnoses.diagnosis.Diagnosis"
    if empty := [name for name in _TEXTS if not str(getattr(entry, name)).strip()]:
        return f"its {', '.join(empty)} must not be empty"
    if not _SLUG.fullmatch(entry.slug):
        return "its slug must be several lower-case words joined by hyphens, as in `gradients-not-cleared`"
    if not entry.advice or not all(isinstance(line, str) and line.strip() for line in entry.advice):
        return "its advice must be a tuple of texts, at least one"
    if not entry.explains and entry.slug != UNEXPLAINED:
        return "it explains nothing; give it at least one Match"
    if not all(isinstance(match, Match) and match.specificity for match in entry.explains):
        return "`explains` must be a tuple of Match, each with at least one field"
    if not isinstance(entry.priority, int) or entry.priority < 1:
        return "its priority must be a whole number, 1 or more"
    return ""
