"""Tests the experiment `padded` on models that leave out padding everywhere, in some computations, or in none."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from traincheck.sources.verification.inputs.padded import trailing_padding
from traincheck.vocab.verification import AGREES, DISAGREES, PADDED, UNDECIDED
from verified_runs import VerifiedRun, verified

WORDS, WIDTH, LENGTH, BATCH, PAD = 11, 16, 12, 5, 0


def batch(pad: int = PAD) -> torch.Tensor:
    lengths = torch.tensor([LENGTH, 9, 7, 5, 10])
    return torch.randint(1, WORDS, (BATCH, LENGTH)).masked_fill(torch.arange(LENGTH) >= lengths[:, None], pad)


def run(folder: Path, model: nn.Module, data: Callable[[], torch.Tensor] = batch) -> VerifiedRun:
    def steps() -> Iterator[None]:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(2):
            optimizer.zero_grad()
            model(data()).square().mean().backward()
            optimizer.step()
            yield

    return verified(folder, steps())


class Classifier(nn.Module):
    """Attention in two layers with the masks `first` and `second`, and a vector of each sequence.

    A mask is "keys" (right), "inverted", "queries" (broadcast in the wrong dimension), "causal" or "none".
    """

    def __init__(self, first: str = "keys", second: str = "keys", pool: str = "mean", padding_idx: int | None = None):
        super().__init__()
        self.masks, self.pool = (first, second), pool
        self.embedding = nn.Embedding(WORDS, WIDTH, padding_idx=padding_idx)
        self.position = nn.Parameter(torch.randn(LENGTH, WIDTH))
        self.project = nn.ModuleList(nn.Linear(WIDTH, 3 * WIDTH) for _ in self.masks)
        self.head = nn.Linear(WIDTH, 2)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        valid = tokens != PAD
        x = self.embedding(tokens) + self.position
        for kind, project in zip(self.masks, self.project, strict=True):
            q, k, v = (t.unflatten(-1, (2, -1)).transpose(1, 2) for t in project(x).chunk(3, -1))
            x = x + F.scaled_dot_product_attention(q, k, v, attn_mask=mask_of(kind, valid)).transpose(1, 2).flatten(2)
        return self.head(self.pooled(x, valid))

    def pooled(self, x: torch.Tensor, valid: torch.Tensor) -> torch.Tensor:
        if self.pool == "mean":
            return (x * valid[..., None]).sum(1) / valid.sum(1, keepdim=True)
        if self.pool == "last":
            return x[torch.arange(len(x)), valid.sum(1) - 1]
        if self.pool == "padded end":
            return x[:, -1]
        return x.mean(1) if self.pool == "mean of all" else x[:, 0] if self.pool == "first" else x


def mask_of(kind: str, valid: torch.Tensor) -> torch.Tensor | None:
    length = valid.shape[1]
    keys = valid[:, None, None, :]
    if kind == "queries":
        return valid[:, None, :, None] | torch.eye(length, dtype=torch.bool)
    causal = torch.ones(length, length, dtype=torch.bool).tril()
    return {"keys": keys, "inverted": ~keys | (keys.all(-1, True)), "causal": causal}.get(kind)


@pytest.mark.parametrize(
    "model",
    [
        Classifier("none"),
        Classifier("keys", "none", "first"),
        Classifier("inverted", "keys", "first"),
        Classifier("inverted", "inverted", "first"),
        Classifier("queries", "keys"),
        Classifier(pool="mean of all"),
        Classifier(pool="padded end"),
        Classifier("causal", "keys", "padded end"),
        Classifier("none", "none", "last"),
        Classifier("none", "keys", "each"),
        Classifier("none", padding_idx=PAD),
    ],
)
def test_padding_that_reaches_an_output_is_wrong(model: nn.Module, tmp_path: Path) -> None:
    result = run(tmp_path, model)
    assert set(result.of(PADDED.name)) == {DISAGREES}
    assert result.findings, "it needs no good run"
    assert "." not in result.first(PADDED.name).first, "its own code mixes positions, not that of a layer"


class Layered(nn.Module):
    """The embedding, some layers over positions, and a mean over the real ones."""

    def __init__(self, layers: Callable[[torch.Tensor], torch.Tensor], **settings: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, WIDTH, **settings)
        self.layers = layers

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        valid = tokens != PAD
        return (self.layers(self.embedding(tokens)) * valid[..., None]).sum(1) / valid.sum(1, keepdim=True)


class Recurrent(nn.Module):
    def __init__(self, bidirectional: bool) -> None:
        super().__init__()
        self.rnn = nn.GRU(WIDTH, 8, batch_first=True, bidirectional=bidirectional)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.rnn(x)[0]


class Packed(Layered):
    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        lengths, x = (tokens != PAD).sum(1), self.embedding(tokens)
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        states, _ = nn.utils.rnn.pad_packed_sequence(self.layers.rnn(packed)[0], batch_first=True)
        return states.sum(1) / lengths[:, None]


class Convolution(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(WIDTH, WIDTH, 5, padding=2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.conv(x.transpose(1, 2)).transpose(1, 2)


class Mixer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.over_positions = nn.Linear(LENGTH, LENGTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.over_positions(x.transpose(1, 2)).transpose(1, 2)


class Loop(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.update = nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        state, states = torch.zeros(len(x), WIDTH), []
        for step in reversed(range(x.shape[1])):
            state = torch.tanh(self.update(torch.cat((x[:, step], state), 1)))
            states.append(state)
        return torch.stack(states[::-1], 1)


class BagOfWords(nn.Module):
    """A sum over positions, to which a padding of zeros adds nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, WIDTH, padding_idx=PAD)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.embedding(tokens).sum(1) / (tokens != PAD).sum(1, keepdim=True)


class Slots(Classifier):
    """Chooses one of the slots that are not empty; it sees the empty ones."""

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.head(self.embedding(tokens).mean(1, keepdim=True) + self.embedding(tokens))[..., 0]
        return x.masked_fill(tokens == PAD, float("-inf")).softmax(-1)


class LossOfEachSample(Classifier):
    """It learns to predict padding as well."""

    def pooled(self, x: torch.Tensor, valid: torch.Tensor) -> torch.Tensor:
        return -x.log_softmax(-1)[..., 0].mean(1)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        self.head = nn.Identity()
        return super().forward(tokens)


class Flattened(Classifier):
    """A linear layer reads all positions, each with its own weights."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(LENGTH * WIDTH, 2)

    def pooled(self, x: torch.Tensor, valid: torch.Tensor) -> torch.Tensor:
        return x.transpose(1, 2).flatten(1)


class Normalized(Classifier):
    """Each feature is divided by its deviation over positions."""

    def pooled(self, x: torch.Tensor, valid: torch.Tensor) -> torch.Tensor:
        return super().pooled(x / x.std(1, keepdim=True), valid)


@pytest.mark.parametrize(
    ("model", "verdicts"),
    [
        (Classifier(), {AGREES}),
        (Classifier(padding_idx=PAD), {AGREES}),
        (Classifier(pool="last"), {AGREES}),
        (Classifier(pool="first"), {AGREES}),
        (Classifier(pool="each"), {AGREES}),
        (Classifier("causal", "causal", "last"), {AGREES}),
        (Classifier("causal", "causal", "padded end"), set()),
        (Classifier("none", "none", "mean of all"), set()),
        (Classifier("none", "none", "first"), set()),
        (Layered(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU())), {AGREES}),
        (Layered(Recurrent(False)), {AGREES}),
        (Layered(Recurrent(True)), {UNDECIDED}),
        (Packed(Recurrent(True)), {AGREES}),
        (Layered(Convolution()), {UNDECIDED}),
        (Layered(Mixer()), {UNDECIDED}),
        (Layered(Loop()), {UNDECIDED}),
        (LossOfEachSample(), set()),
        (Flattened(), {UNDECIDED}),
        (Normalized(), {UNDECIDED}),
        (BagOfWords(), set()),
        (Slots(), set()),
    ],
)
def test_padding_that_is_left_out_or_read_on_purpose(model: nn.Module, verdicts: set[str], tmp_path: Path) -> None:
    result = run(tmp_path, model)
    assert set(result.verdicts.get(PADDED.name, ()) and result.of(PADDED.name)) == verdicts
    assert not any("padded" in str(finding) for finding in result.findings)


def test_what_is_no_trailing_padding() -> None:
    tokens = batch()
    padding = trailing_padding(tokens)
    assert padding is not None and int(padding.positions.sum()) == 17 and int(padding.replaced.sum()) == 13
    inside = tokens.clone()
    inside[0, 1] = PAD  # a masked word
    assert trailing_padding(inside) is None
    assert trailing_padding(tokens.flip(1)) is None  # padding before the tokens
    assert trailing_padding(tokens[:2]) is None
    equal = tokens.clone().clamp(min=1)
    equal[:, 8:] = PAD
    assert trailing_padding(equal) is None
