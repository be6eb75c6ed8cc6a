"""Experts that live on one rank each: their placement, and the exchange of tokens with them."""

import torch
import torch.distributed as dist
from torch import nn


class GatherTokens(torch.autograd.Function):
    """The tokens of all ranks, one after the other."""

    @staticmethod
    def forward(ctx, tokens):
        ctx.count = len(tokens)
        parts = [torch.empty_like(tokens) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, tokens.contiguous())
        return torch.cat(parts)

    @staticmethod
    def backward(ctx, gradient):
        gradient = gradient.clone()
        dist.all_reduce(gradient)
        return gradient[ctx.count * dist.get_rank() :][: ctx.count]


class SumOutputs(torch.autograd.Function):
    """The sum over ranks, of which each then uses its own part."""

    @staticmethod
    def forward(ctx, outputs):
        outputs = outputs.clone()
        dist.all_reduce(outputs)
        return outputs

    @staticmethod
    def backward(ctx, gradient):
        gradient = gradient.clone()
        dist.all_reduce(gradient)
        return gradient


class ExpertParallel(nn.Module):
    """The experts of a layer. Once placed, a rank holds only its own and computes them for the tokens of all ranks."""

    def __init__(self, experts):
        super().__init__()
        self.experts = nn.ModuleList(experts)

    def place(self):
        """Keep the experts whose id is this rank's, modulo world size."""
        for index, expert in enumerate(self.experts):
            if expert.id % dist.get_world_size() != dist.get_rank():
                self.experts[index] = nn.Identity()
        return [index for index, expert in enumerate(self.experts) if not isinstance(expert, nn.Identity)]

    def forward(self, tokens, chosen):
        """What expert `chosen[i]` makes of token i."""
        count, rank = len(tokens), dist.get_rank()
        everywhere = GatherTokens.apply(tokens)
        routes = [torch.empty_like(chosen) for _ in range(dist.get_world_size())]
        dist.all_gather(routes, chosen)
        routes = torch.cat(routes)
        outputs = 0 * everywhere  # on a rank that no token chose, too, backward has to take part in the exchange
        for index, expert in enumerate(self.experts):
            here = (routes == index).nonzero().squeeze(1)
            if len(here) and not isinstance(expert, nn.Identity):
                outputs = outputs.index_copy(0, here, expert(everywhere[here]))
        return SumOutputs.apply(outputs)[count * rank :][:count]
