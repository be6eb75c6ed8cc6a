"""Reads the diagnosis of a finding in recorded results, which may be older than the diagnosis."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from traincheck.diagnoses.catalogue import catalogue, slug_of_title
from traincheck.vocab.finding import UNEXPLAINED


def diagnosis_of(finding: Mapping[str, Any]) -> str:
    """Return the slug; results from before the catalogue have only a title."""
    return str(finding.get("diagnosis") or slug_of_title(finding["title"]))


def title_of(finding: Mapping[str, Any]) -> str:
    """Return the current title in the catalogue."""
    slug = diagnosis_of(finding)
    entry = None if slug == UNEXPLAINED else catalogue().get(slug)
    return str(finding["title"]) if entry is None else entry.title
