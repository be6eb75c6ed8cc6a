"""What the source about programs of JAX serves."""

from __future__ import annotations

from traincheck.vocab.source_declaration import SourceDeclaration

JAX = SourceDeclaration(
    name="jax",
    observes="updates that jitted functions of JAX make, with parameters, optimizer state and random keys around them",
    absence="No rule is judged: these updates end training steps.",
    apis=("jax.",),
    readings=("random.key",),
    cost="step",
    required=True,
)
