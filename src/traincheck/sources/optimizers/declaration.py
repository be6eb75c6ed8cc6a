"""What the source about optimizers serves."""

from __future__ import annotations

from traincheck.vocab.source_declaration import SourceDeclaration

OPTIMIZERS = SourceDeclaration(
    name="optimizers",
    observes="construction, `step` and `zero_grad` of optimizers, with parameters and optimizer state around them",
    absence="No rule is judged: updates end training steps.",
    readings=("optimizer.replaced", "optimizer.unread_settings"),
    cost="step",
    required=True,
)
