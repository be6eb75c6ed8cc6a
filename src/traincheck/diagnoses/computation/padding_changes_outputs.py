"""The diagnosis that masked padding changes outputs."""

from __future__ import annotations

from traincheck.diagnoses.diagnosis import Diagnosis, Match
from traincheck.vocab.properties import IS_VERIFIED
from traincheck.vocab.verification import KIND, PADDED, PADDING

DIAGNOSIS = Diagnosis(
    slug="padding-changes-outputs",
    title="Masked padding changes the outputs of the model",
    problem="TrainCheck executed the call again with other tokens or vectors at padding. Outputs for other tokens "
    "changed, although the model leaves out padding elsewhere in the same call, or did so in good runs. A mask is "
    "missing, inverted, or has the wrong shape, or a mean or the last state counts padding.",
    advice=(
        "Check that the mask reaches the named module, and that its convention is right: key_padding_mask is True "
        "at padding.",
        "Check that pooling over positions leaves padding out.",
        "For recurrent layers, pack the sequences or read the state at the last real position.",
    ),
    explains=(Match(verb=IS_VERIFIED, api=(f"{KIND}.{PADDING.name}", f"{KIND}.{PADDED.name}")),),
    priority=9,
    priority_reason="Values of the loss and the gradients follow from it.",
    example="""\
hidden = self.encoder(x)  # src_key_padding_mask=~mask is missing
""",
)
