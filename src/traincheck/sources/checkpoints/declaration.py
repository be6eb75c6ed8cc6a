"""What the source about checkpoints serves."""

from __future__ import annotations

from traincheck.vocab.source_declaration import SourceDeclaration

CHECKPOINTS = SourceDeclaration(
    name="checkpoints",
    observes="saved and loaded state, compared with the live model and optimizer",
    absence="Rules about checkpoints are not judged.",
    readings=(
        "checkpoint.kept",
        "checkpoint.merged",
        "checkpoint.resumed",
        "checkpoint.resumed_here",
        "checkpoint.restarted_schedule",
    ),
    apis=("*.save", "*.save_file", "*.state_dict", "*.load_state_dict"),
)
