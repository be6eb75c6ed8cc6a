"""A small report with every kind of finding details, for the tests of pages."""

from __future__ import annotations

from traincheck.vocab.finding_details import (
    Agreement,
    Aspect,
    CodeExcerpt,
    Curve,
    FindingDetails,
    History,
    Row,
    State,
    Strip,
)


def sample_details(text: str = "Net.w") -> FindingDetails:
    """Everything that a finding may be shown with; each text is `text`."""
    aspect = Aspect(text, (State(text, "empty"), State(text, "wrong")))
    rows = (Row((text, text), (Strip((0, 0, 1, -1)),)), Row(("Net.b",), (Strip((1, 1, 1, 1)),)))
    return FindingDetails(
        code=CodeExcerpt(3, 2, ("def train():", text, "    optimizer.step()"), text),
        histories=(History(text, (1, 2, 3, 4), 3, (aspect,), rows, 2),),
        curves=(Curve(text, 1, 4, 3, ((1, 0.5), (2, 0.25), (3, float("nan")), (4, 0.75))),),
        agreement=Agreement(3, text, ("0", "1", text), 4, ((4, 4, 0), (4, 4, 1), (0, 1, 4))),
        mute=f"traincheck mute {text}",
        note=text,
    )
