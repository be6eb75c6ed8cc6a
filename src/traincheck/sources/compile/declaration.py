"""What the source about compiled code serves."""

from __future__ import annotations

from traincheck.vocab.source_declaration import SourceDeclaration

COMPILED = SourceDeclaration(
    name="compiled",
    observes="calls of compiled models, steps and functions, each as a whole",
    absence="No rule is judged: steps of compiled code would go unseen.",
    required=True,
)
