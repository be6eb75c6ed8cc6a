"""Sequence parallelism: the ranks of a sequence group hold one stretch each of the same long sequences.

Ranks are laid out with the stretches innermost: with 8 ranks and 4 stretches, 0-3 share the sequences of one batch and
4-7 those of another. Weights are the same on all ranks.
"""

import torch
import torch.distributed as dist


class Mesh:
    """The groups that this rank is in: `sequence` (same data, other stretches), `data` (other data, same stretch)."""

    def __init__(self, sequence_parallel):
        world, rank = dist.get_world_size(), dist.get_rank()
        if world % sequence_parallel:
            raise ValueError(f"{world} ranks cannot be split into groups of {sequence_parallel}")
        self.stretches, self.stretch = sequence_parallel, rank % sequence_parallel
        for start in range(0, world, sequence_parallel):
            ranks = list(range(start, start + sequence_parallel))
            group = dist.new_group(ranks)
            if rank in ranks:
                self.sequence = group
        for start in range(sequence_parallel):
            ranks = list(range(start, world, sequence_parallel))
            group = dist.new_group(ranks)
            if rank in ranks:
                self.data = group
        self.data_sequence = dist.group.WORLD


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx, stretch, mesh):
        ctx.mesh = mesh
        pieces = [torch.empty_like(stretch) for _ in range(mesh.stretches)]
        dist.all_gather(pieces, stretch.contiguous(), group=mesh.sequence)
        return torch.cat(pieces, dim=1)

    @staticmethod
    def backward(ctx, grad):
        grad = grad.contiguous()
        dist.all_reduce(grad, group=ctx.mesh.sequence)
        return own_stretch(grad, ctx.mesh), None


def gather_sequence(stretch, mesh):
    """[batch, own, ...] to [batch, whole, ...]; the gradients of all ranks come back summed."""
    return _Gather.apply(stretch, mesh)


def own_stretch(whole, mesh):
    """The part of [batch, whole, ...] that this rank holds."""
    return whole.chunk(mesh.stretches, dim=1)[mesh.stretch]


def average_gradients(model, mesh):
    """Average the gradients of matrices one by one, those of vectors (biases, norms) in one message."""
    vectors = []
    for parameter in model.parameters():
        if parameter.grad is None:
            continue
        if parameter.dim() < 2:
            vectors.append(parameter.grad)
        else:
            _average(parameter.grad, mesh.data_sequence)
    flat = torch.cat(vectors)
    _average(flat, mesh.data_sequence)
    for grad, averaged in zip(vectors, flat.split([grad.numel() for grad in vectors]), strict=True):
        grad.copy_(averaged)


def _average(tensor, group):
    dist.all_reduce(tensor, group=group)
    tensor /= dist.get_world_size(group)
