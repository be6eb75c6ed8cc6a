"""What the source that executes steps again serves."""

from __future__ import annotations

from traincheck.vocab.source_declaration import SourceDeclaration

REPLAYS = SourceDeclaration(
    name="replays",
    observes="training steps that are executed a second time, with --verify-every",
    absence="Rules about silent data corruption in this run are not judged.",
    readings=("computation.*",),
    cost="step",
    switchable=False,
)
