"""Moves words between the workers that hold the experts."""

import torch
import torch.distributed as dist


class Mailbox:
    """An exchange of equal blocks among all workers, over buffers that are allocated once for blocks of any size."""

    def __init__(self, largest):
        self.rank = dist.get_rank()
        self.boxes = torch.zeros(dist.get_world_size(), largest)

    def exchange(self, blocks):
        """Block i of (workers, ...) goes to worker i; returns the blocks that the workers sent to this one."""
        blocks = blocks.contiguous()
        size = blocks[0].numel()
        works = []
        for peer, block in enumerate(blocks):
            if peer != self.rank:
                works += [dist.isend(block, peer), dist.irecv(self.boxes[peer], peer)]
        for work in works:
            work.wait()
        self.boxes[self.rank, :size] = blocks[self.rank].flatten()
        return self.boxes[:, :size].reshape(blocks.shape)


class AllToAll(torch.autograd.Function):
    @staticmethod
    def forward(ctx, blocks, mailbox):
        ctx.mailbox = mailbox
        return mailbox.exchange(blocks)

    @staticmethod
    def backward(ctx, gradient):
        return ctx.mailbox.exchange(gradient), None


@torch.no_grad()
def slots_of(chosen, experts):
    """Where in a buffer (experts * capacity) each word goes, and the capacity that holds all words of any worker."""
    taken = torch.nn.functional.one_hot(chosen, experts)
    capacity = taken.sum(dim=0).max()
    dist.all_reduce(capacity, op=dist.ReduceOp.MAX)
    position = (taken.cumsum(dim=0) * taken).sum(dim=1) - 1
    return chosen * capacity + position, int(capacity)
