"""Declares the demands that the source `run` serves."""

from __future__ import annotations

from traincheck.vocab.source_declaration import SourceDeclaration

RUN = SourceDeclaration(
    name="run",
    observes="the number of ranks, and of training steps when the run ends",
    absence="Rules about the whole run are not judged.",
    readings=("run.*",),
    cost="step",
)
