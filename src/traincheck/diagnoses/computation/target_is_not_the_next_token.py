"""The diagnosis that a model sees the token that it is asked for, or is asked for a token behind the next one."""

from __future__ import annotations

from traincheck.diagnoses.diagnosis import Diagnosis, Match
from traincheck.vocab.properties import IS_VERIFIED
from traincheck.vocab.verification import KIND, NEXT_TOKEN

DIAGNOSIS = Diagnosis(
    slug="target-is-not-the-next-token",
    title="The target is not the next token that the model cannot see",
    problem="The targets of the loss are tokens of the model's own input. TrainCheck executed the call again with "
    "another token at one position, to see which outputs depend on it. An output must depend on no token from its "
    "target on, and on the one before. Here the model sees its target, a token between is skipped, or the target "
    "belongs to another sample.",
    advice=(
        "Compare the shift of the labels with that of the inputs: logits[:, :-1] belong to labels[:, 1:].",
        "Check whether labels are shifted twice, or not at all: many models shift them inside.",
        "Check which dimension holds the positions: with batch_first=False, [:, 1:] drops a sample.",
        "Check the causal mask of the named module: it may be missing, shifted by one, or of the other dimension.",
    ),
    explains=(Match(verb=IS_VERIFIED, api=f"{KIND}.{NEXT_TOKEN.name}"),),
    priority=8,
    priority_reason="A loss that falls too fast follows from it, and it is more exact than a rule about later tokens.",
    example="""\
loss = F.cross_entropy(logits.flatten(0, 1), tokens.flatten())  # each output is asked for the token it was given
""",
)
