"""The diagnosis that masked padding changes outputs."""

from __future__ import annotations

from traincheck.diagnoses.diagnosis import Diagnosis, Match
from traincheck.vocab.properties import IS_VERIFIED
from traincheck.vocab.verification import KIND, PADDING

DIAGNOSIS = Diagnosis(
    slug="padding-changes-outputs",
    title="Masked padding changes the outputs of the model",
    problem="TrainCheck executed the call again with other tokens at the positions that the mask (or the "
    "lengths) excludes. Outputs at other positions changed, while in good runs they did not. The model "
    "ignores its padding mask.",
    advice=(
        "Check that the mask reaches the named module, and that its convention is right: key_padding_mask is True "
        "at padding.",
        "Check that pooling over positions leaves padding out.",
        "For recurrent layers, pack the sequences or read the state at the last real position.",
    ),
    explains=(Match(verb=IS_VERIFIED, api=f"{KIND}.{PADDING.name}"),),
    priority=9,
    priority_reason="Values of the loss and the gradients follow from it.",
    example="""\
hidden = self.encoder(x)  # src_key_padding_mask=~mask is missing
""",
)
