"""The values that the parameters of a model start from."""

import math
from dataclasses import dataclass

import torch
from torch import nn
from weightshards import ShardedLinear, is_sharded


@dataclass(frozen=True)
class StartConfig:
    """`layers` says how many residual branches add up, each with an output projection called `residual_name`."""

    initializer_range: float = 0.02
    layers: int = 1
    residual_name: str = "leave"


@torch.no_grad()
def init_weights(model, config):
    """Weights from a normal distribution, narrower for projections that end a residual branch; biases zero.

    Call it on all ranks in the same state of the random generator.
    """
    for name, module in model.named_modules():
        std = config.initializer_range
        if name.rpartition(".")[2] == config.residual_name:
            std /= math.sqrt(2 * config.layers)
        if isinstance(module, nn.Linear | nn.Conv1d | nn.Embedding | ShardedLinear):
            fill_normal(module.weight, std)
        if isinstance(module, nn.Linear | nn.Conv1d | ShardedLinear):
            module.bias.zero_()


def fill_normal(parameter, std):
    """Draw a parameter anew, with the same values whatever the number of ranks is."""
    if not is_sharded(parameter):
        parameter.normal_(std=std)
