"""Tensor parallelism in bfloat16 with float32 master weights: a gated MLP learns a function of eight variables."""

import argparse
import io
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn


class EnterShards(torch.autograd.Function):
    """Hands an activation to the shards. Their gradients are added up in float32 and rounded once."""

    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        total = grad.float()
        dist.all_reduce(total)
        return total.to(grad.dtype)


class LeaveShards(torch.autograd.Function):
    """Adds up the shards' outputs in float32 and rounds once."""

    @staticmethod
    def forward(ctx, x):
        total = x.float()
        dist.all_reduce(total)
        return total.to(x.dtype)

    @staticmethod
    def backward(ctx, grad):
        return grad


class ShardedGatedMLP(nn.Module):
    """`down(silu(gate(x)) * up(x))`, with the hidden units dealt out to the ranks."""

    def __init__(self, dim, hidden, shard_generator):
        super().__init__()
        local = hidden // dist.get_world_size()
        self.gate_up = nn.Parameter(torch.randn(2 * local, dim, generator=shard_generator) * dim**-0.5)
        self.down = nn.Parameter(torch.randn(dim, local, generator=shard_generator) * 0.5 * hidden**-0.5)
        self.gate_up.sharded = self.down.sharded = True

    def forward(self, x):
        gate, up = F.linear(EnterShards.apply(x), self.gate_up).chunk(2, dim=-1)
        return LeaveShards.apply(F.linear(F.silu(gate) * up, self.down))


class Regressor(nn.Module):
    def __init__(self, in_dim, dim, depth, shard_generator):
        super().__init__()
        self.lift = nn.Linear(in_dim, dim)
        self.norms = nn.ModuleList(nn.LayerNorm(dim) for _ in range(depth))
        self.mlps = nn.ModuleList(ShardedGatedMLP(dim, 3 * dim, shard_generator) for _ in range(depth))
        self.final_norm = nn.LayerNorm(dim)
        self.read = nn.Linear(dim, 1)

    def forward(self, x):
        h = self.lift(x.to(self.lift.weight.dtype))
        for norm, mlp in zip(self.norms, self.mlps, strict=True):
            h = h + mlp(norm(h))
        return self.read(self.final_norm(h)).squeeze(-1).float()


class MasterWeights:
    """Wraps an optimizer: it updates float32 copies, the model's low-precision parameters are rounded from them."""

    def __init__(self, params, make_optimizer, max_norm):
        self.model_params = list(params)
        self.masters = [p.detach().clone().float().requires_grad_() for p in self.model_params]
        self.optimizer = make_optimizer(self.masters)
        self.max_norm = max_norm

    def zero_grad(self):
        for p in (*self.model_params, *self.masters):
            p.grad = None

    @torch.no_grad()
    def step(self):
        for p, master in zip(self.model_params, self.masters, strict=True):
            master.grad = None if p.grad is None else p.grad.float()
        norm = self._clip()
        self.optimizer.step()
        for p, master in zip(self.model_params, self.masters, strict=True):
            p.copy_(master)
        return norm

    def _clip(self):
        sharded, replicated = torch.zeros(()), torch.zeros(())
        for p, master in zip(self.model_params, self.masters, strict=True):
            if master.grad is not None:
                square = master.grad.pow(2).sum()
                if getattr(p, "sharded", False):
                    sharded += square
                else:
                    replicated += square
        dist.all_reduce(sharded)
        norm = (sharded + replicated).sqrt().item()
        if norm > self.max_norm:
            for master in self.masters:
                if master.grad is not None:
                    master.grad.mul_(self.max_norm / norm)
        return norm

    def state_dict(self):
        return {"masters": [m.detach() for m in self.masters], "optimizer": self.optimizer.state_dict()}

    @torch.no_grad()
    def load_state_dict(self, state):
        for p, master, saved in zip(self.model_params, self.masters, state["masters"], strict=True):
            master.copy_(saved)
            p.copy_(saved)
        self.optimizer.load_state_dict(state["optimizer"])


def target_function(x):
    return torch.sin(2.0 * x[:, 0]) + x[:, 1] * x[:, 2] + 0.5 * x[:, 3].abs() - 0.3 * x[:, 4] * x[:, 5].square()


def build(args):
    """Model, optimizer and schedule; what is replicated is drawn alike on all ranks, the shards are not."""
    torch.manual_seed(args.seed)
    shard_generator = torch.Generator().manual_seed(args.seed + 100 * (dist.get_rank() + 1))
    model = Regressor(8, args.dim, args.depth, shard_generator).to(torch.bfloat16)
    optimizer = MasterWeights(
        model.parameters(),
        lambda masters: torch.optim.AdamW(masters, lr=args.lr, betas=(0.9, 0.98), weight_decay=0.01),
        max_norm=1.0,
    )
    scheduler = torch.optim.lr_scheduler.PolynomialLR(optimizer.optimizer, total_iters=args.steps, power=1.0)
    return model, optimizer, scheduler


def main(args):
    model, optimizer, scheduler = build(args)
    data = torch.Generator().manual_seed(args.seed + 1)
    val_x = torch.randn(512, 8, generator=data)
    val_y = target_function(val_x)

    for step in range(1, args.steps + 1):
        if step == args.steps // 2 + 1:  # what a job does that is stopped and started again
            file = io.BytesIO()
            parts = {"optimizer": optimizer, "scheduler": scheduler}
            torch.save({name: part.state_dict() for name, part in parts.items()}, file)
            file.seek(0)
            checkpoint = torch.load(file)
            model, optimizer, scheduler = build(args)
            optimizer.load_state_dict(checkpoint["optimizer"])  # also fills the model
            scheduler.load_state_dict(checkpoint["scheduler"])
            if dist.get_rank() == 0:
                print("resumed from the checkpoint")

        model.train()
        x = torch.randn(args.batch_size, 8, generator=data)
        loss = F.mse_loss(model(x), target_function(x))
        optimizer.zero_grad()
        loss.backward()
        norm = optimizer.step()
        scheduler.step()

        if step % 12 == 0:
            model.eval()
            with torch.no_grad():
                r2 = 1.0 - F.mse_loss(model(val_x), val_y) / val_y.var()
            if dist.get_rank() == 0:
                print(f"step {step}: mse {loss.item():.4f}, gradient norm {norm:.3f}, validation R2 {r2.item():.3f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=48)
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--dim", type=int, default=64)
    parser.add_argument("--depth", type=int, default=2)
    parser.add_argument("--lr", type=float, default=5e-3)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    dist.init_process_group("gloo")
    main(options)
    dist.barrier()
    dist.destroy_process_group()
    time.sleep(0.5)
