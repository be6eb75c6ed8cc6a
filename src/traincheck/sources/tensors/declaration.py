"""What the summaries of arguments and results serve, which all sources use for their calls."""

from __future__ import annotations

from traincheck.vocab.demand import ARGUMENTS, TENSOR_VALUES, TENSORS
from traincheck.vocab.source_declaration import SourceDeclaration

SUMMARIES = SourceDeclaration(
    name="summaries",
    observes="arguments and results of the calls of all sources",
    absence="Rules about arguments and results are not judged.",
    values=(ARGUMENTS, TENSORS, *TENSOR_VALUES),
    switchable=False,
)
