"""A gate that sends each token to one expert, as long as that has room; tokens for which there is none are dropped."""

import math

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import one_hot


def capacity_of(tokens, experts, factor):
    """The tokens that an expert takes from each worker, for workers that may hold different numbers of tokens."""
    capacity = torch.tensor(math.ceil(factor * tokens / experts))
    dist.all_reduce(capacity, op=dist.ReduceOp.MAX)
    return capacity.item()


class Gate(nn.Module):
    """Top-1 gate. Its masks (tokens, experts, room) say which token has which place in the buffer of which expert."""

    def __init__(self, width, experts, room, factor=1.25):
        super().__init__()
        self.project = nn.Linear(width, experts, bias=False)
        self.experts = experts
        self.room = room
        self.factor = factor

    def forward(self, tokens):
        chances = self.project(tokens).softmax(dim=1)
        chosen = one_hot(chances.argmax(dim=1), self.experts)
        capacity = capacity_of(len(tokens), self.experts, self.factor)
        place = chosen.cumsum(dim=0) * chosen - 1
        kept = chosen * (place < min(capacity, self.room))
        place = (place * kept).sum(dim=1)
        dispatch = kept.unsqueeze(2) * one_hot(place, self.room).unsqueeze(1)
        dispatch = dispatch.to(tokens.dtype)
        combine = dispatch * chances.unsqueeze(2)
        balance = self.experts * (chosen.float().mean(dim=0) * chances.mean(dim=0)).sum()
        return dispatch, combine, balance
