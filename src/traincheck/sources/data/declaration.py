"""What the source about data loaders serves."""

from __future__ import annotations

from traincheck.vocab.source_declaration import SourceDeclaration

LOADERS = SourceDeclaration(
    name="loaders",
    observes="batches, epochs of a loader, and random states of the process and of forked workers",
    absence="No rule is judged: a training step begins with the batch that it fetches.",
    required=True,
)
