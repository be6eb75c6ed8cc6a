"""The diagnosis that a send buffer was changed before the send ended."""

from __future__ import annotations

from traincheck.diagnoses.diagnosis import Diagnosis, Match
from traincheck.relations.api_output.call_results import UNCHANGED
from traincheck.vocab.collectives import WAIT
from traincheck.vocab.properties import LEAVES_ARGUMENT

DIAGNOSIS = Diagnosis(
    slug="send-buffer-overwritten",
    title="A send buffer was changed before the send ended",
    problem="The program overwrote or reused the memory of an asynchronous send before it waited for its end. "
    "The send may read this memory until then, so the other rank may receive the later values.",
    advice=(
        "Keep the buffer that you passed to isend unchanged until wait() returns. Which code writes to it in between?",
        "If you reuse buffers, return them to the pool after the wait, not when the send starts.",
    ),
    explains=(Match(verb=LEAVES_ARGUMENT, api=WAIT, detail=UNCHANGED),),
    priority=1,
    priority_reason="Wrong values on the receiving rank follow from it.",
    example="""\
work = dist.isend(buffer, 1)
buffer.copy_(next_block)  # work.wait() comes too late
work.wait()
""",
    former_titles=("What is sent was changed while it was on its way",),
)
