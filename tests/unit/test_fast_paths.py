"""Tests that attention modules take their fast paths under observation, and that calls around them are observed."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from observed_process import observing
from traincheck.vocab.demand import EVERYTHING


def encoder() -> nn.TransformerEncoder:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, dropout=0.0)
    return nn.TransformerEncoder(layer, 2, norm=nn.LayerNorm(8)).eval()


def evaluated(model: nn.TransformerEncoder) -> torch.Tensor:
    x, padding = torch.randn(3, 5, 8, generator=torch.Generator().manual_seed(1)), torch.zeros(3, 5, dtype=torch.bool)
    padding[:, 3:] = True
    with torch.no_grad():
        return model(x, src_key_padding_mask=padding)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_a_fast_path_is_taken_and_calls_around_it_are_observed() -> None:
    model = encoder()
    alone = evaluated(model)
    with observing(EVERYTHING) as seen:
        observed = evaluated(model)
    assert torch.equal(alone, observed)
    forward = seen.named("torch.nn.Module.forward")
    assert len(forward) == 4, "the encoder, two layers of which nothing inside is called, and the norm"
    (norm,) = (call for call in forward if call.levels[0].endswith("LayerNorm.forward"))
    assert [call.parent for call in seen.named("torch.nn.functional.layer_norm")] == [norm.seq]


def test_a_mode_of_the_program_sees_the_single_steps() -> None:
    """A program with its own mode has no fast path anyway."""

    class Mode(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func: object, types: object, args: object = (), kwargs: object = None) -> object:
            seen.append(func)
            return func(*args, **(kwargs or {}))  # type: ignore[operator]

    model, seen, dispatched = encoder(), [], []
    for observe in (False, True):
        seen.clear()
        if observe:
            with observing(EVERYTHING), Mode():
                dispatched.append((evaluated(model), list(seen)))
        else:
            with Mode():
                dispatched.append((evaluated(model), list(seen)))
    assert torch.equal(dispatched[0][0], dispatched[1][0])
    assert dispatched[0][1] == dispatched[1][1] and nn.functional.layer_norm in dispatched[0][1]
