"""Learn the operator that integrates a function, with a DeepONet compiled by `tracing` and bfloat16 autocast."""

import argparse
import time
from itertools import pairwise

import torch
from operators import Antiderivatives
from torch import nn
from tracing import jit


def mlp(*widths, activation=nn.GELU):
    layers = []
    for i, (ins, outs) in enumerate(pairwise(widths)):
        layers += [nn.Linear(ins, outs)] + ([activation()] if i < len(widths) - 2 else [])
    return nn.Sequential(*layers)


class DeepONet(nn.Module):
    """A branch for what the function is, a trunk for where to evaluate; their products are the answer."""

    def __init__(self, sensors, width, modes):
        super().__init__()
        self.branch = mlp(sensors, width, modes)
        self.norm = nn.LayerNorm(modes)
        self.trunk = mlp(1, width, width, modes, activation=nn.Tanh)
        self.bias = nn.Parameter(torch.zeros(()))

    def forward(self, functions, queries):
        basis = self.norm(self.trunk(queries))
        return torch.matmul(self.branch(functions), basis.t()) + self.bias


def fit(net, operator, args):
    optimizer = torch.optim.AdamW(net.parameters(), lr=args.lr, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.steps)
    net.train()
    for step in range(1, args.steps + 1):
        functions, queries, integrals = operator.sample(args.batch)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            predicted = net(functions, queries)
        loss = nn.functional.mse_loss(predicted.float(), integrals)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        if step % 10 == 0:
            print(f"step {step:3d}  loss {loss.item():.4f}  lr {schedule.get_last_lr()[0]:.1e}")


@torch.no_grad()
def relative_error(net, operator):
    net.eval()
    functions, queries, integrals = operator.sample(256)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        predicted = net(functions, queries)
    return ((predicted.float() - integrals).norm() / integrals.norm()).item()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--width", type=int, default=48)
    parser.add_argument("--terms", type=int, default=4, help="sine terms of a function")
    parser.add_argument("--lr", type=float, default=1e-2)
    parser.add_argument("--seed", type=int, default=3)
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    operator = Antiderivatives(terms=args.terms, seed=args.seed)
    held_out = Antiderivatives(terms=args.terms, seed=args.seed + 1000)
    net = jit(DeepONet(len(operator.sensors), args.width, modes=16))
    start = time.perf_counter()
    fit(net, operator, args)
    print(f"{args.steps / (time.perf_counter() - start):.0f} steps/s")
    print(f"relative error: {relative_error(net, held_out):.3f}")


if __name__ == "__main__":
    main()
