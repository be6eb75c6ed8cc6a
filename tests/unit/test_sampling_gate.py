"""The gate between watched and unwatched steps."""

from __future__ import annotations

from traincheck.sources.recording.sampling_gate import SamplingGate


def test_a_source_that_ends_at_a_gap_leaves_the_others_their_reset() -> None:
    gate = SamplingGate(lambda step: True)
    called: list[str] = []

    def ends() -> None:
        called.append("ends")
        gate.remove_reset(ends)

    for reset in (ends, lambda: called.append("second"), lambda: called.append("third")):
        gate.add_reset(reset, repeatable=True)
    gate.reset_sources()
    gate.repeat_reports()
    assert called == ["ends", "second", "third", "second", "third"]
