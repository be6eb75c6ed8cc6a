"""Train a decoder to write sums letter by letter, on workers that each read a text of their own.

torchrun --standalone --nproc-per-node 2 learn_sums.py
"""

import argparse
import math
import os
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from decoder import Decoder
from sums import ALPHABET, SumText
from weights import broadcast_weights

WARMUP = 5


class GradientAverage:
    """Averages each gradient over the workers as soon as backward has made it."""

    def __init__(self, model):
        self.pending = []
        for parameter in model.parameters():
            parameter.register_post_accumulate_grad_hook(self.start)

    def start(self, parameter):
        parameter.grad.div_(dist.get_world_size())
        self.pending.append(dist.all_reduce(parameter.grad, async_op=True))

    def wait(self):
        while self.pending:
            self.pending.pop().wait()


def learning_rate(step, steps, peak):
    if step < WARMUP:
        return peak * (step + 1) / WARMUP
    return peak * 0.5 * (1 + math.cos(math.pi * (step - WARMUP) / (steps - WARMUP)))


def loss_of(model, letters, following):
    return F.cross_entropy(model(letters).flatten(0, 1), following.flatten())


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--length", type=int, default=32)
    parser.add_argument("--limit", type=int, default=20)
    parser.add_argument("--lr", type=float, default=8e-3)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank = int(os.environ["RANK"])

    torch.manual_seed(1000 * args.seed + rank)
    model = Decoder(len(ALPHABET), length=args.length)
    broadcast_weights(model, source=0)
    averages = GradientAverage(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, betas=(0.9, 0.95), weight_decay=0.05)

    text = SumText(args.limit, seed=1000 * args.seed + rank)
    unseen = SumText(args.limit, seed=1000 * args.seed + 999).batch(32, args.length)
    for step in range(args.steps):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, args.steps, args.lr)
        loss = loss_of(model, *text.batch(args.batch, args.length))
        loss.backward()
        averages.wait()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if rank == 0 and (step + 1) % 10 == 0:
            model.eval()
            with torch.no_grad():
                bits = loss_of(model, *unseen).item() / math.log(2)
            model.train()
            print(f"step {step + 1}: loss {loss.item():.3f}, {bits:.2f} bits per letter", flush=True)
    dist.barrier()


if __name__ == "__main__":
    main()
    dist.destroy_process_group()
    time.sleep(0.5)
