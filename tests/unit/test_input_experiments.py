"""Tests the experiments `samples`, `later_tokens`, `padding` and `padding_loss` on right and wrong models."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from traincheck.sources.verification.inputs import changed_calls
from traincheck.sources.verification.inputs.input_changes import CallInputs
from traincheck.vocab.verification import (
    AGREES,
    DISAGREES,
    LATER_TOKENS,
    MIXED_SAMPLES,
    NEXT_TOKEN,
    PADDING,
    PADDING_LOSS,
    SAMPLES,
    UNDECIDED,
)
from verified_runs import VerifiedRun, verified

WORDS, WIDTH, LENGTH, BATCH = 11, 16, 12, 4
PAD = 0


class Block(nn.Module):
    def __init__(self, batch_first: bool) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(WIDTH, 2, dropout=0.1, batch_first=batch_first)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.Dropout(0.1))

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None, padding: torch.Tensor | None) -> torch.Tensor:
        attended, _ = self.attention(x, x, x, attn_mask=mask, key_padding_mask=padding, need_weights=False)
        return self.mlp(x + attended) + x


class Transformer(nn.Module):
    """A language model. `sees` is how many later tokens a position sees, all of them with None."""

    def __init__(self, sees: int | None = 0, batch_first: bool = True, uses_mask: bool = True) -> None:
        super().__init__()
        self.sees, self.uses_mask = sees, uses_mask
        self.embedding = nn.Embedding(WORDS, WIDTH)
        self.blocks = nn.ModuleList(Block(batch_first) for _ in range(2))
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, tokens: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        x, length = self.embedding(tokens), tokens.shape[1]
        causal = None if self.sees is None else torch.ones(length, length, dtype=torch.bool).triu(1 + self.sees)
        for block in self.blocks:
            x = block(x, causal, ~mask if mask is not None and self.uses_mask else None)
        return self.head(x)


def tokens() -> tuple[torch.Tensor, ...]:
    return (torch.randint(1, WORDS, (BATCH, LENGTH)),)


def padded_tokens() -> tuple[torch.Tensor, ...]:
    (words,) = tokens()
    mask = torch.arange(LENGTH) < torch.tensor([LENGTH, 9, 7, 5])[:, None]
    return words.masked_fill(~mask, PAD), mask


def features() -> tuple[torch.Tensor, ...]:
    return (torch.randn(5, 9, 6),)


def images() -> tuple[torch.Tensor, ...]:
    return (torch.randn(6, 3, 8, 8),)


def word_loss(output: torch.Tensor, words: torch.Tensor, ignore_index: int = -100) -> torch.Tensor:
    return F.cross_entropy(output.flatten(0, 1), words.flatten(), ignore_index=ignore_index)


def masked_loss(output: torch.Tensor, words: torch.Tensor) -> torch.Tensor:
    return word_loss(output, words, PAD)


def square(output: Any, inputs: torch.Tensor) -> torch.Tensor:
    return (output[0] if isinstance(output, tuple) else output).square().mean()


Loss = Callable[[Any, torch.Tensor], torch.Tensor]
Batch = Callable[[], tuple[Any, ...]]


def training(model: nn.Module, batch: Batch, loss: Loss = square, steps: int = 4) -> Iterator[None]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        inputs = batch()
        optimizer.zero_grad()
        loss(model(*inputs), inputs[0]).backward()
        optimizer.step()
        yield


def run(folder: Path, model: nn.Module, batch: Batch, loss: Loss = square) -> VerifiedRun:
    result = verified(folder, training(model, batch, loss))
    assert result.findings == [], "a fact about a model is no finding without a rule"
    return result


def next_word_loss(output: torch.Tensor, words: torch.Tensor, shift: int = 1) -> torch.Tensor:
    return F.cross_entropy(output[:, : LENGTH - shift].flatten(0, 1), words[:, shift:].flatten())


def test_a_causal_model_sees_neither_later_tokens_nor_other_samples(tmp_path: Path) -> None:
    result = run(tmp_path, Transformer(), tokens, next_word_loss)
    assert [verdict.step for verdict in result.verdicts[LATER_TOKENS.name]] == [2, 4]
    assert set(result.of(LATER_TOKENS.name)) == set(result.of(SAMPLES.name)) == {AGREES}
    assert PADDING.name not in result.verdicts and PADDING_LOSS.name not in result.verdicts


@pytest.mark.parametrize("sees", [1, None])
def test_later_tokens_are_seen_without_a_right_mask(sees: int | None, tmp_path: Path) -> None:
    result = run(tmp_path, Transformer(sees), tokens, word_loss)
    assert set(result.of(SAMPLES.name)) == {AGREES}
    assert set(result.of(LATER_TOKENS.name)) == {DISAGREES}
    verdict = result.first(LATER_TOKENS.name)
    assert (verdict.subject, verdict.first) == ("Transformer", "Transformer.blocks.0.attention")
    assert verdict.found.startswith("in step 2, with other tokens from position 8 on, ")


class WithSigns(nn.Module):
    """Returns truth values beside its output."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 6)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.layer(x), x > 0


def test_outputs_may_be_truth_values(tmp_path: Path) -> None:
    result = run(tmp_path, WithSigns(), features)
    assert set(result.of(SAMPLES.name)) == {AGREES}
    assert not result.not_observed


def test_attention_over_the_batch(tmp_path: Path) -> None:
    result = verified(tmp_path, training(Transformer(None, batch_first=False), tokens, next_word_loss))
    assert set(result.of(SAMPLES.name)) == {DISAGREES}
    assert result.first(SAMPLES.name).first == "Transformer.blocks.0.attention"
    assert "sample 1 in place of sample 2" in result.first(SAMPLES.name).found
    assert set(result.of(MIXED_SAMPLES.name)) == {DISAGREES}
    assert result.first(MIXED_SAMPLES.name).found.endswith("the outputs of all 3 other samples changed")


@pytest.mark.parametrize("bidirectional", [False, True])
def test_recurrent_models(bidirectional: bool, tmp_path: Path) -> None:
    result = run(tmp_path, nn.LSTM(6, 8, batch_first=True, bidirectional=bidirectional), features)
    assert set(result.of(SAMPLES.name)) == {AGREES}
    assert set(result.of(LATER_TOKENS.name)) == {DISAGREES if bidirectional else AGREES}


def test_batch_normalization_is_executed_with_its_running_statistics(tmp_path: Path) -> None:
    def layers(**settings: bool) -> nn.Module:
        return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4, **settings), nn.Flatten(), nn.Linear(144, 3))

    model = layers()
    assert set(run(tmp_path / "running", model, images).of(SAMPLES.name)) == {AGREES}
    assert model[1].training, "the mode is as before"
    model[1].eval()  # a frozen layer
    assert set(run(tmp_path / "frozen", model, images).of(SAMPLES.name)) == {AGREES}
    result = run(tmp_path / "none", layers(track_running_stats=False), images)
    assert set(result.of(SAMPLES.name)) == {UNDECIDED}
    assert "statistics of the batch" in result.first(SAMPLES.name).found


def test_each_verified_step_changes_another_sample(tmp_path: Path) -> None:
    """In a graph, the node of one step may be alone."""

    class Graph(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(6, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            odd = torch.arange(len(x))[:, None] % 2 == 1  # every second node is alone
            neighbours = torch.where(odd, x, x[::2].mean(0, keepdim=True))
            return self.layer(x + neighbours)

    assert set(run(tmp_path, Graph(), rows).of(SAMPLES.name)) == {AGREES, DISAGREES}


class Mixing(nn.Module):
    """Classifies features after `mix`, which may use all samples of a batch."""

    def __init__(self, mix: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.first, self.head, self.mix = nn.Linear(6, 8), nn.Linear(8, 3), mix
        self.register_buffer("mean", torch.zeros(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.mix(self.first(x)))


def class_loss(output: torch.Tensor, inputs: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(output, torch.arange(len(inputs)) % 3)


def rows(count: int = 12) -> tuple[torch.Tensor, ...]:
    return (torch.randn(count, 6),)


def mixed(folder: Path, model: nn.Module, batch: Batch = rows, loss: Loss = class_loss) -> set[str]:
    return set(verified(folder, training(model, batch, loss)).of(MIXED_SAMPLES.name))


@pytest.mark.parametrize("dimension", [0, 1])
def test_a_softmax_over_the_batch(dimension: int, tmp_path: Path) -> None:
    model = Mixing(lambda x: x.softmax(dimension))
    assert mixed(tmp_path, model) == {AGREES if dimension else DISAGREES}


def test_the_smallest_module_that_mixes_samples_is_named(tmp_path: Path) -> None:
    """Layers after it, inside it or outside, get changed inputs."""
    model = nn.Sequential(nn.Linear(6, 6), Mixing(lambda x: x.softmax(0)), nn.Tanh())
    result = verified(tmp_path, training(model, rows, class_loss))
    assert result.first(MIXED_SAMPLES.name).first == "Sequential.1"


def test_statistics_that_a_model_keeps_may_be_those_of_the_batch(tmp_path: Path) -> None:
    def normalize(x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            model.mean.lerp_(x.mean(0), 0.1)
        return x - x.mean(0)

    model = Mixing(normalize)
    assert mixed(tmp_path, model) == {UNDECIDED}


def test_samples_that_compete_are_not_judged(tmp_path: Path) -> None:
    """An expert takes the samples with the highest scores only."""
    model = Mixing(lambda x: x * (x[:, :1] >= x[:, 0].topk(6).values.min()))
    assert mixed(tmp_path, model) <= {UNDECIDED, AGREES}


def test_a_program_with_one_batch_may_mix_its_samples(tmp_path: Path) -> None:
    (graph,) = rows()
    assert mixed(tmp_path, Mixing(lambda x: x.softmax(0)), lambda: (graph,)) == set()


def loaded(*tensors: torch.Tensor) -> Batch:
    """Batches of twelve samples from a data loader; `square` has no target."""
    loader = DataLoader(TensorDataset(*tensors), batch_size=12, shuffle=True, drop_last=True)
    batches = itertools.chain.from_iterable(itertools.repeat(loader))
    return lambda: next(batches)


@pytest.mark.parametrize("dimension", [0, 1])
def test_a_data_loader_says_what_a_sample_is(dimension: int, tmp_path: Path) -> None:
    model = Mixing(lambda x: x.softmax(dimension))
    assert mixed(tmp_path, model, loaded(*rows(60)), square) == {AGREES if dimension else DISAGREES}


def test_rows_that_no_loader_chose_may_depend_on_each_other(tmp_path: Path) -> None:
    model = Mixing(lambda x: x.softmax(0))
    assert mixed(tmp_path / "made", model, lambda: rows(10), square) == set()
    batch = loaded(*rows(60))
    assert mixed(tmp_path / "repeated", model, lambda: (batch()[0].repeat(2, 1),), square) == set(), (
        "twice as many rows"
    )


def test_statistics_between_features_are_no_outputs_of_samples(tmp_path: Path) -> None:
    """A matrix may have as many rows as two batches, as a correlation of features has."""

    class Correlation(Mixing):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            features = self.first(x).repeat(1, 3)
            return features.T @ features

    assert mixed(tmp_path, Correlation(nn.Identity()), loaded(*rows(60)), square) == set()


class Towers(nn.Module):
    """Compares two features of all samples, as a retrieval model does."""

    def __init__(self, left: int, right: int, width: int = 8) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, width), nn.Linear(6, width)
        self.left, self.right = left, right

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        left, right = F.normalize(self.first(x), dim=self.left), F.normalize(self.second(x), dim=self.right)
        return (left @ right.T / 0.2).log_softmax(1)


def diagonal_loss(output: torch.Tensor, inputs: torch.Tensor) -> torch.Tensor:
    return F.nll_loss(output, torch.arange(len(inputs)))


@pytest.mark.parametrize(
    ("left", "right", "verdict"), [(1, 1, AGREES), (1, 0, DISAGREES), (0, 1, DISAGREES), (0, 0, UNDECIDED)]
)
def test_features_of_one_side_depend_on_their_sample_alone(left: int, right: int, verdict: str, tmp_path: Path) -> None:
    """A loss may decorrelate both sides."""
    for width in (8, 12):  # the batch has 12 samples
        model = Towers(left, right, width)
        assert mixed(tmp_path / str(width), model, loaded(*rows(60)), diagonal_loss) == {verdict}


def test_similarities_that_no_loader_chose_are_not_judged(tmp_path: Path) -> None:
    """The classes of an episode may be a context for each other."""
    assert mixed(tmp_path, Towers(1, 0), rows, diagonal_loss) == set()


def test_as_many_classes_as_samples(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(6, 8), nn.Linear(8, 12, bias=False))
    assert mixed(tmp_path, model, loaded(*rows(60)), diagonal_loss) == set()


def test_a_similarity_of_samples_is_no_output_of_one(tmp_path: Path) -> None:
    def loss(output: torch.Tensor, inputs: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(output, torch.arange(len(inputs)))

    class Similarity(Mixing):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            features = self.first(x)
            return features @ features.T

    assert mixed(tmp_path, Similarity(nn.Identity()), rows, loss) == set()


def test_positions_in_the_first_dimension_are_no_samples(tmp_path: Path) -> None:
    class TimeFirst(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn, self.head = nn.GRU(6, 8, bidirectional=True), nn.Linear(16, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(self.rnn(x)[0])

    def loss(output: torch.Tensor, inputs: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(output.flatten(0, 1), torch.arange(45) % 3)

    assert mixed(tmp_path, TimeFirst(), features, loss) == set()


def failing(folder: Path, model: nn.Module, batch: Batch, loss: Loss) -> tuple[set[str], str, str]:
    """Return the verdicts about the next token, where the first was seen, and what was seen."""
    verdicts = verified(folder, training(model, batch, loss)).verdicts.get(NEXT_TOKEN.name, [])
    return {verdict.verdict for verdict in verdicts}, verdicts[0].first, verdicts[0].found


@pytest.mark.parametrize("sees", [0, 1, None])
def test_a_model_does_not_see_the_token_that_it_predicts(sees: int | None, tmp_path: Path) -> None:
    verdicts, first, found = failing(tmp_path, Transformer(sees), tokens, next_word_loss)
    if sees == 0:
        assert verdicts == {AGREES}
    else:
        assert (verdicts, first) == ({DISAGREES}, "Transformer.blocks.0.attention")
        assert found.endswith("is the token 1 after its position, and the output depends on that token")


@pytest.mark.parametrize(("sees", "shift", "verdict"), [(0, 0, DISAGREES), (None, 0, UNDECIDED), (0, 2, DISAGREES)])
def test_targets_are_shifted_by_one(sees: int | None, shift: int, verdict: str, tmp_path: Path) -> None:
    """An autoencoder has the tokens of its input as targets."""

    def loss(output: torch.Tensor, words: torch.Tensor) -> torch.Tensor:
        return next_word_loss(output, words, shift)

    verdicts, _, found = failing(tmp_path, Transformer(sees), tokens, loss)
    assert verdicts == {verdict}
    if verdict == DISAGREES:
        assert ("at its own position" if shift == 0 else "is not asked for the next one") in found


def test_a_second_loss_may_ask_for_a_later_token(tmp_path: Path) -> None:
    def loss(output: torch.Tensor, words: torch.Tensor) -> torch.Tensor:
        return next_word_loss(output, words) + 0.1 * next_word_loss(output, words, 2)

    assert failing(tmp_path, Transformer(), tokens, loss)[0] == {AGREES}


def test_masked_words_are_no_next_tokens(tmp_path: Path) -> None:
    def batch() -> tuple[torch.Tensor, ...]:
        (words,) = tokens()
        hidden = torch.rand(words.shape) < 0.3
        labels.append(words.masked_fill(~hidden, -100))
        return (words.masked_fill(hidden, PAD),)

    labels: list[torch.Tensor] = []
    result = verified(tmp_path, training(Transformer(None), batch, lambda output, _: word_loss(output, labels[-1])))
    assert NEXT_TOKEN.name not in result.verdicts


@pytest.mark.parametrize("bidirectional", [False, True])
def test_a_forecast_does_not_see_its_target(bidirectional: bool, tmp_path: Path) -> None:
    class Forecast(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn = nn.GRU(6, 8, batch_first=True, bidirectional=bidirectional)
            self.head = nn.Linear(16 if bidirectional else 8, 6)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(self.rnn(x)[0])

    def loss(output: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return F.mse_loss(output[:, :-1], x[:, 1:])

    assert failing(tmp_path, Forecast(), features, loss)[0] == {DISAGREES if bidirectional else AGREES}


@pytest.mark.parametrize("sees", [0, 1])
def test_samples_may_be_in_the_second_dimension(sees: int, tmp_path: Path) -> None:
    class PositionsFirst(Transformer):
        def forward(self, tokens: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
            return super().forward(tokens.T).transpose(0, 1)

    def batch() -> tuple[torch.Tensor, ...]:
        words = torch.randint(1, WORDS, (LENGTH + 1, BATCH))
        labels.append(words[1:].flatten())
        return (words[:-1],)

    labels: list[torch.Tensor] = []
    loss: Loss = lambda output, _: F.cross_entropy(output.flatten(0, 1), labels[-1])  # noqa: E731
    assert failing(tmp_path, PositionsFirst(sees), batch, loss)[0] == {DISAGREES if sees else AGREES}


class WordsFirst(nn.Module):
    """A recurrent language model with positions in the first dimension, or in the second."""

    def __init__(self, batch_first: bool, mixes: bool) -> None:
        super().__init__()
        self.embedding, self.rnn = nn.Embedding(WORDS, WIDTH), nn.GRU(WIDTH, WIDTH, batch_first=batch_first)
        self.head, self.mixes = nn.Linear(WIDTH, WORDS), mixes

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        x = self.rnn(self.embedding(words))[0]
        return self.head(x + x.mean((0, 1)) if self.mixes else x)


def stream(length: int = 9, samples: int = 6) -> tuple[torch.Tensor, ...]:
    return (torch.randint(1, WORDS, (length, samples)),)


@pytest.mark.parametrize("mixes", [False, True])
@pytest.mark.parametrize("batch_first", [False, True])
def test_targets_of_other_samples(batch_first: bool, mixes: bool, tmp_path: Path) -> None:
    """The next tokens, which are shifted once more along the samples. Outputs that depend on these are undecided."""

    def loss(output: torch.Tensor, words: torch.Tensor) -> torch.Tensor:
        ahead = words.roll(-1, 1 if batch_first else 0)
        output, ahead = (output[:-1], ahead[1:]) if batch_first else (output[:, :-1], ahead[:, 1:])
        return F.cross_entropy(output.flatten(0, 1), ahead.flatten())

    size = (6, 9) if batch_first else (9, 6)
    result = verified(tmp_path, training(WordsFirst(batch_first, mixes), lambda: stream(*size), loss))
    assert set(result.of(NEXT_TOKEN.name)) == {UNDECIDED if mixes else DISAGREES}


@pytest.mark.parametrize("dimension", [0, 1])
def test_a_sample_without_a_target_is_no_error(dimension: int, tmp_path: Path) -> None:
    def loss(output: torch.Tensor, words: torch.Tensor) -> torch.Tensor:
        ahead = words.roll(-1, 0)
        output, ahead = (output[:-1], ahead[:-1]) if dimension == 0 else (output[:, :-1], ahead[:, :-1])
        return F.cross_entropy(output.flatten(0, 1), ahead.flatten())

    result = verified(tmp_path, training(WordsFirst(False, False), stream, loss))
    assert set(result.of(NEXT_TOKEN.name)) <= {AGREES}


def test_windows_of_a_stream_that_follow_each_other(tmp_path: Path) -> None:
    """Each window begins one token after the one before: a token of the next window is one of the same window, too."""

    def batch() -> tuple[torch.Tensor, ...]:
        words = torch.randint(1, WORDS, (20,))
        return (words.unfold(0, 9, 1)[:6],)

    def loss(output: torch.Tensor, words: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(output[:-1].flatten(0, 1), words[1:].flatten())

    result = verified(tmp_path, training(WordsFirst(True, False), batch, loss))
    assert DISAGREES not in result.of(NEXT_TOKEN.name)


class Autoencoder(nn.Module):
    """Predicts each token from the earlier ones and from a latent of all, as sequence VAEs do."""

    def __init__(self, decoder: nn.Module, pooled: bool) -> None:
        super().__init__()
        self.embedding, self.encoder = nn.Embedding(WORDS, WIDTH), nn.GRU(WIDTH, WIDTH, batch_first=True)
        self.latent, self.decoder, self.pooled = nn.Linear(WIDTH, WIDTH), decoder, pooled

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        states, last = self.encoder(self.embedding(words))
        latent = self.latent(states.mean(1) if self.pooled else last[0])
        return self.decoder(words, latent)


class LatentDecoder(Transformer):
    def forward(self, tokens: torch.Tensor, latent: torch.Tensor) -> torch.Tensor:
        x, length = self.embedding(tokens) + latent[:, None], tokens.shape[1]
        causal = None if self.sees is None else torch.ones(length, length, dtype=torch.bool).triu(1 + self.sees)
        for block in self.blocks:
            x = block(x, causal, None)
        return self.head(x)


@pytest.mark.parametrize("pooled", [False, True])
@pytest.mark.parametrize("sees", [0, 1, None])
def test_the_latent_of_an_autoencoder_may_hold_the_target(sees: int | None, pooled: bool, tmp_path: Path) -> None:
    verdicts, _, _ = failing(tmp_path, Autoencoder(LatentDecoder(sees), pooled), tokens, next_word_loss)
    assert verdicts == {UNDECIDED if sees == 0 else DISAGREES}


CODES = 20


class Quantizer(nn.Module):
    """Returns the nearest code of each vector, with a straight-through estimator."""

    def __init__(self, one_hot: bool) -> None:
        super().__init__()
        self.codes = nn.Parameter(torch.randn(CODES, WIDTH))
        self.one_hot = one_hot

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        near = -torch.cdist(x, self.codes.expand(len(x), -1, -1))
        choice = F.one_hot(near.argmax(-1), CODES).float()
        code = choice if self.one_hot else choice @ self.codes
        soft = near.softmax(-1) if self.one_hot else x
        return code + soft - soft.detach()


class DiscreteAutoencoder(nn.Module):
    """Predicts each token from the earlier ones and from a code of the whole sequence for each position."""

    def __init__(self, sees: int, one_hot: bool) -> None:
        super().__init__()
        self.embedding, self.encoder = nn.Embedding(WORDS, WIDTH), nn.GRU(WIDTH, WIDTH, batch_first=True)
        self.quantizer, self.decoder = Quantizer(one_hot), Transformer(sees)
        self.decoder.embedding = nn.Identity()
        self.from_code = nn.Linear(CODES if one_hot else WIDTH, WIDTH)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        x = self.embedding(words)
        later, _ = self.encoder(x.flip(1))
        return self.decoder(x + self.from_code(self.quantizer(3 * later.flip(1).roll(-1, 1))))


@pytest.mark.parametrize("one_hot", [False, True])
@pytest.mark.parametrize("sees", [0, 1])
def test_codes_of_a_discrete_autoencoder_may_hold_the_target(sees: int, one_hot: bool, tmp_path: Path) -> None:
    verdicts, _, _ = failing(tmp_path, DiscreteAutoencoder(sees, one_hot), tokens, next_word_loss)
    assert verdicts == {DISAGREES if sees else UNDECIDED}


class Means(nn.Module):
    def forward(self, heads: torch.Tensor) -> torch.Tensor:
        return heads.mean(1)


class Merged(nn.Module):
    """Predicts each token from the earlier ones and from heads of the next one, which a module merges."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.decoder = nn.Embedding(WORDS, WIDTH), Transformer(0)
        self.decoder.embedding = nn.Identity()
        self.means = Means()

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        x = self.embedding(words) + torch.linspace(0, 1, LENGTH)[:, None]
        heads = x.roll(-1, 1).unflatten(2, (4, -1)).transpose(1, 2)
        return self.decoder(x + self.means(heads).repeat(1, 1, 4))


def test_fewer_vectors_are_no_codes(tmp_path: Path) -> None:
    verdicts, _, _ = failing(tmp_path, Merged(), tokens, next_word_loss)
    assert verdicts == {DISAGREES}


def test_a_source_may_hold_the_target(tmp_path: Path) -> None:
    """The decoder translates each sequence into itself, without its first token."""
    words: list[torch.Tensor] = []

    def batch() -> tuple[torch.Tensor, torch.Tensor]:
        words.append(tokens()[0])
        return words[-1], words[-1][:, :-1]

    def loss(output: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(output.flatten(0, 1), source[:, 1:].flatten())

    assert failing(tmp_path, Translator(True), batch, loss)[0] == {AGREES}
    assert failing(tmp_path / "leak", Translator(False), batch, loss)[0] == {DISAGREES}


class OnlyLoss(nn.Module):
    """Returns its loss alone, which it computes without a loss of torch."""

    def __init__(self, sees: int) -> None:
        super().__init__()
        self.model = Transformer(sees)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        chances = self.model(words)[:, :-1].log_softmax(-1)
        return -chances.gather(-1, words[:, 1:, None]).mean()


@pytest.mark.parametrize("sees", [0, 1])
def test_models_that_return_their_loss_alone(sees: int, tmp_path: Path) -> None:
    verdicts, _, _ = failing(tmp_path, OnlyLoss(sees), tokens, lambda output, _: output)
    assert verdicts == {DISAGREES if sees else AGREES}


class Flat(nn.Module):
    """Returns one row for each token, as many language models do."""

    def __init__(self, sees: int | None) -> None:
        super().__init__()
        self.model = Transformer(sees)

    def forward(self, batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        logits = self.model(batch["tokens"]).flatten(0, 1)
        return {"loss": F.cross_entropy(logits, batch["labels"].flatten()), "logits": logits}


@pytest.mark.parametrize("sees", [0, None])
def test_flat_outputs_dicts_and_losses_inside_the_model(sees: int | None, tmp_path: Path) -> None:
    def batch() -> tuple[dict[str, torch.Tensor]]:
        (words,) = tokens()
        return ({"tokens": words, "labels": words.roll(-1, 1)},)

    model = Flat(sees)
    result = verified(tmp_path, training(model, batch, lambda output, _: output["loss"], 8))
    assert set(result.of(SAMPLES.name)) == {AGREES}
    assert result.of(LATER_TOKENS.name) == 2 * [AGREES if sees == 0 else DISAGREES]  # labels are another sequence


@pytest.mark.parametrize("uses_mask", [True, False])
def test_padding_and_its_mask(uses_mask: bool, tmp_path: Path) -> None:
    result = run(tmp_path, Transformer(None, uses_mask=uses_mask), padded_tokens, masked_loss)
    assert set(result.of(PADDING.name)) == {AGREES if uses_mask else DISAGREES}
    assert set(result.of(PADDING_LOSS.name)) == {AGREES}
    if not uses_mask:
        assert result.first(PADDING.name).first == "Transformer.blocks.0.attention"


def test_padding_that_contributes_to_the_loss(tmp_path: Path) -> None:
    result = run(tmp_path, Transformer(None), padded_tokens, word_loss)
    assert set(result.of(PADDING.name)) == {AGREES}
    assert set(result.of(PADDING_LOSS.name)) == {DISAGREES}
    assert "at 15 of 15 masked positions" in result.first(PADDING_LOSS.name).found


class LastState(nn.Module):
    """Classifies a sequence by the state after its last token, or after the last position."""

    def __init__(self, uses_lengths: bool) -> None:
        super().__init__()
        self.uses_lengths = uses_lengths
        self.rnn, self.head = nn.GRU(6, 8, batch_first=True), nn.Linear(8, 2)

    def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        states, _ = self.rnn(x)
        last = lengths - 1 if self.uses_lengths else torch.full_like(lengths, x.shape[1] - 1)
        return self.head(states[torch.arange(len(x)), last])


@pytest.mark.parametrize("uses_lengths", [True, False])
def test_lengths_say_what_is_padding(uses_lengths: bool, tmp_path: Path) -> None:
    def batch() -> tuple[torch.Tensor, torch.Tensor]:
        x, lengths = torch.randn(5, 9, 6), torch.tensor([9, 7, 6, 4, 3])
        return x * (torch.arange(9) < lengths[:, None])[..., None], lengths

    result = run(tmp_path, LastState(uses_lengths), batch)
    assert set(result.of(PADDING.name)) == {AGREES if uses_lengths else DISAGREES}


class Translator(nn.Module):
    """Predicts each token of a target from the earlier ones and from all of a source."""

    def __init__(self, causal: bool) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, WIDTH)
        self.decoder = nn.TransformerDecoderLayer(WIDTH, 2, WIDTH, batch_first=True)
        self.head, self.causal = nn.Linear(WIDTH, WORDS), causal

    def forward(self, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        length = target.shape[1]
        mask = torch.ones(length, length, dtype=torch.bool).triu(1) if self.causal else None
        return self.head(self.decoder(self.embedding(target), self.embedding(source), tgt_mask=mask))


@pytest.mark.parametrize("causal", [True, False])
def test_a_source_is_no_target_of_the_same_length(causal: bool, tmp_path: Path) -> None:
    lengths = iter([7, LENGTH, LENGTH, 9, LENGTH, 8])  # in steps 2, 3 and 5 a source is as long as its target

    def batch() -> tuple[torch.Tensor, torch.Tensor]:
        return torch.randint(1, WORDS, (BATCH, next(lengths))), tokens()[0]

    def loss(output: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
        return output.square().mean()

    result = verified(tmp_path, training(Translator(causal), batch, loss, 6), every=1)
    assert [verdict.step for verdict in result.verdicts[LATER_TOKENS.name]] == [3, 4, 5, 6]
    assert set(result.of(LATER_TOKENS.name)) == {AGREES if causal else DISAGREES}


def test_what_cannot_be_told_apart_is_not_judged(tmp_path: Path) -> None:
    """A mask of positions may look like a tensor of samples."""

    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.TransformerEncoderLayer(6, 2, 8, batch_first=True)

        def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
            return self.layer(x, src_mask=mask)

    def batch() -> tuple[torch.Tensor, torch.Tensor]:
        return torch.randn(9, 9, 6), torch.ones(9, 9, dtype=torch.bool).triu(1)

    result = run(tmp_path, Masked(), batch)
    assert set(result.of(SAMPLES.name)) == {UNDECIDED}
    assert "as many samples as positions" in result.first(SAMPLES.name).found


def test_a_call_that_does_not_repeat_is_not_judged(tmp_path: Path) -> None:
    class Noisy(nn.Module):
        generator = torch.Generator()

        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(6, 6)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layer(x) + torch.rand(x.shape, generator=Noisy.generator)

    assert set(run(tmp_path, Noisy(), features).of(SAMPLES.name)) == {UNDECIDED}


def test_a_call_that_fails_with_other_inputs_is_not_judged(tmp_path: Path) -> None:
    class Sorted(nn.LSTM):
        """Accepts only samples whose first features ascend."""

        def forward(self, x: torch.Tensor) -> Any:
            if not torch.equal(x[:, :, 0].sort(1).values, x[:, :, 0]):
                raise ValueError("not sorted")
            return super().forward(x)

    def batch() -> tuple[torch.Tensor]:
        x = torch.randn(5, 9, 6)
        x[:, :, 0] = torch.arange(45.0).view(5, 9)
        return (x,)

    result = run(tmp_path, Sorted(6, 8, batch_first=True), batch)
    assert set(result.of(SAMPLES.name)) == {AGREES}
    assert set(result.of(LATER_TOKENS.name)) == {UNDECIDED}
    assert result.first(LATER_TOKENS.name).found.endswith("ValueError: not sorted")


def test_a_call_without_a_backward_is_released(tmp_path: Path) -> None:
    copies: list[weakref.ref[torch.Tensor]] = []
    left: list[int] = []

    def noting(arguments: Any) -> CallInputs:
        inputs = CallInputs(arguments)
        copies.extend(weakref.ref(leaf) for leaf in inputs.leaves)
        return inputs

    def steps() -> Iterator[None]:
        teacher, student = nn.Linear(6, 6), nn.Linear(6, 6)
        optimizer = torch.optim.SGD(student.parameters(), lr=0.1)
        for _ in range(5):
            optimizer.zero_grad()
            (x,) = features()
            F.mse_loss(student(x), teacher(x).detach()).backward()
            optimizer.step()
            left.append(sum(copy() is not None for copy in copies))
            yield

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(changed_calls, "CallInputs", noting)
        verified(tmp_path, steps(), every=100)
    assert len(copies) == 2 and left == [0, 1, 0, 0, 0]


@pytest.mark.parametrize("batch", [tokens, padded_tokens])
def test_the_training_is_the_same_to_the_last_bit(batch: Callable[[], Any], tmp_path: Path) -> None:
    def trained(observed: bool) -> tuple[list[torch.Tensor], torch.Tensor]:
        torch.manual_seed(1)
        model = Transformer(None)
        steps = training(model, batch, masked_loss)
        if observed:
            assert verified(tmp_path, steps, every=1).of(SAMPLES.name).count(AGREES) == 4
        for _ in steps:
            pass
        return [parameter.detach() for parameter in model.parameters()], torch.get_rng_state()

    (alone, state), (observed, state_observed) = trained(False), trained(True)
    assert all(map(torch.equal, alone, observed)) and torch.equal(state, state_observed)


def test_no_hook_stays(tmp_path: Path) -> None:
    model, outputs = Transformer(), list[torch.Tensor]()

    def loss(output: torch.Tensor, words: torch.Tensor) -> torch.Tensor:
        outputs.append(output)
        return next_word_loss(output, words)

    run(tmp_path, model, tokens, loss)
    assert outputs and not any(output._backward_hooks for output in outputs)
    assert not any(module._forward_hooks for module in model.modules())
