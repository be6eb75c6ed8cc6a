"""What the source about collectives serves."""

from __future__ import annotations

from traincheck.vocab.source_declaration import SourceDeclaration

COLLECTIVES = SourceDeclaration(
    name="collectives",
    observes="calls of `torch.distributed` and their results",
    absence="Rules about communication are not judged, and TrainCheck does not compare ranks.",
    apis=("torch.distributed.",),
    aligns_ranks=True,
)
