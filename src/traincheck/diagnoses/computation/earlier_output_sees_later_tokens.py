"""The diagnosis that an earlier output depends on later tokens."""

from __future__ import annotations

from traincheck.diagnoses.diagnosis import Diagnosis, Match
from traincheck.vocab.properties import IS_VERIFIED
from traincheck.vocab.verification import KIND, LATER_TOKENS

DIAGNOSIS = Diagnosis(
    slug="earlier-output-sees-later-tokens",
    title="An output depends on later tokens",
    problem="TrainCheck executed the call again with other tokens in the last third of each sequence. Outputs at "
    "earlier positions changed, while in good runs they did not. A model that predicts the next token "
    "sees it, and does not learn to predict it.",
    advice=(
        "Check the causal mask of the named module: it may be missing, shifted by one, or inverted.",
        "Check that the mask is passed down to each layer, and that is_causal=True is set where attn_mask is None.",
        "Look for convolutions with padding on both sides, and for normalization over positions.",
    ),
    explains=(Match(verb=IS_VERIFIED, api=f"{KIND}.{LATER_TOKENS.name}"),),
    priority=9,
    priority_reason="A loss that falls too fast follows from it.",
    example="""\
mask = torch.ones(n, n, dtype=torch.bool).triu(2)  # triu(1): each token also sees the next one
""",
)
