"""Four ranks on a 2 x 2 mesh: DDP with batch norm, FSDP2 with replicated shards, tensor parallelism beside data
parallelism, and layers in the manner of Megatron. The arguments are a seed and the mistakes to make."""

import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

STEPS = 6  # of each kind
seed, wrong = int(sys.argv[1]), sys.argv[2:]


def batches(copy):
    """Batches that are the same on the ranks of one copy of the model."""
    generator = torch.Generator().manual_seed(100 * seed + copy)
    for _ in range(STEPS):
        x = torch.randn(16, 8, generator=generator)
        yield x, x.sum(1, keepdim=True).tanh()


def replicated(mesh):
    """DDP sends the running statistics of the first rank to all others before each forward."""
    model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 1))
    model = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for step, (x, y) in enumerate(batches(dist.get_rank()), start=1):
        if "buffers" in wrong and step == 4:
            model.broadcast_buffers = False
        optimizer.zero_grad()
        loss = (model(x) - y).pow(2).mean()
        loss.backward()
        optimizer.step()
    return model


def sharded(mesh):
    """Each shard is held by two ranks, which reduce its gradients; the last rank writes to its own."""
    model = nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.ReLU(), nn.Linear(16, 3), nn.Linear(3, 1))
    fully_shard(model[0], mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for step, (x, y) in enumerate(batches(dist.get_rank()), start=1):
        loss = (model(x) - y).pow(2).mean()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        if "shard" in wrong and step == 4 and dist.get_rank() == 3:
            model[0].weight.to_local().detach().add_(0.01)
        optimizer.step()
        optimizer.zero_grad()
    return model


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(8)
        self.up, self.down = nn.Linear(8, 32), nn.Linear(32, 8)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(self.norm(x))))


def in_parts(mesh):
    """Two ranks share the work of one copy; norms are whole on each rank, and every copy has its own batches."""
    model = nn.Sequential(Block(), Block(), nn.Linear(8, 1))
    for block in model[:2]:
        parallelize_module(block, mesh["parts"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for step, (x, y) in enumerate(batches(mesh.get_local_rank("copies")), start=1):
        optimizer.zero_grad()
        loss = (model(x) - y).pow(2).mean()
        loss.backward()
        for param in model.parameters():
            grad = param.grad.to_local() if isinstance(param.grad, DTensor) else param.grad
            dist.all_reduce(grad, group=mesh.get_group("copies"))
            grad /= 2
        if "norm" in wrong and step == 3 and dist.get_rank() == 1:
            model[1].norm.weight.grad *= 0.5
        optimizer.step()
    return model


class Reduce(torch.autograd.Function):
    """The sum over the ranks of a group, forward (of what parts compute) or backward (of what parts are given)."""

    @staticmethod
    def forward(ctx, x, group, forward):
        ctx.group, ctx.backwards = group, not forward
        x = x.clone()
        if forward:
            dist.all_reduce(x, group=group)
        return x

    @staticmethod
    def backward(ctx, grad):
        grad = grad.clone()
        if ctx.backwards:
            dist.all_reduce(grad, group=ctx.group)
        return grad, None, None


class Split(nn.Module):
    """A linear layer of which each rank holds a part, marked as Megatron marks it."""

    def __init__(self, n_in, n_out, dim, mesh):
        super().__init__()
        whole = torch.randn(n_out, n_in) / n_in**0.5
        self.weight = nn.Parameter(whole.chunk(2, dim)[mesh.get_local_rank("parts")].clone())
        self.weight.tensor_model_parallel, self.weight.partition_dim = True, dim
        self.group, self.dim = mesh.get_group("parts"), dim

    def forward(self, x):
        x = x if self.dim else Reduce.apply(x, self.group, False)
        x = x @ self.weight.t()
        return Reduce.apply(x, self.group, True) if self.dim else x


def marked(mesh):
    layers = Split(8, 16, 0, mesh), nn.ReLU(), Split(16, 8, 1, mesh)
    model = nn.Sequential(nn.LayerNorm(8), *layers, nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for x, y in batches(0):
        optimizer.zero_grad()
        loss = (model(x) - y).pow(2).mean()
        loss.backward()
        optimizer.step()
    return model


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(seed)
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("copies", "parts"))
    total = 0.0
    for train in (replicated, sharded, in_parts, marked):
        model = train(mesh)
        for param in model.parameters():
            own = param.to_local() if isinstance(param, DTensor) else param
            total += float(own.detach().double().sum())
        del model, param, own
    print(f"rank {dist.get_rank()} {total:.12f}\n", end="", flush=True)
    dist.barrier()
    dist.destroy_process_group()
    time.sleep(0.5)


main()
