"""A small GPT that a port changes: `gpt.py [--port NAME] [--error]`. A right port computes the same; `--error` adds the
error that is typical for it. ports.py lists the ports, and what has to be named."""

import argparse
import contextlib
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F

WIDTH, HEADS, LAYERS, LENGTH, BATCH, VOCABULARY, STEPS = 64, 4, 2, 16, 8, 40, 3

options = argparse.ArgumentParser()
options.add_argument("--port", default="none")
options.add_argument("--error", action="store_true")
chosen = options.parse_args()
PORT = chosen.port
PIPELINES = "pipeline", "pipeline-numbers", "pipeline-schedule"


def is_wrong(port):
    """Whether this is the run with the error of a port."""
    return chosen.error and port == PORT


schedules = []  # of a pipeline


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.size = WIDTH // HEADS

    def projected(self, x):
        return self.qkv(x).split(WIDTH, dim=-1)

    def attended(self, q, k, v):
        scale = self.size if is_wrong("bfloat16") or is_wrong("autocast") or is_wrong("none") else self.size**0.5
        scores = q @ k.transpose(-1, -2) / scale
        mask = torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril()
        return scores.masked_fill(~mask, -1e9).softmax(-1) @ v

    def forward(self, x):
        q, k, v = (each.unflatten(-1, (-1, self.size)).transpose(1, 2) for each in self.projected(x))
        return self.out(self.attended(q, k, v).transpose(1, 2).flatten(2))


class FusedKernel(Attention):
    """Attention by the kernel of the library."""

    def attended(self, q, k, v):
        return F.scaled_dot_product_attention(q, k, v, is_causal=not is_wrong("library-attention"))


class Split(Attention):
    """One weight each for queries, keys and values."""

    def __init__(self):
        super().__init__()
        with torch.random.fork_rng():
            self.q, self.k, self.v = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        with torch.no_grad():
            for own, weight, bias in zip(
                (self.q, self.k, self.v), self.qkv.weight.split(WIDTH), self.qkv.bias.split(WIDTH), strict=True
            ):
                own.weight.copy_(weight)
                own.bias.copy_(bias)
        del self.qkv

    def projected(self, x):
        q, k, v = self.q(x), self.k(x), self.v(x)
        return (k, q, v) if is_wrong("split-weights") else (q, k, v)


class Transposed(nn.Module):
    """A linear layer whose weight is stored transposed, as in GPT-2."""

    def __init__(self, linear):
        super().__init__()
        self.weight = nn.Parameter(linear.weight.detach().t().contiguous())
        self.bias = nn.Parameter(linear.bias.detach().clone())

    def forward(self, x):
        bias = self.bias * 0 if is_wrong("transposed-weights") else self.bias
        return x @ self.weight + bias


class MLP(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        return self.down(F.gelu(self.up(x)))


class WrittenOut(MLP):
    """The activation as a formula."""

    def forward(self, x):
        x = self.up(x)
        if is_wrong("formula"):
            return self.down(x * torch.sigmoid(1.702 * x))
        return self.down(0.5 * x * (1 + torch.erf(x / 2**0.5)))


class Block(nn.Module):
    def __init__(self, attention, mlp):
        super().__init__()
        self.before_attention, self.before_mlp = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention, self.mlp = attention(), mlp()

    def forward(self, x):
        x = x + self.attention(self.before_attention(x))
        return x + self.mlp(self.before_mlp(x))


class GPT(nn.Module):
    def __init__(self, attention=Attention, mlp=MLP):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.ModuleList(Block(attention, mlp) for _ in range(LAYERS))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, tokens):
        x = self.tokens(tokens) + self.positions.weight
        for block in self.blocks:
            x = self.checkpointed(block, x) if PORT == "checkpointing" else block(x)
        return self.head(self.norm(x))

    def checkpointed(self, block, x):
        from torch.utils.checkpoint import checkpoint

        return checkpoint(block, x.detach() if is_wrong("checkpointing") else x, use_reentrant=False)


class Renamed(nn.Module):
    """The same model with the names of another library."""

    def __init__(self):
        super().__init__()
        inner = GPT()
        self.wte, self.wpe, self.h = inner.tokens, inner.positions, nn.ModuleList()
        for block in inner.blocks:
            layer = nn.Module()
            layer.ln_1, layer.attn, layer.ln_2, layer.mlp = (
                block.before_attention,
                block.attention,
                block.before_mlp,
                block.mlp,
            )
            self.h.append(layer)
        self.ln_f, self.lm_head = inner.norm, inner.head

    def forward(self, tokens):
        x = self.wte(tokens) + self.wpe.weight
        for layer in self.h:
            x = x + layer.attn(layer.ln_1(x))
            x = (layer.ln_2(x) if is_wrong("renamed") else x) + layer.mlp(layer.ln_2(x))
        return self.lm_head(self.ln_f(x))


class Stage(nn.Module):
    """The part of a model on one rank of a pipeline. Its blocks are numbered from 0, or as in the whole model."""

    def __init__(self, model, rank, size):
        super().__init__()
        count = LAYERS // size
        numbers = range(rank * count, (rank + 1) * count)
        if rank == 0:
            self.tokens, self.positions = model.tokens, model.positions
        first = numbers[0] if PORT == "pipeline" else 0
        self.blocks = nn.ModuleDict({str(number - first): model.blocks[number] for number in numbers})
        if rank == size - 1:
            self.norm, self.head = model.norm, model.head

    def forward(self, x):
        if hasattr(self, "tokens"):
            x = self.tokens(x) + self.positions.weight
        for block in self.blocks.values():
            x = block(x)
        if hasattr(self, "head"):
            x = x * 1.01 if is_wrong("pipeline-numbers") else x
            x = self.head(self.norm(x))
        return x


def build():
    """The model of the port, with the same initial weights as that of every other."""
    torch.manual_seed(0)
    if PORT == "renamed":
        return Renamed()
    model = GPT(
        {"library-attention": FusedKernel, "split-weights": Split, "tensor-parallel": Split}.get(PORT, Attention),
        WrittenOut if PORT == "formula" else MLP,
    )
    if PORT == "transposed-weights":
        for block in model.blocks:
            block.mlp.up, block.mlp.down = Transposed(block.mlp.up), Transposed(block.mlp.down)
    return model


def loss_of(model, tokens):
    return loss_of_logits(model(tokens[:, :-1]), tokens[:, 1:])


def loss_of_logits(logits, targets):
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def distributed(model):
    """The model on two ranks, by the port."""
    size = dist.get_world_size()
    if PORT == "ddp":
        return nn.parallel.DistributedDataParallel(model)
    if PORT in PIPELINES:
        return Stage(model, dist.get_rank(), size)
    if PORT == "fsdp":
        from torch.distributed.fsdp import fully_shard

        for block in model.blocks:
            fully_shard(block)
        return fully_shard(model)
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    mesh = init_device_mesh("cpu", (size,))
    plan = {
        "attention.q": ColwiseParallel(),
        "attention.k": ColwiseParallel(),
        "attention.v": ColwiseParallel(),
        "attention.out": RowwiseParallel(),
        "mlp.up": ColwiseParallel(),
        "mlp.down": RowwiseParallel(),
    }
    for block in model.blocks:
        parallelize_module(block, mesh, plan)
        if is_wrong("tensor-parallel"):
            block.attention.size = WIDTH // (HEADS // size)
    return model


def pipelined(stage, tokens):
    """Compute the gradients of a batch on two stages: the forwards of all micro-batches, then the backwards."""
    rank, parts = dist.get_rank(), tokens.chunk(4)
    shape = (BATCH // len(parts), LENGTH, WIDTH)
    outputs, inputs = [], []
    for part in parts:
        if rank == 0:
            outputs.append(stage(part[:, :-1]))
            dist.send(outputs[-1].detach(), 1)
        else:
            inputs.append(torch.empty(shape))
            dist.recv(inputs[-1], 0)
            logits = stage(inputs[-1].requires_grad_())
            targets = parts[len(outputs) - 1] if is_wrong("pipeline") else part
            outputs.append(F.cross_entropy(logits.flatten(0, 1), targets[:, 1:].flatten()) / len(parts))
    for number, output in enumerate(outputs):
        if rank == 1:
            output.backward()
            dist.send(inputs[number].grad, 0)
        else:
            gradient = torch.empty(shape)
            dist.recv(gradient, 1)
            output.backward(gradient)


def scheduled(stage, tokens):
    """Compute the gradients of a batch by a schedule of torch that interleaves forwards and backwards."""
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B

    if not schedules:
        own = PipelineStage(stage, dist.get_rank(), dist.get_world_size(), torch.device("cpu"))
        schedules.append(Schedule1F1B(own, 4, loss_of_logits, scale_grads=not chosen.error))
    if dist.get_rank() == 0:
        schedules[0].step(tokens[:, :-1])
    else:
        schedules[0].step(target=tokens[:, 1:])


def backward(model, tokens):
    """Compute the gradients of a batch, as the port does it."""
    if PORT in PIPELINES:
        scheduled(model, tokens) if PORT == "pipeline-schedule" else pipelined(model, tokens)
        return
    if PORT == "micro-batches":
        for part in tokens.chunk(4):
            (loss_of(model, part) / (1 if chosen.error else 4)).backward()
        return
    if PORT in ("ddp", "fsdp"):
        tokens = tokens.chunk(dist.get_world_size())[dist.get_rank()]
    with contextlib.ExitStack() as stack:
        if PORT == "autocast":
            stack.enter_context(torch.autocast("cpu", torch.bfloat16))
        if is_wrong("ddp"):
            stack.enter_context(model.no_sync())
        loss = loss_of(model, tokens)
        if is_wrong("compile"):
            loss = loss * 1.01
        if is_wrong("fsdp"):
            loss = loss * dist.get_world_size()  # as if gradients were added up, and not averaged
        loss.backward()


def clip(parameters):
    """Clip gradients by the norm of all stages."""
    gradients = [each.grad for each in parameters]
    norm = nn.utils.get_total_norm(gradients) ** 2
    dist.all_reduce(norm)
    for gradient in gradients:
        gradient.mul_(torch.clamp(2.0 / (norm.sqrt() + 1e-6), max=1.0))


def main():
    ranks = PORT in ("ddp", "fsdp", "tensor-parallel", *PIPELINES)
    if ranks:
        dist.init_process_group("gloo")
    model = build()
    if ranks:
        model = distributed(model)
    if PORT == "compile":
        model.compile()
    if PORT == "bfloat16":
        model = model.to(torch.bfloat16)
    decay = 0.1 if is_wrong("fused-optimizer") else 0.01
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=1e-3, eps=1e-4, weight_decay=decay, fused=PORT == "fused-optimizer" or None
    )
    generator = torch.Generator().manual_seed(1)
    for _ in range(STEPS):
        tokens = torch.randint(VOCABULARY, (BATCH, LENGTH + 1), generator=generator)
        optimizer.zero_grad()
        backward(model, tokens)
        if PORT in PIPELINES:
            clip(model.parameters())
        elif PORT != "tensor-parallel":  # torch does not clip sharded and whole gradients together
            nn.utils.clip_grad_norm_(model.parameters(), 2.0)
        optimizer.step()
    if ranks:
        dist.barrier()
        dist.destroy_process_group()
        time.sleep(0.2)


main()
