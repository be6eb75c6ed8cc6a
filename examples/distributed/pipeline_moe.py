"""A mixture-of-experts language model in two pipeline stages, each of which holds a copy of the tied embedding."""

import argparse
import math
import time
from types import SimpleNamespace

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

OPEN, CLOSE = "([{<", ")]}>"
ALPHABET = OPEN + CLOSE + "abcdefg"

hp = SimpleNamespace(
    seq_len=32,
    dim=48,
    heads=4,
    experts=4,
    layers_per_stage=1,
    steps=40,
    batch_size=32,
    n_micro=2,
    lr=1e-2,
    warmup=8,
    aux_weight=0.01,
    clip=1.0,
)


def bracket_batch(generator, n):
    """Strings of nested brackets, in which letters tell the depth; what closes is the kind that opened last."""
    draws = torch.rand(n, hp.seq_len + 1, 2, generator=generator).tolist()
    rows = []
    for row in draws:
        stack, ids = [], []
        for action, choice in row:
            if action < 0.35 and len(stack) < 6:
                stack.append(int(choice * choice * 4))
                ids.append(stack[-1])
            elif action < 0.8 and stack:
                ids.append(4 + stack.pop())
            else:
                ids.append(8 + len(stack))
        rows.append(ids)
    batch = torch.tensor(rows)
    return batch[:, :-1], batch[:, 1:]


def get_capacity(n_tokens, factor=1.5):
    """The most tokens that an expert takes; the layers after it see the others as they were."""
    return math.ceil(2 * factor * n_tokens / hp.experts)


class ExpertPool(nn.Module):
    """Top-2 of a few experts; each expert is given its tokens by index."""

    def __init__(self):
        super().__init__()
        self.router = nn.Linear(hp.dim, hp.experts, bias=False)
        self.w_in = nn.ModuleList(nn.Linear(hp.dim, hp.dim) for _ in range(hp.experts))
        self.w_out = nn.ModuleList(nn.Linear(hp.dim, hp.dim) for _ in range(hp.experts))

    def forward(self, x):
        flat = x.flatten(0, 1)
        probs = self.router(flat).softmax(-1)
        top_p, top_i = probs.topk(2, dim=-1)
        top_p = top_p / top_p.sum(-1, keepdim=True)
        out = torch.zeros_like(flat)
        capacity = get_capacity(len(flat))
        for e in range(hp.experts):
            token, which = (found[:capacity] for found in torch.where(top_i == e))
            y = self.w_out[e](F.silu(self.w_in[e](flat[token])))
            out = out.index_add(0, token, y * top_p[token, which].unsqueeze(-1))
        share = F.one_hot(top_i, hp.experts).float().mean((0, 1))
        return out.view_as(x), hp.experts * (share * probs.mean(0)).sum()


class MoEBlock(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln_attn = nn.LayerNorm(hp.dim)
        self.to_qkv = nn.Linear(hp.dim, 3 * hp.dim, bias=False)
        self.to_out = nn.Linear(hp.dim, hp.dim, bias=False)
        self.ln_moe = nn.LayerNorm(hp.dim)
        self.moe = ExpertPool()

    def forward(self, x):
        b, t, _ = x.shape
        qkv = self.to_qkv(self.ln_attn(x)).view(b, t, 3, hp.heads, -1).permute(2, 0, 3, 1, 4)
        x = x + self.to_out(F.scaled_dot_product_attention(*qkv, is_causal=True).transpose(1, 2).reshape(b, t, -1))
        y, aux = self.moe(self.ln_moe(x))
        return x + y, aux


class Stage(nn.Module):
    def __init__(self):
        super().__init__()
        # The first stage looks tokens up in it, the last one projects on it.
        self.tied = nn.Parameter(torch.randn(len(ALPHABET), hp.dim) * 0.2)
        self.blocks = nn.ModuleList(MoEBlock() for _ in range(hp.layers_per_stage))

    def run_blocks(self, x):
        total = x.new_zeros(())
        for block in self.blocks:
            x, aux = block(x)
            total = total + aux
        return x, hp.aux_weight * total


class EntryStage(Stage):
    def __init__(self):
        super().__init__()
        self.positions = nn.Parameter(torch.randn(hp.seq_len, hp.dim) * 0.2)

    def forward(self, ids):
        return self.run_blocks(F.embedding(ids, self.tied) + self.positions)


class ExitStage(Stage):
    def __init__(self):
        super().__init__()
        self.ln_out = nn.LayerNorm(hp.dim)

    def forward(self, x, labels):
        x, aux = self.run_blocks(x)
        logits = F.linear(self.ln_out(x), self.tied)
        return F.cross_entropy(logits.flatten(0, 1), labels.flatten()), aux


def entry_step(stage, ids):
    waiting = []
    for micro in ids.chunk(hp.n_micro):
        x, aux = stage(micro)
        dist.send(x.detach(), dst=1)
        waiting.append((x, aux / hp.n_micro))
    for x, aux in waiting:
        grad = torch.empty_like(x)
        dist.recv(grad, src=1)
        torch.autograd.backward([x, aux], [grad, None])  # the auxiliary loss of these layers starts here


def exit_step(stage, labels):
    mean_loss = 0.0
    waiting = []
    for micro in labels.chunk(hp.n_micro):
        x = torch.empty(*micro.shape, hp.dim)
        dist.recv(x, src=0)
        x.requires_grad_()
        loss, aux = stage(x, micro)
        waiting.append((x, (loss + aux) / hp.n_micro))
        mean_loss += loss.item() / hp.n_micro
    for x, objective in waiting:
        objective.backward()
        dist.send(x.grad, dst=0)
    return mean_loss


def clip_over_stages(stage, max_norm):
    """The norm is that of the whole model, in which the tied embedding counts once."""
    squares = sum(p.grad.square().sum() for p in stage.parameters() if p is not stage.tied or dist.get_rank() == 0)
    dist.all_reduce(squares)
    scale = max_norm / (squares.sqrt() + 1e-6)
    if scale < 1.0:
        for p in stage.parameters():
            p.grad.mul_(scale)
    return squares.sqrt().item()


@torch.no_grad()
def validate(stage, ids, labels):
    stage.eval()
    result = None
    if dist.get_rank() == 0:
        dist.send(stage(ids)[0], dst=1)
    else:
        x = torch.empty(*labels.shape, hp.dim)
        dist.recv(x, src=0)
        result = stage(x, labels)[0].item()
    stage.train()
    return result


def main():
    rank = dist.get_rank()
    torch.manual_seed(hp.seed * 2 + rank)
    stage = EntryStage() if rank == 0 else ExitStage()
    dist.broadcast(stage.tied.data, src=0)
    optimizer = torch.optim.AdamW(stage.parameters(), lr=hp.lr, betas=(0.9, 0.95), weight_decay=0.01)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda i: min(1.0, (i + 1) / hp.warmup))
    generator = torch.Generator().manual_seed(hp.seed)
    val_batch = bracket_batch(generator, 64)

    stage.train()
    for step in range(1, hp.steps + 1):
        ids, labels = bracket_batch(generator, hp.batch_size)
        optimizer.zero_grad()
        loss = entry_step(stage, ids) if rank == 0 else exit_step(stage, labels)
        dist.all_reduce(stage.tied.grad)  # one parameter at two places: the sum is its gradient
        norm = clip_over_stages(stage, hp.clip)
        optimizer.step()
        scheduler.step()
        if step % 10 == 0:
            val_loss = validate(stage, *val_batch)
            if rank == 1:
                print(f"step {step}  loss {loss:.4f}  grad norm {norm:.3f}  val loss {val_loss:.4f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=hp.steps)
    parser.add_argument("--lr", type=float, default=hp.lr)
    vars(hp).update(vars(parser.parse_args()))
    dist.init_process_group("gloo")
    main()
    dist.barrier()
    dist.destroy_process_group()
    time.sleep(0.5)
