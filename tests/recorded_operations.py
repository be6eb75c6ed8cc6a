"""Records the operations of steps in this process, and compares them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pytest

from traincheck.comparison.run_comparison import Comparison, compare_steps
from traincheck.sources.operations.operation_source import OperationSource
from traincheck.sources.operations.whole_values import WholeValues
from traincheck.sources.recording.call_sites import CallSites
from traincheck.sources.recording.recorder import Recorder
from traincheck.sources.registry import attach, build_all
from traincheck.vocab.demand import NOTHING
from traincheck.vocab.operations import StepOperations


@contextmanager
def recorded(into: list[StepOperations], whole_values: WholeValues | None = None) -> Iterator[None]:
    """Record the operations of the steps inside."""
    recorder = Recorder(CallSites(()), lambda window: None, lambda source, error: pytest.fail(f"{source}: {error!r}"))
    built = build_all(recorder, lambda: None, installed=False, operations=into.append, whole_values=whole_values)
    assert any(isinstance(source, OperationSource) for source in built.sources)
    undo, _ = attach(built.sources, NOTHING, recorder)
    try:
        yield
        recorder.finish()
    finally:
        undo.close()


def compare_one_rank(a: Sequence[StepOperations], b: Sequence[StepOperations]) -> Comparison:
    return compare_steps([(step,) for step in a], [(step,) for step in b])
